"""What ended jobs outgrew of what their users had asked for, the next strangers begin with."""

from __future__ import annotations

import pytest

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob, UsualFactors, usual_factors
from rover_bus.brain.sizing import first_size
from rover_bus.brain.state import BrainState
from rover_bus.events import facts
from rover_bus.events.identity import HostCapacity
from rover_bus.events.inputs import Observed, TookOver
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

ASKED = Allocation(workers=4, servers=1, worker_cores=2.0, server_cores=8.0)
GREW = Allocation(workers=8, servers=2, worker_cores=8.0, server_cores=4.0)


def past(
    family: str, final: Allocation = GREW, asked: Allocation | None = ASKED, completed: bool = True
) -> PastJob:
    traits = JobTraits(family=family, dataset="t")
    return PastJob(job=family, traits=traits, final=final, ended_at_s=0.0, asked=asked, completed=completed)


def stranger(**workers: object) -> JobSpec:
    return JobSpec(
        name="new",
        program=["new"],
        data=DataSpec(train="new"),
        workers=WorkersSpec(**{"start": 3, "start_cores": 2.0, "cores": 1.0, "max_cores": 16.0, **workers}),  # type: ignore[arg-type]
        servers=RoleSpec(start=2, start_cores=4.0, cores=1.0, max_cores=16.0),
    )


def cluster(history: list[PastJob]) -> BrainState:
    return BrainState(
        hosts={"h": HostCapacity(cores=200, memory_bytes=1 << 40, cores_bind=True)}, past=history
    )


def test_a_stranger_begins_with_more_of_what_users_ask_too_little_of() -> None:
    history = [past(f"f{i}") for i in range(20)]
    size, decision, _ = first_size(stranger(), cluster(history))
    assert (size.workers, size.servers, size.worker_cores) == (4, 3, 6.0)
    assert size.server_cores == 4.0, (
        "where users ask for too much, rounds take it back and know what that costs"
    )
    assert "4 workers instead of 3" in decision.detail


def test_a_cluster_that_has_seen_nothing_begins_as_asked() -> None:
    assert first_size(stranger(), cluster([]))[0].workers == 3
    assert usual_factors([past("f", asked=None), past("g", completed=False)]) == UsualFactors()


def test_a_few_jobs_move_a_start_a_little_and_a_family_counts_once() -> None:
    one = usual_factors([past("f")] * 9)
    assert (one.workers, one.worker_cores) == (1.0, 1.5)
    many = usual_factors([past(f"f{i}") for i in range(9)])
    assert (many.workers, many.worker_cores) == (1.5, 3.0), "as if two more had asked rightly"


def test_nothing_is_multiplied_where_nothing_was_asked_for_or_the_user_fixed_it() -> None:
    history = [past(f"f{i}") for i in range(20)]
    assert first_size(stranger(start=0), cluster(history))[0].workers == 1
    assert first_size(stranger(count=3), cluster(history))[0].workers == 3
    assert first_size(stranger(max_count=4), cluster(history))[0].workers == 4


@pytest.mark.parametrize("moved", [False, True])
def test_only_jobs_whose_size_was_chosen_say_what_is_outgrown(moved: bool) -> None:
    brain = BrainDecider(1)
    brain.decide(TookOver("b", 1), 0.0)
    brain.decide(Observed(facts.JobSubmitted(job="new", spec=stranger(), uid="u"), "x"), 0.0)
    known = brain.state.jobs["new"]
    known.held, known.moves = facts.Size(workers=6, servers=2), int(moved)
    brain.decide(Observed(facts.JobEnded(job="new", state="completed"), "x"), 1.0)
    (ended,) = brain.state.past
    assert (ended.asked is not None) is moved
