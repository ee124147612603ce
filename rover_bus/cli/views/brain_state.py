"""What the Brain knows, read from its own log by its own code: for explanations, and for questions that start with "what if".

Fed by `rover.brain.log`; read by `rover explain` and `rover what-if`. A copy by construction: nothing that is done with it can
reach the Brain or a job, and it is there when the Brain is not.
"""

from __future__ import annotations

import math
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import BrainBatch, ClusterObserved, FreezeObserved, MembersSeen, WindowClosed
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.facts import PlanProposed, PlanWithheld
from rover_bus.events.journal import ChainBroken, Journal
from rover_bus.events.log import Record
from rover_bus.events.looks import open_read
from rover_bus.events.streams import LOG


@dataclass(slots=True)
class BrainCopy:
    """The Brain's state up to a point of its log. `before_plan`: the job as it was when a plan was made."""

    state: BrainState
    sequence: int
    before_plan: dict[tuple[str, int], bytes] = field(default_factory=dict)
    withheld: dict[str, PlanWithheld] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    said: int = 0  # words of people for the whole cluster

    def job_at(self, job: str, plan: int | None) -> KnownJob | None:
        """Return what the Brain knew of a job when it made a plan; None: of its present, or of a job that is over: nothing."""
        import msgspec

        if plan is None:
            return self.state.jobs.get(job)
        body = self.before_plan.get((job, plan))
        return None if body is None else msgspec.msgpack.decode(body, type=KnownJob)


async def read_brain(bus: Bus, job: str = "", until_ms: float = math.inf) -> BrainCopy:
    """Replay the Brain's log; of one job remember what was known before each of its plans. Raises LogDamaged.

    `until_ms`: only what was stored by then, Unix milliseconds.
    """
    import msgspec

    decider = BrainDecider(0)
    journal = Journal(
        bus, subjects.BRAIN_LOG, "brain", "reader", BrainBatch, lambda: time.time_ns() // 1_000_000
    )
    copy = BrainCopy(decider.state, 0)

    def note(record: Record) -> None:
        note_withheld(copy.withheld, record, decider.state)
        match record:
            case PlanProposed(job=name, plan=number) if name == job and job in decider.state.jobs:
                copy.before_plan[(job, number)] = msgspec.msgpack.encode(decider.state.jobs[job])
            case ClusterObserved() | FreezeObserved():
                copy.said += 1
            case WindowClosed(job=measured):
                copy.windows[measured] = copy.windows.get(measured, 0) + 1
            case _:
                pass  # the others do not matter here

    try:
        async with aclosing(open_read(bus, LOG, subjects.BRAIN_LOG, 1)) as reading:
            async for stored in reading:
                if stored.time_ms > until_ms:
                    break
                snapshot, records = journal.take(stored)
                if snapshot is not None:
                    decider.restore(snapshot)
                for record in records:
                    note(record)
                    decider.evolve(record)
    except ChainBroken as broken:
        raise await journal.judge(broken) from None
    copy.state, copy.sequence = decider.state, journal.sequence
    return copy


def note_withheld(withheld: dict[str, PlanWithheld], record: Record, before: BrainState) -> None:
    """Note why a job is left as it is, as far as that still holds after one more record. `before`: the state until then."""
    match record:
        case PlanProposed(job=name):
            withheld.pop(name, None)
        case MembersSeen(job=name, members=[_, *_]) if name in before.jobs and before.jobs[name].waits:
            withheld.pop(name, None)  # it waits no more: a master of 0.3.0 resumes a job by itself
        case PlanWithheld(job=name, asked_by=""):
            withheld[name] = record
        case _:
            pass  # it says nothing of this
