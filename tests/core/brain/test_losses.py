"""Workers that were lost: a place is filled unless it does not pay, and all that were lost together are one decision (S20)."""

from __future__ import annotations

import msgspec
import pytest
from brain_states import cluster, runs, size

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.losses import give_up_places, lost_workers
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import Change, KnownJob, TriedSize
from rover_bus.events.facts import MembersDesired, PlanProposed
from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.inputs import Observed, Ticked
from rover_bus.events.log import Record


def saturated(workers: int) -> KnownJob:
    """A job whose last workers bring next to nothing."""
    job = runs("one", size(workers))
    job.tried = [
        TriedSize(size=size(w), weight=3.0, mean=1 / (1 / (3600.0 * w) + 1 / 3600.0))
        for w in (1, 2, 4, 8, workers)
    ]
    job.recent = [job.tried[-1].mean] * 3
    return job


def followed(job: KnownJob, *lost: str, proposal: int = 0) -> MembersDesired:
    """What its master names when it follows lost members."""
    members = [
        msgspec.structs.replace(member, incarnation=member.incarnation + (member.name in lost))
        for member in job.members
    ]
    desired = [DesiredMember(member=member, host="h", resources=Resources()) for member in members]
    return MembersDesired(job="one", term=1, plan=9, members=desired, proposal=proposal)


def after(job: KnownJob, *facts: MembersDesired, ticks: int = 1) -> list[Record]:
    """What the Brain decides after some facts, and its next look."""
    decider = BrainDecider(1)
    decider.state = cluster(job, cores=16.0)
    records: list[Record] = []
    for number, fact in enumerate(facts):
        records += decider.decide(Observed(fact, f"F:{number}"), 1.0).effects
    for tick in range(ticks):
        records += decider.decide(Ticked(), 2.0 + tick).effects
    return records


def plans(records: list[Record]) -> list[PlanProposed]:
    """Those that answer a loss: a round may size the job as well."""
    all_plans = [record for record in records if isinstance(record, PlanProposed)]
    return [plan for plan in all_plans if plan.constant == "shrink_after_loss"]


def test_a_place_that_does_not_pay_is_given_up_and_the_plan_says_what_that_saves() -> None:
    job = saturated(16)
    (plan,) = plans(after(job, followed(job, "worker-3")))
    assert (plan.constant, plan.size.workers) == ("shrink_after_loss", 15)
    assert plan.reason.startswith("16 -> 15 workers and 1 server: 1 worker lost: 6% less cost without, ")
    assert plan.predicted > 0


def test_a_place_that_pays_is_left_to_the_master() -> None:
    job = runs("one", size(4))
    assert not plans(after(job, followed(job, "worker-3")))


def test_thirty_that_are_lost_one_after_another_are_one_plan() -> None:
    job = saturated(40)
    facts = [followed(job, *(f"worker-{i}" for i in range(n + 1))) for n in range(30)]
    (plan,) = plans(after(job, *facts, ticks=2))
    assert plan.constant == "shrink_after_loss"
    assert 10 <= plan.size.workers < 39
    assert "30 workers lost" in plan.reason


def test_what_a_plan_replaces_was_not_lost() -> None:
    job = saturated(16)
    assert lost_workers(job, followed(job, "worker-3", "ps-0")) == ["worker-3"]
    assert not lost_workers(job, followed(job, "worker-3", proposal=4))
    assert not plans(after(job, followed(job, "worker-3", proposal=4)))


@pytest.mark.parametrize("why", ["paused", "change", "pinned", "unknown"])
def test_a_job_that_is_not_open_is_left_to_the_master(why: str) -> None:
    job = saturated(16)
    if why == "paused":
        job.paused = True
    elif why == "change":
        job.change = Change(plan=4, step="scale", before=size(16), after=size(15), predicted=1.0, since_s=0.0)
    elif why == "pinned":
        job.spec = msgspec.structs.replace(
            job.spec, workers=msgspec.structs.replace(job.spec.workers, count=16)
        )
    else:
        job.tried = job.tried[:1]
    state = cluster(job, cores=16.0)
    assert give_up_places(job, ["worker-3"], StandingModels(state)) is None
    assert Member("worker", 3, 1) in job.members
