"""A person's plan passes the same limits, quota and capacity as any other; what stands against it is said in one line."""

from __future__ import annotations

import pytest
from life_of_jobs import GIB, Life

from rover_bus.brain.asked import refuse_size
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.state import BrainState, Change, KnownJob
from rover_bus.events import facts
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, WorkersSpec


def step(workers: int) -> float:
    return 3000.0 * workers


def running(cores: float = 8.0, **more: object) -> Life:
    life = Life(cores=cores, quotas={"t": Budget(4.0, 64 * GIB)})
    life.submit("j", step, workers=2, cores=1.0, **more)
    life.wait(20)
    return life


def ask(life: Life, **asked: object) -> list[facts.Fact]:
    """What leaves the Brain when ann asks."""
    before = len(life.facts)
    life.notice(facts.PlanRequested(job="j", by="ann", **asked))
    return life.facts[before:]


def test_what_passes_is_a_plan_that_needs_no_permission() -> None:
    life = running(plan={"mode": "observe"})
    plan, *_ = ask(life, workers=3)
    assert isinstance(plan, facts.PlanProposed)
    assert (plan.size.workers, plan.mode, plan.step, plan.by, plan.cause) == (
        3,
        "auto",
        "asked",
        "ann",
        "F:1",
    )
    assert life.jobs["j"].size == plan.size


@pytest.mark.parametrize(
    ("asked", "constant", "reason"),
    [
        (
            {"workers": 9},
            "limit_exceeded",
            "9 workers exceed the limit of 6: ask for 6 workers at the most, or submit it with a larger max_count in [workers]",
        ),
        (
            {"workers": 9, "beyond_limits": True},
            "no_capacity",
            "9 workers and 1 server need 9.2 cores, and the cluster has 8: ask for 7 workers at the most, or add a host, or make "
            "another job smaller",
        ),
        ({"workers": 2}, "already", "it has 2 workers and 1 server already"),
    ],
)
def test_what_does_not_pass_is_refused_with_limit_value_and_way_out(
    asked: dict[str, int], constant: str, reason: str
) -> None:
    life = running(max_workers=6)
    [refused] = ask(life, **asked)
    assert isinstance(refused, facts.PlanWithheld)
    assert (refused.constant, refused.reason, refused.asked_by, refused.cause) == (
        constant,
        reason,
        "ann",
        "F:1",
    )
    assert life.brain.state.jobs["j"].held == life.jobs["j"].size
    assert life.same()


def test_fifty_workers_against_a_quota_of_one_are_refused_by_the_quota() -> None:
    life = Life(cores=2.0, quotas={"t": Budget(1.0, 64 * GIB)})
    life.submit("j", step, plan={"tenant": "t"})
    life.wait(12)
    [refused] = ask(life, workers=50, trial=True)
    assert isinstance(refused, facts.PlanWithheld)
    assert refused.constant == "quota_exceeded"
    assert refused.reason.startswith(
        "50 workers and 1 server need 17.7 cores, and the quota of 't' has 1: ask for 2 workers at"
    )
    assert refused.reason.endswith("or raise it by `rover quota set t=CORES[:MEMORY]`")


def test_alone_on_a_host_it_is_refused_by_what_the_host_has() -> None:
    life = Life(cores=2.0)
    life.submit("j", step)
    life.wait(12)
    [refused] = ask(life, workers=50)
    assert isinstance(refused, facts.PlanWithheld)
    assert refused.constant == "no_capacity"


def test_a_refusal_leaves_what_the_brain_said_last_as_it_was() -> None:
    life = running(max_workers=6)
    said = life.brain.state.jobs["j"].said
    ask(life, workers=60)
    assert life.brain.state.jobs["j"].said == said


def test_a_job_that_waits_for_its_first_plan_is_told_so() -> None:
    life = Life(cores=2.0, quotas={"t": Budget(0.0, 0)})
    life.submit("j", step, plan={"tenant": "t"})
    [refused] = ask(life, workers=2)
    assert isinstance(refused, facts.PlanWithheld)
    assert refused.constant == "too_early"


def known(size: Size, tenant: str = "") -> KnownJob:
    spec = JobSpec(
        name="j",
        program=["x"],
        data=DataSpec(train="t"),
        workers=WorkersSpec(max_count=64),
        plan=PlanSpec(tenant=tenant),
    )
    return KnownJob(f"{size}", spec, plan=1, held=size)


def test_what_others_hold_is_named() -> None:
    small = Size(workers=1, servers=1, worker_cores=1.0, server_cores=1.0)
    own, other = known(small), known(small.replace(workers=4))
    state = BrainState(hosts={"h": HostCapacity(cores=8, memory_bytes=GIB)}, jobs={"j": own, "k": other})
    refused = refuse_size(own, small.replace(workers=4), state)
    assert refused == (
        "no_capacity",
        "4 workers and 1 server need 5 cores, and the cluster has 8, of which others leave 3: ask for 2 workers at the most, or "
        "add a host, or make another job smaller",
    )


def test_memory_counts_as_cores_do() -> None:
    size = Size(workers=1, servers=1, worker_cores=1.0, server_cores=1.0, worker_memory_bytes=GIB)
    own = known(size)
    state = BrainState(hosts={"h": HostCapacity(cores=8, memory_bytes=3 * GIB)}, jobs={"j": own})
    refused = refuse_size(own, size.replace(workers=4), state)
    assert refused is not None
    assert refused[1].startswith(
        "4 workers and 1 server need 4 GiB, and the cluster has 3: ask for 3 workers"
    )


def test_a_job_that_holds_more_than_there_is_may_still_shrink() -> None:
    own = known(Size(workers=9, servers=1, worker_cores=1.0, server_cores=1.0))
    state = BrainState(hosts={"h": HostCapacity(cores=2, memory_bytes=GIB)}, jobs={"j": own})
    assert own.held is not None
    assert refuse_size(own, own.held.replace(workers=8), state) is None
    assert refuse_size(own, own.held.replace(workers=10), state) is not None


def test_servers_without_a_limit_share_their_load() -> None:
    own = known(Size(workers=1, servers=1))
    own.cores_used = {"worker": 0.9, "ps": 0.9}
    state = BrainState(hosts={"h": HostCapacity(cores=2, memory_bytes=GIB)}, jobs={"j": own})
    assert refuse_size(own, Size(workers=1, servers=3), state) is None


def test_one_worker_more_without_a_limit_shares_a_busy_host_and_fifty_do_not() -> None:
    own = known(Size(workers=4, servers=1))
    own.cores_used = {"worker": 0.4, "ps": 0.2}
    state = BrainState(hosts={"h": HostCapacity(cores=2, memory_bytes=GIB)}, jobs={"j": own})
    assert refuse_size(own, Size(workers=5, servers=1), state) is None
    refused = refuse_size(own, Size(workers=50, servers=1), state)
    assert refused is not None
    assert refused[1].startswith(
        "50 workers and 1 server need 6.4 cores, and the cluster has 2: ask for 6 workers"
    )


def test_what_may_be_asked_for_is_no_less_than_the_least() -> None:
    own = known(Size(workers=4, servers=1, worker_cores=1.0, server_cores=1.0))
    own.spec = own.spec.replace(workers=WorkersSpec(max_count=64, min_count=3))
    state = BrainState(hosts={"h": HostCapacity(cores=8, memory_bytes=GIB)}, jobs={"j": own})
    assert own.held is not None
    refused = refuse_size(own, own.held.replace(workers=50), state)
    assert refused is not None
    assert "ask for 7 workers at the most" in refused[1]
    refused = refuse_size(own, own.held.replace(workers=2), state)
    assert refused is not None
    assert "at the most" not in refused[1]


def test_what_all_hosts_have_and_no_single_one_is_refused_by_what_the_roomiest_has() -> None:
    held = Size(workers=2, servers=1, worker_cores=1.5, server_cores=0.5)
    own = known(held)
    own.members = [Member("worker", 0, 1), Member("worker", 1, 1), Member("ps", 0, 1)]
    own.where = {"worker-0": "a", "worker-1": "b", "ps-0": "b"}
    hosts = dict.fromkeys("abc", HostCapacity(cores=2.9, memory_bytes=GIB))
    load = {"a": (1.5, 0.0), "b": (2.0, 0.0)}
    state = BrainState(hosts=hosts, jobs={"j": own}, host_load=load)
    assert refuse_size(own, held.replace(workers=3), state) is None
    assert refuse_size(own, held.replace(workers=4), state) == (
        "does_not_fit_any_node",
        "4 workers and 1 server need 1.5 cores a worker and 0.5 cores a server: the roomiest host has 2.9 and 1 GiB free: ask for "
        "3 workers at the most, or add a host, or make another job smaller",
    )
    state.hosts = {"a": HostCapacity(cores=9.0, memory_bytes=GIB)}
    state.host_load, own.where = {"a": (3.5, 0.0)}, dict.fromkeys(own.where, "a")
    assert refuse_size(own, held.replace(workers=4), state) is None


def held_on(hosts: dict[str, HostCapacity], where: dict[str, str], size: Size) -> tuple[KnownJob, BrainState]:
    own = known(size)
    own.members = [Member(*name.split("-"), 1) for name in where]  # type: ignore[arg-type]
    own.members = [Member(each.role, int(each.index), 1) for each in own.members]
    own.where = where
    return own, BrainState(hosts=hosts, jobs={"j": own})


def test_room_that_a_plan_under_way_keeps_refuses_no_other_plan() -> None:
    size = Size(workers=1, servers=1, worker_cores=1.0, server_cores=1.0)
    host = {"h": HostCapacity(cores=8, memory_bytes=GIB)}
    own, state = held_on(host, {"worker-0": "h", "ps-0": "h"}, size)
    state.host_load = {"h": (8.0, 0.0)}  # a plan for seven workers waits for a person
    own.change = Change(2, "scale", size, size.replace(workers=7), 0.0, 0.0, waits=True)
    assert refuse_size(own, size.replace(workers=6), state) is None


def test_a_worker_that_one_host_of_many_has_room_for_is_not_refused() -> None:
    size = Size(workers=1, servers=1, worker_cores=8.0, server_cores=1.0)
    narrow, wide = HostCapacity(cores=4, memory_bytes=64 * GIB), HostCapacity(cores=64, memory_bytes=GIB)
    own, state = held_on({"a": narrow, "big": wide, "h": wide}, {"worker-0": "h", "ps-0": "h"}, size)
    state.host_load = {"h": (64.0, 0.0)}
    assert refuse_size(own, size.replace(workers=2), state) is None


def test_the_most_that_may_be_asked_for_is_said_of_large_jobs_too() -> None:
    own = known(Size(workers=2000, servers=1, worker_cores=1.0, server_cores=1.0))
    own.spec = own.spec.replace(workers=WorkersSpec(max_count=9000))
    state = BrainState(hosts={"h": HostCapacity(cores=2600, memory_bytes=GIB)}, jobs={"j": own})
    assert own.held is not None
    refused = refuse_size(own, own.held.replace(workers=3000), state)
    assert refused is not None
    assert "ask for 2599 workers at the most" in refused[1]
