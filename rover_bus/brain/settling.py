"""From what a job wants to a plan, or to the word why there is none: the wish meets what others hold and what hosts have room for.

Fed by the decider with wishes (`wishes`, `choosing`, remedies); yields records. Which plan, `proposing` says; how much, `granting`.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import msgspec

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import grant_best
from rover_bus.brain.next_best import CHOSEN_BY_ROUNDS, gathered, next_in_room
from rover_bus.brain.proposing import propose, propose_first, shrink
from rover_bus.brain.rooms import moving_workers
from rover_bus.brain.rules import RULES
from rover_bus.brain.sizing import narrowed, size_to_begin_with
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.wishes import CapacityLeft, Wish, promise
from rover_bus.events import causes
from rover_bus.events.facts import PlanProposed, PlanWithheld, Size
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]
SCATTERED = "no host has room for the ring, and over several it is no faster"
TOO_LITTLE = "what hosts have room for of it would bring less than a change is worth"
TEACHES = (Reason.PROBE, Reason.CORES_USED_UP)

# Reasons that pass by themselves: not worth a record a window.
PASSING = frozenset(
    {
        Reason.CHANGE_IN_FLIGHT,
        Reason.COOLDOWN,
        Reason.NOT_ENOUGH_SAMPLES,
        Reason.KEEP,
        Reason.DECLINED,
        Reason.PAUSED,
    }
)


def settle(name: str, known: KnownJob, state: BrainState, models: StandingModels, wish: Wish) -> Steps:
    """Yield the plan for a wish, the shrinks that make room for it first, or why there is neither."""
    change = known.change
    if change is not None and change.waits and not _is_news(known, wish):
        return
    asked, promised = wish.size, wish.predicted
    in_room = partial(next_in_room, name, known, wish, state, models)
    granted, wish = grant_best(name, wish, state, state.quotas, in_room)
    if granted.size is None:
        assert granted.left is not None
        yield from withhold(name, known, granted.left, wish, granted.waits_for)
        return
    if granted.shrinks:
        waits = sorted(granted.shrinks)
        yield from withhold(
            name,
            known,
            CapacityLeft(Reason.WAITS_FOR_ROOM, f"{', '.join(waits)} shrinks first"),
            wish,
            waits,
        )
        for other, (size, constant, detail) in granted.shrinks.items():
            smaller = state.jobs[other]
            if smaller.change is None and smaller.held is not None:
                plan = shrink(other, smaller, state, size, constant, detail)
                yield plan.replace(cause=f"job:{known.uid}")
        return
    if granted.size.shape != asked.shape and promised:
        wish = promise(known, models.of(known), wish, granted.size)
        if _brings_too_little(wish, promised):
            yield from withhold(name, known, CapacityLeft(Reason.DOES_NOT_FIT_ANY_NODE, TOO_LITTLE), wish)
            return
    wanted = msgspec.structs.replace(wish, size=granted.size)
    closed = gathered(known, wanted, state, models)
    if closed is None:
        left = CapacityLeft(Reason.DOES_NOT_FIT_ANY_NODE, SCATTERED)
        yield from withhold(name, known, left, wanted)
        return
    wish = closed
    if known.held is None:
        plan = propose_first(name, known, state, wish)
        yield plan.replace(cause=f"job:{known.uid}")
    else:
        yield propose_because(name, known, state, wish, replaces=moving_workers(known, wish.size, state))


def _brings_too_little(wish: Wish, hoped: float) -> bool:
    """Whether what hosts have room for of a growth that was chosen for its throughput is not worth a change any more.

    `hoped`: what the whole of it was predicted to bring. A probe that is to teach teaches all the same.
    """
    chosen = wish.step in CHOSEN_BY_ROUNDS and wish.constant not in TEACHES and hoped > wish.measured > 0
    return chosen and wish.predicted < wish.measured * (1 + RULES.restraint.dead_band)


def propose_because(name: str, known: KnownJob, state: BrainState, wish: Wish, **more: Any) -> PlanProposed:
    """Return the plan for a wish, with its cause."""
    plan = propose(name, known, state, wish, **more)
    if wish.constant != Reason.STRAGGLER_REPLACE:
        return plan.replace(cause=known.after("cooldown"))
    # Optimus replaces by the window alone: a worker that its rule takes need not have been found to be a straggler.
    found = [member for member in plan.replaces if member.index in known.stragglers]
    return plan.replace(cause=causes.straggler(found[0]) if found else known.after("window"))


def withhold(
    name: str,
    known: KnownJob,
    left: CapacityLeft,
    wish: Wish | None = None,
    waits: list[str] | None = None,
) -> Steps:
    """Say why nothing is done when it is something else than last time; passing reasons are not worth a record."""
    wanted = f"{wish.size.workers}/{wish.size.servers}" if wish else ""
    if left.constant in PASSING or (known.said, known.waits_for) == ((left.constant, wanted), waits or []):
        return
    yield PlanWithheld(
        job=name,
        constant=left.constant,
        reason=left.detail,
        wanted=wish.size if wish else None,
        waits_for=waits or [],
        cause=known.after("window"),
    )


def make_room(name: str, known: KnownJob, state: BrainState, models: StandingModels) -> Steps:
    """Begin a job that the round found no room for with its least: equals that have more than theirs shrink for it."""
    size, decision = size_to_begin_with(known, state)
    if "sizes" not in state.rules_off:
        size = narrowed(size, known)  # the round had no room for it as it is
    wish = Wish(size=size, step="start", constant=decision.reason, detail=decision.detail)
    yield from settle(name, known, state, models, wish)


def seat_masters(name: str, known: KnownJob, state: BrainState) -> PlanProposed:
    """A plan without members for a job that was asked to end before its first plan: only its own master can end it."""
    wish = Wish(size=Size(workers=0, servers=0), step="start", constant=Reason.ASKED)
    plan = propose_first(name, known, state, wish)
    reason = "the job was asked to end before its first plan: its master starts, to end it"
    return plan.replace(reason=reason, cause=f"job:{known.uid}")


def _is_news(known: KnownJob, wish: Wish) -> bool:
    """Whether a wish says something that the plan which waits for a person does not: another size, or another snapshot."""
    change = known.change
    assert change is not None
    promised = abs(wish.predicted - change.predicted) > RULES.restraint.dead_band * max(
        change.predicted, 1e-9
    )
    return wish.size != change.after or change.members_plan != known.members_plan or promised
