"""Workers that were lost: whether their places are filled, decided once for all that went together (S20).

Fed by the decider with what masters named anew, feeds `settling` with a wish. A master follows a lost member at once and waits for
no Brain; where a place does not pay, the job is shrunk by it, and what has not joined yet is what leaves (`master/planning.py`).
Losses of whole hosts, where room itself is missing, are `silence`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import decide_loss
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.rules import rules_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import KnownJob, counted
from rover_bus.brain.wishes import Wish, declined, predicted, size_after, view_of
from rover_bus.events.facts import MembersDesired
from rover_bus.events.identity import FAULTS_OF_THE_PROGRAM, IN_ORDER, Member

LEAST_SAID = 0.0005  # of throughput
# Reasons of losses that are no doing of the cluster's: what the program did, what memory limits did, and what we did ourselves, as
# with all that wait in a step which one lost member broke: that one alone was taken.
OF_ITS_OWN = (
    FAULTS_OF_THE_PROGRAM
    | IN_ORDER
    | {"out_of_memory", "never_started", "restore_failed", "step_broken", "replaced"}
)


def lost_workers(known: KnownJob, fact: MembersDesired) -> list[str]:
    """Return the workers that a repair follows by other incarnations: no plan asked for it, so they were lost."""
    if fact.proposal:
        return []
    named = {desired.member.name: desired.member for desired in fact.members}
    return [member.name for member in known.members if _is_followed(member, named.get(member.name))]


def _is_followed(member: Member, successor: Member | None) -> bool:
    return member.role == "worker" and successor is not None and successor.incarnation > member.incarnation


def give_up_places(known: KnownJob, lost: Iterable[str], models: StandingModels) -> Wish | None:
    """Return the size without places that do not pay; None where all are filled, as the master does by itself."""
    held, model, names = known.held, models.of(known), sorted(lost)
    if held is None or known.change is not None or known.paused or not names:
        return None
    if isinstance(model, NotEnough) or known.spec.workers.count:
        return None
    decision = decide_loss(view_of(known), len(names), model, rules_of(known.spec.plan, models.hazard))
    size = size_after(held, decision.allocation)
    if size.workers < known.spec.workers.least:
        return None
    if decision.reason is not Reason.SHRINK_AFTER_LOSS or declined(known, size):
        return None
    middle, low, high = predicted(known, model, size)
    cost, speed = decision.scores["cost_saved"], decision.scores["throughput_lost"]
    less = f"{speed:.1%} less throughput" if speed >= LEAST_SAID else "no less throughput"
    return Wish(
        size=size,
        step="scale",
        constant=Reason.SHRINK_AFTER_LOSS,
        detail=f"{counted(len(names), 'worker')} lost: {cost:.0%} less cost without, {less}",
        measured=known.throughput,
        predicted=middle,
        low_90=low,
        high_90=high,
        scores={name: round(value, 6) for name, value in decision.scores.items()},
    )
