"""A job at one moment of its log: its state after a record, read as a master that takes over reads it, and no further.

Fed by the LOG stream; feeds `rover replay` and the page's slider with one answer, so that they cannot differ. A replay begins
with the newest snapshot that was complete by then; what is older than the first kept one is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.journal import ChainBroken, Journal, LogDamaged
from rover_bus.events.leadership import Deposed
from rover_bus.events.log import LogBatch
from rover_bus.events.looks import first_stored, open_read
from rover_bus.events.streams import LOG
from rover_bus.master.evolution import evolve
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import name_of
from rover_bus.master.state import AnyState, State, Unopened, load
from rover_bus.web.bodies import LedgerShown, MomentOfLog, StateShown

MOST_KEPT = 8
MOST_INTERVALS = 500  # of one kind, that a map shows apart
Interval = tuple[int, int]


@dataclass(slots=True)
class _Replay:
    """A log read from some batch on. `whole`: the first moment with a state; None before one is there."""

    journal: Journal
    state: AnyState
    whole: Stored | None = None
    last: Stored | None = None

    @classmethod
    def of(cls, bus: Bus, job: str) -> _Replay:
        subject = subjects.job_log(job)
        return cls(Journal(bus, subject, job, "reader", LogBatch, lambda: 0), Unopened())

    def take(self, stored: Stored) -> None:
        snapshot, records = self.journal.take(stored)
        if snapshot is not None:
            self.state = load(snapshot)
        if self.whole is None and (snapshot is not None or self.journal.is_whole):
            self.whole = stored
        for record in records:
            self.state = evolve(self.state, record)
        self.last = stored

    async def read(self, first: int, upto: int, *, only_begin: bool = False) -> None:
        """Take in what is stored from one sequence up to another; with `only_begin` no more than makes a state."""
        journal = self.journal
        try:
            async with aclosing(open_read(journal.bus, LOG, journal.subject, first)) as reading:
                async for stored in reading:
                    if stored.sequence > upto or (only_begin and self.whole is not None):
                        return
                    self.take(stored)
        except ChainBroken as broken:
            raise await journal.judge(broken) from None


class KeptReplays:
    """Replays of the present that go on where they ended: of the jobs that were looked at last."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Replay] = {}

    def take(self, bus: Bus, job: str) -> _Replay | None:
        """Return the replay of a job, which is its taker's until it is put back."""
        return self._kept.pop((bus.tenant, job), None)

    def put(self, bus: Bus, job: str, replay: _Replay) -> None:
        self._kept[bus.tenant, job] = replay
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]


async def read_state(bus: Bus, job: str, at: int | None, kept: KeptReplays | None = None) -> StateShown:
    """Return a job's state after the last record up to sequence `at` of the log's stream; None: the present.

    `kept`: the present is read on from where the last look at it ended.

    Raises InputError where there is no log, Refused for a moment before the first that is kept, LogDamaged.
    """
    subject = subjects.job_log(subjects.name(job, "job"))
    newest = await bus.last(LOG, subject)
    if newest is None:
        raise InputError(f"there is no job {job!r} with a log (`rover jobs` lists them)")
    upto = newest.sequence if at is None else min(at, newest.sequence)
    first = await _first_moment(bus, job, newest.sequence)
    if upto < first.sequence:
        raise Refused(
            f"sequence {upto} of {job} is not kept: the first moment is {first.sequence}, of {_utc(first.time_ms)}",
            "not_kept",
        )
    going_on = kept.take(bus, job) if kept is not None and at is None else None
    replay = await _read_on(going_on, first.sequence, upto) if going_on is not None else None
    if replay is None:
        replay = _Replay.of(bus, job)
        beginning = await _beginning(bus, replay.journal, upto, newest)
        await replay.read(max(beginning, 1), upto)
    if kept is not None and at is None:
        kept.put(bus, job, replay)
    last = replay.last or newest
    return _shown(
        job, replay.state, last, (first, MomentOfLog(sequence=newest.sequence, time_ms=newest.time_ms))
    )


async def _read_on(replay: _Replay, first: int, upto: int) -> _Replay | None:
    """Go on with a replay; None where the log is not any more what it was: it was purged, lost its tail, or is another job's."""
    known = replay.journal.sequence
    if not first <= known <= upto:
        return None
    try:
        await replay.read(known + 1, upto)
    except (Deposed, LogDamaged):
        return None
    return replay


async def _first_moment(bus: Bus, job: str, upto: int) -> MomentOfLog:
    beginning = _Replay.of(bus, job)
    await beginning.read(1, upto, only_begin=True)
    whole = beginning.whole
    if whole is None:
        raise Refused(f"the log of {job} has no whole state yet: ask again in a second", "not_kept")
    return MomentOfLog(sequence=whole.sequence, time_ms=whole.time_ms)


async def _beginning(bus: Bus, journal: Journal, upto: int, newest: Stored) -> int:
    """Return where the newest snapshot begins that was complete with `upto`: the batch behind it names it."""
    behind = newest if upto >= newest.sequence else await first_stored(bus, LOG, journal.subject, upto + 1)
    return int(journal.decode(behind or newest).snapshot)


def _shown(job: str, state: AnyState, last: Stored, kept: tuple[MomentOfLog, MomentOfLog]) -> StateShown:
    at = MomentOfLog(sequence=last.sequence, time_ms=last.time_ms)
    opened = state if isinstance(state, State) else None
    ledger = opened.ledger if opened is not None else None
    committed, dead = ledger.samples_done() if ledger is not None else (0, 0)
    waiting = state.plans.waiting
    routing = opened.slots.routing if opened is not None else None
    return StateShown(
        job=job,
        at=at,
        first=kept[0],
        newest=kept[1],
        phase=name_of(opened.phase) if opened is not None else "submitted",
        paused=opened is not None and opened.paused,
        term=state.term,
        generation=opened.generation if opened is not None else 0,
        members=sorted(str(each.member) for each in opened.seats.admitted.values()) if opened else [],
        plan=state.plans.applied,
        waiting_plan=waiting.plan if waiting is not None else None,
        committed=committed,
        dead_lettered=dead,
        total=ledger.samples_total if ledger is not None else 0,
        ledger=_ledger(ledger) if ledger is not None and ledger.epoch >= 0 else None,
        slots=list(routing.owners) if routing is not None else [],
        checkpoints={str(each.number): each.state for each in opened.cuts.known.values()} if opened else {},
        counts=msgspec.to_builtins(state.counts),
    )


def _ledger(ledger: Ledger) -> LedgerShown:
    leases = sorted(
        (lease.first, lease.end) for holder in ledger.holders.values() for lease in holder.leases.values()
    )
    kinds = [list(ledger.done), _joined(leases, 0), list(ledger.returned)]
    shown = [_thinned(each) for each in kinds]
    return LedgerShown(
        epoch=ledger.epoch,
        batches=ledger.batches,
        frontier=ledger.frontier,
        committed=shown[0],
        leased=shown[1],
        returned=shown[2],
        dead=sorted(ledger.dead)[:MOST_INTERVALS],
        committed_batches=ledger.done.total - len(ledger.dead),
        leased_batches=sum(end - first for first, end in kinds[1]),
        returned_batches=ledger.returned.total,
        coarse=shown != kinds,
    )


def _joined(intervals: Iterable[Interval], gap: int) -> list[Interval]:
    """Return ascending intervals with those as one that are no further apart than `gap`; those that overlap, too."""
    joined: list[Interval] = []
    for first, end in intervals:
        if joined and first <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return joined


def _thinned(intervals: list[Interval]) -> list[Interval]:
    gap = 1
    while len(intervals) > MOST_INTERVALS:
        intervals, gap = _joined(intervals, gap), 2 * gap
    return intervals


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
