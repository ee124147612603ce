"""What a stack shows over HTTP, put together from the views of commands: the port of `web/port.py`, on a connection to the bus.

Fed by a picture that follows facts and samples, and by looks at what is there now; questions about one job read the streams, as its
command does. It decides nothing, and keeps nothing that a restart does not read again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from importlib.metadata import version

from rover_bus.cli.figures import Surroundings, figures_of
from rover_bus.cli.page_job import JobThen, PresentJob, job_shown
from rover_bus.cli.plan_words import answer_plan
from rover_bus.cli.views.hindrances import read_present
from rover_bus.cli.views.history import Happened, read_happened
from rover_bus.cli.views.moments import KeptReplays, read_state
from rover_bus.cli.views.past_job import KeptMoments
from rover_bus.cli.views.picture import KnownOfJob, Picture
from rover_bus.cli.views.records import event_record, event_text
from rover_bus.cli.views.stores import read_stores
from rover_bus.cli.views.stories import find_story
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, InputError
from rover_bus.events.looks import open_read
from rover_bus.events.streams import FACTS, LOG, PROFILES
from rover_bus.web.bodies import (
    ClusterShown,
    EventShown,
    HostShown,
    JobShown,
    StateShown,
    StoryStep,
)
from rover_bus.web.port import Figure

LOOK_S = 2.0  # between looks at what is there
SIZES_S = 15.0  # and at how much is stored
EVERYTHING = ">"
MOST_STEPS = 2000  # of a story
STEP = 256  # facts that are read at once, on the way back


@dataclass(slots=True)
class ShownStack:
    """One stack as HTTP shows it. `bus`: with the rights of what only looks, and of words on plans."""

    bus: Bus
    picture: Picture
    around: Surroundings
    timeline: int = 0
    replayed: bool = False
    replays: KeptReplays = field(default_factory=KeptReplays)
    moments: KeptMoments = field(default_factory=KeptMoments)

    @classmethod
    def on(cls, bus: Bus, store_limit_bytes: int = 0, timeline: int = 0) -> ShownStack:
        """Show what is on a bus. `store_limit_bytes`: of the broker; 0: not known. `timeline`: of the stack."""
        return cls(bus, Picture(), Surroundings(store_limit_bytes=store_limit_bytes), timeline)

    async def run(self) -> None:
        """Follow what happens, for ever. Raises BusError where the streams are not there."""
        await self.picture.follow(self.bus)
        sized_s = -math.inf
        while True:
            try:
                self.around.present = await read_present(self.bus)
                self.picture.hosts_seen |= dict.fromkeys(self.around.present.hosts, _now_ms())
                if time.monotonic() - sized_s >= SIZES_S:
                    self.around.stream_bytes = {
                        each: await self.bus.size(each) for each in (LOG, FACTS, PROFILES)
                    }
                    self.around.stores = await read_stores(self.bus)
                    sized_s = time.monotonic()
                self.replayed = True
            except BusError:
                pass  # the next look may succeed; readiness says that the broker is away
            await asyncio.sleep(LOOK_S)

    # what is there

    @property
    def ready(self) -> bool:
        return self.replayed and self.bus.connected

    @property
    def sequence(self) -> int:
        return self.picture.sequence

    def figures(self) -> list[Figure]:
        self.around.now_ms, self.around.connected = _now_ms(), self.bus.connected
        return figures_of(self.picture, self.around)

    def cluster(self) -> ClusterShown:
        members = Counter(
            process.host for known in self.picture.jobs.values() for process in known.members.running.values()
        )
        hosts = [
            HostShown(
                host=host.host,
                cores=host.cores,
                cores_used=host.cores_used,
                memory_bytes=host.memory_bytes,
                memory_used_bytes=host.memory_used_bytes,
                members=members[host.host],
            )
            for host in self.picture.hosts.values()
            if host.host in self.around.present.hosts
        ]
        return ClusterShown(
            sequence=self.sequence,
            release=version("rover-bus"),
            brain=self.around.present.brain,
            hosts=sorted(hosts, key=lambda each: each.host),
            jobs=dict(Counter(known.state for known in self.picture.jobs.values())),
        )

    # jobs

    def jobs(self) -> list[JobShown]:
        return [
            job_shown(known, known.row, known.state, self.sequence) for known in self.picture.jobs.values()
        ]

    async def of_job(self, job: str, at: int | None) -> PresentJob | JobThen:
        known = self._known(job)
        if at is None:
            return PresentJob(known, self.sequence, self.bus, self.picture)
        past = self.moments.take(self.bus, job, at, known)
        return JobThen(await past.known(), past, self.bus, self.picture.places)

    def _known(self, job: str) -> KnownOfJob:
        known = self.picture.jobs.get(job)
        if known is None:
            raise InputError(f"there is no job {job!r} (`rover jobs` lists them)")
        return known

    async def state(self, job: str, at: int | None) -> StateShown:
        known = self._known(job)
        if at is not None:
            return await self.moments.take(self.bus, job, at, known).state()
        tenant, bare = subjects.split_job(job)
        return await read_state(self.bus.of(tenant), bare, None, self.replays)

    # events

    async def past(self, job: str, before: int | None, count: int) -> list[EventShown]:
        end = self.sequence + 1 if before is None else before
        at_hand = [each for each in self.picture.recent if each.stored.sequence < end]
        begins = at_hand[0].stored.sequence if at_hand else end
        found = [each for each in at_hand if _is_of(each, job)]
        if len(found) < count:
            found = await self._before(job, begins, count - len(found)) + found
        return [shown(each) for each in _last(found, count)]

    async def _before(self, job: str, end: int, count: int) -> list[Happened]:
        """Return the last facts before a sequence: of a job what its own subject has, without reading what others' have."""
        if job:
            return [each async for each in self._read(1, end, _subject_of(job))]
        found, first = list[Happened](), end
        while len(found) < count and first > 1:
            last, first = first, max(1, first - max(count, STEP))
            found = [each async for each in self._read(first, last)] + found
        return found

    async def _read(self, first: int, end: int, subject: str = EVERYTHING) -> AsyncGenerator[Happened, None]:
        async with aclosing(open_read(self.bus, FACTS, subject, first)) as reading:
            async for stored in reading:
                if stored.sequence >= end:
                    return
                yield read_happened(stored)

    async def events(self, job: str, after: int | None) -> AsyncGenerator[EventShown, None]:
        position = self.sequence if after is None else after
        while True:
            await self.picture.beyond(position)
            recent = list(self.picture.recent)
            if recent and recent[0].stored.sequence > position + 1:
                with suppress(
                    BusError
                ):  # the broker is away: what was read until then is passed on, and the rest is read again
                    async for each in self._read(position + 1, recent[0].stored.sequence):
                        position = each.stored.sequence
                        if _is_of(each, job):
                            yield shown(each)
                    position = max(position, recent[0].stored.sequence - 1)
                if position + 1 < recent[0].stored.sequence:
                    await asyncio.sleep(LOOK_S)
                    continue
            for each in recent:
                if each.stored.sequence > position:
                    position = each.stored.sequence
                    if _is_of(each, job):
                        yield shown(each)

    async def story(self, event: str) -> list[StoryStep]:
        told = await find_story(self.bus, event)
        return [StoryStep(depth=depth, why=why, event=shown(each)) for depth, why, each in told[:MOST_STEPS]]

    # words

    async def answer(self, job: str, number: int, reason: str, by: str, *, yes: bool) -> str:
        self._known(job)
        tenant, bare = subjects.split_job(job)
        return await answer_plan(self.bus.of(tenant), bare, number, (by, reason), yes=yes)


def shown(happened: Happened) -> EventShown:
    """Return one fact as it is shown."""
    record = event_record(happened)
    parsed = subjects.parse(happened.stored.subject)
    return EventShown(
        sequence=happened.stored.sequence,
        id=happened.id,
        subject=happened.stored.subject,
        kind=parsed.noun_verb if parsed is not None else "",
        job=happened.job,
        time_ms=happened.stored.time_ms,
        cause=record["cause"],
        text=event_text(happened),
        body=record["body"],
    )


def _last(found: list[Happened], count: int) -> list[Happened]:
    return found[len(found) - min(count, len(found)) :]


def _subject_of(job: str) -> str:
    """Return the filter for the facts of a job, wherever its account is."""
    tenant, bare = subjects.split_job(job)
    own = subjects.job_facts(bare)
    return own if tenant == subjects.DEFAULT_TENANT else subjects.of_tenant(tenant, own)


def _is_of(happened: Happened, job: str) -> bool:
    return not job or happened.job == job


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
