"""Decisions to begin with the first servers of a job while others are on their way (docs/design/0046). Generators of records.

Fed by the decider's ticks; feeds `rollout`, which moves slots to the others as they arrive. Apart from `lifecycle`, which routes a
job once all of its servers are there: here time matters, so that servers that come together need no moves.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events import causes
from rover_bus.events.facts import RoutingChanged
from rover_bus.events.log import Record
from rover_bus.master import rollout, slots, withdrawing
from rover_bus.master.phases import Starting
from rover_bus.master.state import State
from rover_bus.master.stepping import StepClock

AFTER_S = (
    1.0  # that a worker and a server have waited for the others: those that come within it need no moves
)
REASON = "the first servers begin"

Steps = Generator[Record, None, None]


def tick(state: State, clock: StepClock, now: float) -> Steps:
    """Route all slots to the servers that are there, once a worker has waited for the others for a moment; then spread them."""
    wanted = state.seats.wanted_servers()
    there = sorted(index for index, desired in wanted.items() if state.seats.has(desired.member))
    if not _may_begin(state) or not there or len(there) == len(wanted):
        return
    if not withdrawing.has_its_least(state, there):
        return
    if clock.waited("first servers", state.seats.plan, now) < AFTER_S:
        return
    cause = causes.timer("first servers", causes.job(state.job.uid))
    goal = slots.share_out(sorted(wanted))
    admitted = {seated.member.index: seated for seated in state.seats.servers()}
    yield RoutingChanged(
        generation=state.generation,
        epoch=1,
        owners=slots.stand_in(goal, there),
        servers=[rollout.address(admitted[index]) for index in there],
        early_bytes=min(wanted[index].resources.memory_bytes for index in there),
        cause=cause,
    )
    joins = [index for index in sorted(wanted) if index not in there]
    asked = rollout.Origin(REASON, plan=state.plans.applied, first=True)
    yield rollout.opened(state, slots.expand(goal), asked, cause, joins)


def _may_begin(state: State) -> bool:
    """Whether the job starts from nothing, and a worker is there to train.

    One that goes back to a checkpoint, or starts from another job's, has its rows where they are restored. One that lost a server
    waits for all of them: what the first one holds alone goes with it.
    """
    from_nothing = (
        state.job.spec.start_from is None and not state.cuts.back.servers and not state.counts.servers_lost
    )
    return (
        isinstance(state.phase, Starting)
        and state.job.spec.moves.first_begins
        and from_nothing
        and not state.slots.owners
        and state.slots.interrupted is None
        and not state.ending.stop
        and not state.paused
        and bool(state.seats.workers())
    )
