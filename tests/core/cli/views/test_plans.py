"""What people read of plans: one view a plan, from its facts, and their word on the one that waits."""

from __future__ import annotations

import pytest

from rover_bus.cli.views.narration import narrate
from rover_bus.cli.views.plans import PlanTable, change_text, size_text
from rover_bus.events import facts
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.facts import Fact, Size
from rover_bus.events.plan_facts import PlanStep

ONE, FOUR = Size(workers=1, servers=1), Size(workers=4, servers=1, worker_cores=0.5)


def proposed(plan: int, held: Size | None = None, workers: int = 1) -> facts.PlanProposed:
    return facts.PlanProposed(job="a", plan=plan, workers=workers, servers=1, held=held)


def told(*happened: Fact) -> PlanTable:
    plans = PlanTable("a")
    for at, fact in enumerate(happened, start=1):
        plans.take(fact, at)
    return plans


def test_a_plan_is_followed_through_its_life() -> None:
    plans = told(
        proposed(1),
        facts.PlanChecked(job="a", plan=1),
        facts.PlanApplied(job="a", plan=1, workers=1, servers=1),
        facts.PlanSettled(job="a", plan=1),
        proposed(2, ONE, 2),
        facts.PlanRefused(
            job="a", plan=2, reason="computed from member set 1", constant="membership_changed"
        ),
        proposed(3, ONE, 2),
        facts.PlanApplied(job="a", plan=3, workers=2, servers=1),
        facts.PlanRolledBack(
            job="a", plan=3, by_plan=4, constant="gain_too_small", before=10, after=11, predicted=20
        ),
    )
    assert {view.number: view.state for view in plans.by_number.values()} == {
        1: "live",
        2: "refused",
        3: "rolled back",
    }
    assert plans.find(3).undone_by == 4
    assert plans.find(2).why == "computed from member set 1"
    assert plans.find(1).applied_ms == 3


@pytest.mark.parametrize(
    ("step", "constant", "why"),
    [
        ("probe", "measured", "a trial: it was to be measured, and the next plan follows from that"),
        ("rollback", "measured", "what was held before"),
        ("asked", "measured", "as a person asked"),
        ("scale", "gain_confirmed", "gain_confirmed"),
        ("asked", "gain_confirmed", "gain_confirmed"),
    ],
)
def test_a_plan_that_is_kept_says_whether_it_had_to_gain_anything(
    step: PlanStep, constant: str, why: str
) -> None:
    """A probe is kept though the speed fell: that is what it was to find out."""
    plan = facts.PlanProposed(job="a", plan=1, workers=1, servers=1, step=step)
    kept = facts.PlanKept(job="a", plan=1, constant=constant, before=20, after=15, predicted=0)
    assert told(plan, kept).find(1).why == why
    words = "was to be measured, and is" if constant == "measured" else "is kept (gain_confirmed)"
    assert narrate(kept) == f"plan 1 {words}: 20 -> 15 samples/s"


def test_what_the_job_holds_is_the_last_plan_that_was_applied_not_the_last_that_was_said() -> None:
    plans = told(proposed(1), facts.PlanApplied(job="a", plan=1, workers=1, servers=1), proposed(2, ONE, 2))
    assert plans.newest is plans.find(None) is plans.find(2)
    assert plans.carried_out is plans.find(1)


def test_only_the_plan_that_waits_can_be_answered() -> None:
    plans = told(proposed(1), proposed(2, ONE, 2), facts.PlanChecked(job="a", plan=2, outcome="waits"))
    assert plans.waiting(None) is plans.waiting(2) is plans.find(2)
    with pytest.raises(Refused, match="plan 1 of 'a' is proposed; plan 2 waits"):
        plans.waiting(1)
    with pytest.raises(InputError, match=r"no plan 9 \(there is: 1, 2\)"):
        plans.waiting(9)
    with pytest.raises(Refused, match="no plan of 'a' waits"):
        told(proposed(1)).waiting(None)


def test_sizes_and_changes_are_said_in_words() -> None:
    assert size_text(FOUR) == "4 workers x 0.5 cores, 1 server"
    assert change_text(ONE, FOUR) == "workers 1 -> 4, cores a worker 0 -> 0.5"
    assert change_text(None, ONE) == "1 worker, 1 server"
    assert change_text(ONE, ONE) == "nothing"
