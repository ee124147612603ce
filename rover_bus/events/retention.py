"""What a log and its facts let go of, and when: a task of its own, so that nothing that appends ever waits for a purge (P21).

Run by shell.py in a leader: a master for its job, the Brain for the hosts. Fed by the headers of the log, by the table in
streams.py and by the positions of followers; feeds purges by subject below a sequence. Time is the broker's: ages are measured from
the newest message, so that no clock of ours counts. It is never in a hurry: whatever fails is done a round later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from rover_bus.events import positions, subjects
from rover_bus.events.bus import Bus
from rover_bus.events.consumed import ALL
from rover_bus.events.errors import RoverError
from rover_bus.events.journal import Journal
from rover_bus.events.logs import get_logger
from rover_bus.events.looks import first_stored
from rover_bus.events.outbox import Outbox
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.streams import FACTS, FACTS_KEPT, FOR_EVER, LOG, Kept

ROUND_S = (
    60.0  # not below POSITION_TTL_S: after a restart of the broker every living follower has reported again
)
SLACK = 1.2  # a kind is purged once it holds so many times what is kept: not a purge a fact
STEP, PAUSE_S = (
    50_000,
    0.02,
)  # one purge goes over so many stream sequences: the broker stores nothing meanwhile
Expendable = Callable[[int], Awaitable[bool]]
log = get_logger("rover.retention")


class _Head(NamedTuple):
    """What the batch says with which a snapshot begins. `previous`: the snapshot before it, 0: none was ever taken."""

    previous: int
    time_ms: int
    log_bytes: int


class Retention:
    """Purges one log, and the facts under `filters`. `followers`: keys of those whose positions count."""

    def __init__(
        self,
        bus: Bus,
        journal: Journal,
        outbox: Outbox,
        keep: RetentionSettings,
        filters: Sequence[str],
        followers: list[str],
    ) -> None:
        self._bus, self._journal, self._outbox, self._keep = bus, journal, outbox, keep
        self._filters, self._followers = filters, followers
        self._heads: dict[int, _Head | None] = {}
        self._purged = 0  # our log is purged below this batch

    async def run(self) -> None:
        """Purge what is due, for ever."""
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self._round()
            except RoverError as error:
                log.warning("nothing is purged in this round", job=self._journal.job, why=str(error))

    async def _round(self) -> None:
        living = await positions.of_followers(self._bus, self._followers)
        before = await self._log_boundary(positions.floor(living, LOG, self._journal.subject))
        if before > self._purged:
            await self._bus.purge(LOG, self._journal.subject, before=before)
            self._purged = before
            self._heads = {at: head for at, head in self._heads.items() if at >= before}
        for subject, kept in await self._overfull():
            await self._purge_facts(subject, kept, positions.floor(living, FACTS, subject))

    # -- the log -----------------------------------------------------------------------------------------------------------

    async def _log_boundary(self, followed_to: int | None) -> int:
        """Return the snapshot before which nothing of the log is needed any more, 0 for none.

        From the newest snapshot backwards, as long as what lies before one is young and small enough, waits to be published, or
        was not read by a standby that follows.
        """
        journal, outbox = self._journal, self._outbox
        newest = await self._bus.last(LOG, journal.subject)
        if newest is None or not journal.snapshot:
            return 0
        needed = outbox.left.batch if outbox.waiting else journal.sequence
        if followed_to is not None:
            needed = min(needed, followed_to)
        at = journal.snapshot
        while True:
            head = await self._head(at)
            if head is None:
                return 0
            earlier = await self._head(head.previous) if head.previous else None
            begun_bytes = earlier.log_bytes if earlier is not None else 0
            young = newest.time_ms - head.time_ms < self._keep.log_age_s * 1000
            small = journal.log_bytes - begun_bytes <= self._keep.log_size_bytes
            if at <= needed and not (young and small):
                return at
            if not head.previous:
                return 0
            at = head.previous

    async def _head(self, at: int) -> _Head | None:
        """Return what the batch says with which a snapshot begins, None once it is purged."""
        if at not in self._heads:
            stored = await first_stored(self._bus, LOG, self._journal.subject, at)
            if stored is None or stored.sequence != at:
                self._heads[at] = None
            else:
                batch: Any = self._journal.decode(stored)
                self._heads[at] = _Head(batch.snapshot, stored.time_ms, batch.log_bytes)
        return self._heads[at]

    # -- facts -------------------------------------------------------------------------------------------------------------

    async def _overfull(self) -> list[tuple[str, Kept]]:
        """Return the subjects that may hold more than is kept of their kind, and the rule."""
        found: list[tuple[str, Kept]] = []
        for pattern in self._filters:
            for subject, stored in (await self._bus.subjects(FACTS, pattern)).items():
                parsed = subjects.parse(subject)
                kept = FACTS_KEPT.get(parsed.noun_verb, FOR_EVER) if parsed is not None else FOR_EVER
                if stored > SLACK * kept.newest if kept.newest else kept.age_s and stored > 1:
                    found.append((subject, kept))
        return found

    async def _purge_facts(self, subject: str, kept: Kept, followed_to: int | None) -> None:
        oldest, newest = await first_stored(self._bus, FACTS, subject), await self._bus.last(FACTS, subject)
        if oldest is None or newest is None:
            return
        before = await self._search(oldest.sequence, newest.sequence, await self._expendable(subject, kept))
        if followed_to is not None:
            before = min(before, followed_to + 1)
        if before <= oldest.sequence:
            return
        await positions.mark_purged(self._bus, subject, before)
        log.info("purges facts", job=self._journal.job, subject=subject, before=before)
        for at in [*range(oldest.sequence + STEP, before, STEP), before]:
            await self._bus.purge(FACTS, subject, before=at)
            await asyncio.sleep(PAUSE_S)

    async def _expendable(self, subject: str, kept: Kept) -> Expendable:
        """Return whether the rule lets the first fact on a subject go that is stored at a sequence or behind it."""
        bus = self._bus
        if kept.newest:

            async def is_one_too_many(sequence: int) -> bool:
                return await bus.count(FACTS, subject, first=sequence) > kept.newest

            return is_one_too_many
        newest = await bus.last(FACTS, ALL)
        horizon_ms = 0.0 if newest is None else newest.time_ms - kept.age_s * 1000

        async def is_too_old(sequence: int) -> bool:
            stored = await first_stored(bus, FACTS, subject, sequence)
            return stored is not None and stored.time_ms < horizon_ms

        return is_too_old

    @staticmethod
    async def _search(first: int, last: int, expendable: Expendable) -> int:
        """Return the lowest sequence in [first, last] that is not expendable; the last one never is. 20 questions a million."""
        while first < last:
            middle = (first + last) // 2
            if await expendable(middle):
                first = middle + 1
            else:
                last = middle
        return first
