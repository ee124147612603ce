"""What a wish gets: at once where there is room for it beside all that runs, else by arbitration, which must agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rover_bus.brain import granting
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.granting import cores_left_for, grant, shrinks_after_loss
from rover_bus.brain.history import traits_of
from rover_bus.brain.sizing import first_size
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import present, totals_of
from rover_bus.brain.wishes import Wish, before_choice
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec

GIB = 1 << 30
SIZES = st.builds(
    Size,
    workers=st.integers(1, 6),
    servers=st.integers(1, 3),
    worker_cores=st.sampled_from([0.25, 0.5, 1.0]),
    server_cores=st.sampled_from([0.25, 0.5]),
    server_memory_bytes=st.sampled_from([0, GIB, 2 * GIB]),
)
HOST = Budget(8.0, 16 * GIB)
JOBS = st.lists(st.tuples(SIZES, st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


def job(size: Size | None, priority: int = 0, fixed: bool = False) -> KnownJob:
    spec = JobSpec(
        name="j",
        program=["train"],
        data=DataSpec(train="t", batch_size=100),
        workers=WorkersSpec(count=size.workers if fixed and size else 0),
        servers=RoleSpec(count=1),
        priority=priority,
    )
    return KnownJob("u", spec, plan=1, held=size)


def cluster(jobs: dict[str, KnownJob], cores: float = 8.0, memory_bytes: int = 16 * GIB) -> BrainState:
    return BrainState(hosts={"h": HostCapacity(cores=cores, memory_bytes=memory_bytes)}, jobs=jobs)


@given(JOBS, SIZES)
def test_a_wish_that_fits_is_granted_as_arbitration_would(
    running: list[tuple[Size, int, bool]], wanted: Size
) -> None:
    jobs = {f"j{at}": job(*each) for at, each in enumerate(running)}
    state, wish = cluster(jobs), Wish(size=wanted, step="scale", constant="x")
    # Arbitration begins with what is held. Where that is more than there is (memory, after a lost host) it takes workers from
    # others even for a wish that needs less; the way at once is right there, and the only one that is taken.
    assume(granting._fits(jobs["j0"].charge(running[0][0]), totals_of(state).beside("j0"), HOST))
    at_once = grant("j0", wish, state, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(granting, "_fits", lambda *_: False)
        assert grant("j0", wish, state, {}) == at_once


@given(JOBS)
def test_what_is_left_for_a_job_is_what_equals_and_betters_do_not_hold(
    running: list[tuple[Size, int, bool]],
) -> None:
    jobs = {f"j{at}": job(*each) for at, each in enumerate(running)}
    state = cluster(jobs)
    for name, one in jobs.items():
        first = [o for key, o in jobs.items() if key != name and o.spec.priority >= one.spec.priority]
        held = sum(other.cores_of(size) for other in first if (size := present(other)) is not None)
        assert cores_left_for(name, state, {}) == pytest.approx(8.0 - held)


@given(JOBS, st.sampled_from([2.0, 4.0, 8.0]))
def test_after_a_loss_workers_fit_into_what_is_left_and_nobody_shrinks_who_did_not_have_to(
    running: list[tuple[Size, int, bool]], cores: float
) -> None:
    jobs = {f"j{at}": job(*each) for at, each in enumerate(running)}
    state = cluster(jobs, cores)
    assert shrinks_after_loss(state, cores) == {}  # no host was lost: what runs is left alone
    state.shrinks = True
    sizes = {name: one.held for name, one in jobs.items() if one.held is not None} | shrinks_after_loss(
        state, cores
    )
    before = sum(one.cores_of(one.held) for one in jobs.values() if one.held is not None)
    after = sum(jobs[name].cores_of(size) for name, size in sizes.items())
    servers = sum(jobs[name].cores_of(size.replace(workers=0)) for name, size in sizes.items())
    assert after <= max(cores, servers) + 1e-9
    assert before > cores or after == before


@pytest.mark.parametrize("held", [None, Size(workers=1, servers=1, worker_cores=0.1, server_cores=0.1)])
@pytest.mark.parametrize(("priority", "paused"), [(0, 0), (1, 2)])
def test_no_job_is_paused_for_an_equal(held: Size | None, priority: int, paused: int) -> None:
    """More is held than there is (a change counts twice while it is on): what is small enough to fit pauses no equal."""
    large = Size(workers=1, servers=2, worker_cores=2.0, server_cores=1.0)
    small = Size(workers=1, servers=1, worker_cores=0.5, server_cores=0.5)
    state = cluster({"a": job(large), "b": job(large), "comes": job(held, priority)}, cores=5.5)
    granted = grant("comes", Wish(size=small, step="scale", constant="x"), state, {})
    assert [size.workers for size, _, _ in granted.shrinks.values()] == [0] * paused
    if not paused:
        assert granted.left is not None
        assert granted.left.constant == "no_capacity"
        assert granted.left.detail == "a would be paused for it: all that runs beside it has its least"


def test_members_without_a_limit_share_what_is_left_after_a_loss() -> None:
    busy = job(Size(workers=4, servers=1))
    busy.cores_used = {"worker": 0.6, "ps": 0.3}
    state = cluster({"j": busy}, cores=2.0)
    state.shrinks = True
    assert shrinks_after_loss(state, 2.0) == {}


def test_it_is_said_that_memory_does_not_fit_where_cores_would() -> None:
    holds = Size(workers=1, servers=1, worker_cores=0.5, server_cores=0.5, server_memory_bytes=12 * GIB)
    state = cluster({"runs": job(holds), "comes": job(None)})
    wish = Wish(size=holds, step="start", constant="x")
    left = grant("comes", wish, state, {}).left
    assert left is not None
    assert left.detail == "12.00 GiB more do not fit the cluster: 12.00 of 16.00 are taken"


def test_it_is_said_that_cores_do_not_fit_where_they_do_not() -> None:
    holds = Size(workers=5, servers=1, worker_cores=1.0, server_cores=0.5)
    state = cluster({"runs": job(holds, 1), "comes": job(None)}, cores=6.0)
    wish = Wish(size=holds.replace(workers=2), step="start", constant="x")
    left = grant("comes", wish, state, {}).left
    assert left is not None
    assert "cores more do not fit the cluster" in left.detail


def test_a_loss_takes_no_workers_from_those_without_a_limit_whatever_others_hold() -> None:
    limited = job(Size(workers=2, servers=2, worker_cores=1.0, server_cores=1.0))
    free = job(Size(workers=3, servers=1))
    free.cores_used = {"worker": 0.9, "ps": 0.9}
    state = cluster({"a": limited, "b": free}, cores=3.0)
    state.shrinks = True
    assert {name: size.workers for name, size in shrinks_after_loss(state, 3.0).items()} == {"a": 1}


def test_a_job_whose_workers_used_nothing_is_not_asked_how_many_more_would_fit() -> None:
    still = job(Size(workers=2, servers=1))
    still.cores_used = {"worker": 0.0, "ps": 0.1}
    still.rest = Size(workers=3, servers=1)
    answer = before_choice(still, 1.0, StandingModels())
    assert isinstance(answer, Wish)
    assert answer.size == still.rest


def past(workers: int, servers: int) -> PastJob:
    final = Allocation(workers=workers, servers=servers)
    return PastJob(job="old", traits=traits_of(of_ann()), final=final, ended_at_s=0.0)


def of_ann(**more: Any) -> JobSpec:
    return msgspec.structs.replace(job(None).spec, labels={"user": "ann"}, **more)


def role(count: int = 0, cores: float = 0.0, memory_bytes: int = 0) -> WorkersSpec:
    return WorkersSpec(count=count, cores=cores, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("workers", "servers", "ended", "start"),
    [
        (role(cores=1.0), role(cores=0.5), (4, 1), (1, 1)),  # 4.5 cores on 2
        (role(cores=0.25), role(cores=0.25), (12, 6), (5, 2)),  # by the same share
        (role(cores=0.1), role(cores=0.9), (1, 3), (1, 2)),
        (role(count=4, cores=0.25), role(cores=0.5), (4, 3), (4, 2)),
        (role(memory_bytes=3 * GIB), role(memory_bytes=GIB), (4, 1), (2, 1)),  # 13 GiB on 8
        (role(), role(), (5, 1), (5, 1)),  # members without a limit share what there is
        (role(cores=3.0), role(cores=1.0), (4, 4), (1, 1)),
    ],
)
def test_a_warm_start_is_cut_to_what_the_cluster_has_at_all(
    workers: WorkersSpec, servers: RoleSpec, ended: tuple[int, int], start: tuple[int, int]
) -> None:
    state = cluster({}, 2.0, 8 * GIB)
    state.past = [past(*ended)]
    size, decision, _ = first_size(of_ann(workers=workers, servers=servers), state)
    assert (size.workers, size.servers) == start
    assert ("cut from" in decision.detail) == (start != ended)


def test_a_job_without_servers_is_given_none() -> None:
    state = cluster({}, 2.0)
    state.past = [past(4, 1)]
    spec = of_ann(workers=role(cores=1.0), servers=RoleSpec(max_count=0))
    size, _, _ = first_size(spec, state)
    assert (size.workers, size.servers) == (2, 0)


def test_a_job_of_an_unknown_kind_begins_with_what_its_user_says() -> None:
    asked = WorkersSpec(start=5, max_count=4), RoleSpec(start=2)
    state = cluster({}, 32.0)
    size, decision, _ = first_size(of_ann(workers=asked[0], servers=asked[1]), state)
    assert (size.workers, size.servers, decision.reason) == (4, 2, "cold_start")
    state.past = [past(6, 1)]
    size, decision, _ = first_size(of_ann(workers=asked[0], servers=asked[1]), state)
    assert (size.workers, size.servers, decision.reason) == (4, 1, "warm_start")
    state.past = []
    size, _, _ = first_size(of_ann(workers=WorkersSpec(start=5, count=2), servers=asked[1]), state)
    assert size.workers == 2


@pytest.mark.parametrize(
    ("ended", "max_cores", "binds", "start"),
    [
        (4.0, 8.0, True, 4.0),
        (4.0, 2.0, True, 2.0),
        (0.5, 8.0, True, 1.0),
        (4.0, 0.0, True, 1.0),
        (4.0, 8.0, False, 1.0),
    ],
)
def test_a_warm_start_has_the_cores_that_similar_jobs_ended_with(
    ended: float, max_cores: float, binds: bool, start: float
) -> None:
    state = cluster({}, 32.0)
    state.hosts = {
        name: msgspec.structs.replace(host, cores_bind=binds) for name, host in state.hosts.items()
    }
    former = past(2, 1)
    state.past = [msgspec.structs.replace(former, final=former.final.replace(worker_cores=ended))]
    spec = of_ann(workers=WorkersSpec(cores=1.0, max_cores=max_cores), servers=RoleSpec(cores=1.0))
    assert first_size(spec, state)[0].worker_cores == start


def test_a_cold_start_has_the_cores_that_its_user_asked_for() -> None:
    state = cluster({}, 32.0)
    state.hosts = {name: msgspec.structs.replace(host, cores_bind=True) for name, host in state.hosts.items()}
    size, _, _ = first_size(of_ann(workers=WorkersSpec(cores=0.25, max_cores=8.0)), state)
    assert size.worker_cores == 0.25


@pytest.mark.parametrize(("asked", "start"), [(0.1, 1.0), (3.0, 3.0)])
def test_a_start_has_no_more_cores_than_there_are_unless_its_user_asks_for_them(
    asked: float, start: float
) -> None:
    state = cluster({}, 2.0)
    state.hosts = {name: msgspec.structs.replace(host, cores_bind=True) for name, host in state.hosts.items()}
    state.past = [past(1, 1)]
    state.past = [
        msgspec.structs.replace(each, final=each.final.replace(worker_cores=4.5)) for each in state.past
    ]
    spec = of_ann(workers=WorkersSpec(cores=asked, max_cores=64.0), servers=RoleSpec(cores=0.1))
    assert first_size(spec, state)[0].worker_cores == start


def test_no_cores_are_given_up_for_memory_that_is_not_there() -> None:
    state = cluster({}, 8.0, 2 * GIB)
    state.hosts = {name: msgspec.structs.replace(host, cores_bind=True) for name, host in state.hosts.items()}
    workers = WorkersSpec(count=4, cores=0.5, start_cores=2.0, max_cores=8.0, memory_bytes=GIB)
    size, decision, _ = first_size(of_ann(workers=workers, servers=RoleSpec(cores=0.1)), state)
    assert (size.worker_cores, "cores a worker" in decision.detail) == (2.0, False)


def test_a_warm_start_is_cut_to_its_tenants_quota() -> None:
    state = cluster({}, 8.0)
    state.past, state.started_quotas = [past(6, 1)], {"t": Budget(2.0, 8 * GIB)}
    spec = of_ann(workers=role(cores=0.5), plan=PlanSpec(tenant="t"))
    assert first_size(spec, state)[0].workers == 3


def test_a_start_that_no_ending_makes_room_for_is_refused_and_says_what_to_do() -> None:
    comes = job(None)
    comes.spec = msgspec.structs.replace(comes.spec, workers=role(1, 3.0), servers=role(1, 1.5))
    runs = job(Size(workers=1, servers=1, worker_cores=0.5, server_cores=0.5))
    state = cluster({"runs": runs, "comes": comes}, cores=2.0)
    size, _, _ = first_size(comes.spec, state)
    left = grant("comes", Wish(size=size, step="start", constant="x"), state, {}).left
    assert left is not None
    assert (left.constant, left.detail) == (
        "larger_than_cluster",
        "refused: 1 worker and 1 server need 4.5 cores, and the cluster has 2 in all: ask for less, or add a host",
    )


def test_a_warm_start_names_to_a_tenant_its_own_jobs_alone() -> None:
    state = cluster({}, 8.0)
    state.past = [
        msgspec.structs.replace(past(2, 1), job=each) for each in ("ads/former", "maps/secret", "loose")
    ]
    seen = {}
    for name in ("ads/new", "new"):
        _, decision, _ = first_size(of_ann(name=name), state)
        seen[name] = decision.detail
    assert "former (" in seen["ads/new"]
    assert seen["ads/new"].count("a job of another tenant") == 2
    assert not [name for name in ("secret", "loose", "maps") if name in seen["ads/new"]]
    assert "maps/secret" in seen["new"]


def test_a_tenant_that_waits_for_room_reads_whose_shrink_it_is_only_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Size(workers=1, servers=1, worker_cores=0.25, server_cores=0.25)
    state = cluster({"ads/new": job(None), "maps/secret": job(small)}, cores=0.6)
    coming = ["ads/old", "maps/secret", "maps/other"]
    monkeypatch.setattr(granting, "_room_to_come", lambda *_: coming)
    answer = grant("ads/new", Wish(size=small, step="start", constant=Reason.COLD_START), state, {})
    assert answer.waits_for == coming, "the Brain's own log has the names"
    assert answer.left is not None
    assert answer.left.detail == "old, a job of another tenant shrinks first"
