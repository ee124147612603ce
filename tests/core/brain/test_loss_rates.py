"""How often a cluster takes members is counted, not told; plans of many members are worth less where that is often."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from brain_states import cluster, runs, size
from rings_by_library import devices, ring, run, started

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import JobGone
from rover_bus.brain.models.hazard import PUBLISHED_PER_S, LossCount
from rover_bus.brain.v1 import Brain
from rover_bus.events.facts import JobEnded, MemberLost, MembersDesired
from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.inputs import Observed, Sampled, Ticked
from rover_bus.events.profiles import WorkerProfile

HOUR_S = 3600.0
OFTEN = 4  # members of a ring, each minute


def rate(count: LossCount) -> float:
    return count.hazard.failures_per_member_s


@pytest.mark.parametrize("true", [2.2e-6, 5e-5, 1e-3])
def test_what_is_believed_comes_to_what_happens(true: float) -> None:
    assert rate(LossCount()) == PUBLISHED_PER_S
    count, rng = LossCount(), np.random.default_rng(0)
    for _ in range(300):
        count = count.watch(100, HOUR_S, int(rng.poisson(true * 100 * HOUR_S)))
    assert true / 1.5 < rate(count) < true * 1.5


def test_where_none_is_lost_what_is_published_is_believed_for_good() -> None:
    assert LossCount().watch(1000, 1000 * HOUR_S, 0).hazard is LossCount().hazard, "no front is made again"


def test_what_is_believed_does_not_go_back_and_forth() -> None:
    true, count = PUBLISHED_PER_S * 2**2.5, LossCount()  # between two of the steps
    rng, seen = np.random.default_rng(1), list[float]()
    for _ in range(2000):
        count = count.watch(1000, 600.0, int(rng.poisson(true * 1000 * 600.0)))
        seen.append(rate(count))
    assert sum(one != other for one, other in pairwise(seen)) <= 4


def lose(brain: BrainDecider, reason: str, at: int) -> None:
    lost = MemberLost(job="one", member=Member("worker", 0, 1), reason=reason, position=(at, 0))
    brain.decide(Observed(lost, f"F:{at}"), 1.0)


def watched(reasons: list[str]) -> BrainDecider:
    brain = BrainDecider(1)
    brain.state = cluster(runs("one", size(2)), cores=16.0)
    for at, reason in enumerate(reasons, start=1):
        lose(brain, reason, at)
    return brain


def test_the_next_window_counts_what_the_cluster_took_and_no_fault_of_the_program() -> None:
    reasons = ["killed", "host_lost", "evicted", "failed", "crashed", "out_of_memory", "never_started"]
    reasons += ["step_broken"] * 7 + ["completed", "drained", "replaced", "restore_failed"]
    brain = watched(reasons)
    members = len(brain.state.jobs["one"].members)
    train(brain, 2, 80)
    assert brain.state.losses.lost == 3
    assert 30 * members <= brain.state.losses.member_s <= 80 * members


def train(brain: BrainDecider, since: int, until: int) -> None:
    workers = [member for member in brain.state.jobs["one"].members if member.role == "worker"]
    for second in range(since, until):
        for member in workers:
            profile = WorkerProfile(window_s=1.0, job="one", member=member, samples=100, batches=1)
            brain.decide(Sampled(profile), float(second))
        brain.decide(Ticked(), float(second))


@pytest.mark.parametrize("in_a_window", [False, True])
def test_time_before_a_change_counts_though_no_window_has_it(in_a_window: bool) -> None:
    brain = watched([])
    job = brain.state.jobs["one"]
    again = MembersDesired(
        job="one",
        term=1,
        plan=9,
        members=[DesiredMember(member=each, host="h", resources=Resources()) for each in job.members],
    )
    for second in (2.0, 22.0, 42.0):  # each begins another window
        brain.decide(Observed(msgspec.structs.replace(again, position=(int(second), 0)), "F:1"), second)
    if in_a_window:
        train(brain, 43, 52 + round(job.spec.plan.window_s))
        assert job.windows
        assert brain.state.losses.member_s >= (40 + job.clock_s - 1000.0) * len(job.members)
        return
    brain.decide(Observed(JobEnded(job="one", state="failed"), "F:9"), 52.0)
    assert brain.state.losses.member_s == pytest.approx(50 * len(job.members), rel=0.05)


def test_a_job_that_ends_by_its_losses_has_them_counted() -> None:
    brain = watched(["host_lost"])
    [gone] = brain.decide(Observed(JobEnded(job="one", state="failed"), "F:9"), 2.0).effects
    assert isinstance(gone, JobGone)
    assert brain.state.losses.lost == 1


def grown(members_lost: int) -> Brain:
    brain, now_s = started(ring("one")), 0.0
    for _ in range(30):
        if brain.placements["one"].worker_hosts and members_lost:
            brain.lost("one", now_s, members=members_lost)
        now_s = run(brain, 1, now_s)
    return brain


def test_a_job_is_smaller_where_members_are_lost_often() -> None:
    safe, risky = (len(grown(lost).placements["one"].worker_hosts) for lost in (0, OFTEN))
    assert safe > 10
    assert risky <= safe / 2


def test_hosts_that_go_take_members_and_a_memory_keeps_the_count() -> None:
    brain = started(ring("one", workers=4), hosts=2)
    now_s = run(brain, 5)
    [host] = brain.placements["one"].workers_by_host
    brain.set_hosts({name: each for name, each in devices(2).items() if name != host}, now_s)
    run(brain, 5, now_s)
    for known in (brain, Brain(memory=brain.memory())):
        assert known._decider.state.losses.lost == 4


def test_members_of_a_host_that_went_are_counted_once_though_their_scheduler_says_later_where_they_are() -> (
    None
):
    brain = Brain(at_once=False)
    brain.set_hosts(devices(2), 0.0)
    brain.submit(ring("one", workers=4), 0.0)
    [host] = brain.decide(0.0)["one"].workers_by_host
    rest = {name: each for name, each in devices(2).items() if name != host}
    for second in (10.0, 20.0, 30.0):
        brain.set_hosts(rest, second)
        brain.decide(second)
    brain.end("one", 40.0, completed=False)
    assert brain._decider.state.losses.lost == 4
