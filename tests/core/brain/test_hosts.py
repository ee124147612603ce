"""How fast hosts are: what members show, what fades, whom it is held against; and which hosts a plan avoids."""

from __future__ import annotations

from math import log

import pytest

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.stragglers import WorkerPace
from rover_bus.brain.evolution import evolve
from rover_bus.brain.hosts import leave_slow_hosts, note_slow_hosts
from rover_bus.brain.log import JobGone, MembersSeen, WindowClosed, WorkerWindow
from rover_bus.brain.models.hosts import (
    MOST_MEMBERS,
    HostEvidence,
    add_residual,
    share_of,
    slowest,
    usual_pace,
)
from rover_bus.brain.replacing import replace_stragglers
from rover_bus.brain.rooms import free_of, named_hosts, place
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.watch import JobSamples
from rover_bus.events.facts import PlanProposed, Size, SlotsMoveRequested
from rover_bus.events.host_facts import HostSlow
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, WorkersSpec
from rover_bus.events.profiles import WorkerProfile

HOUR_S = 3600.0
FOUR = Size(workers=4, servers=2, worker_cores=1.0, server_cores=1.0)


def shown(*shares: float, windows: int = 3) -> HostEvidence:
    """Evidence of a host of which each member showed a share of the usual speed."""
    evidence: HostEvidence = {}
    for number, share in enumerate(shares):
        for _ in range(windows):
            add_residual(evidence, f"j/worker-{number}.1", log(share), 0.0)
    return evidence


@pytest.mark.parametrize(
    ("members", "share"),
    [
        ((), 1.0),
        ((0.5,), 1.0),  # one slow worker is a straggler
        ((0.5, 0.5), 0.5),
        ((0.5, 0.6, 0.7, 1.0), 0.7),
        ((0.5, 1.0, 1.0, 1.0), 1.0),
        ((0.1, 0.7, 0.7, 0.7), 0.7),  # one that hangs says nothing of how slow the host is
        ((1.5, 1.6), 1.0),  # faster than usual is usual
    ],
)
def test_a_host_is_as_fast_as_the_middle_of_its_members(members: tuple[float, ...], share: float) -> None:
    assert share_of(shown(*members), 0.0, HOUR_S) == pytest.approx(share)


def test_a_first_window_weighs_little_and_old_ones_fade() -> None:
    assert share_of(shown(0.5, 0.5, windows=1), 0.0, HOUR_S) == 1.0
    slow = shown(*[0.5] * 4)
    assert share_of(slow, HOUR_S, HOUR_S) == pytest.approx(0.5)
    assert share_of(slow, 2 * HOUR_S, HOUR_S) == 1.0


def test_the_slowest_members_are_named_first_and_no_usual_ones() -> None:
    assert slowest(shown(0.7, 1.0, 0.5), 0.8) == ["j/worker-2.1", "j/worker-0.1"]


def test_no_host_keeps_more_members_than_it_needs() -> None:
    evidence: HostEvidence = {}
    for number in range(MOST_MEMBERS + 5):
        add_residual(evidence, f"j/worker-{number}.1", 0.0, float(number))
    assert len(evidence) == MOST_MEMBERS
    assert "j/worker-4.1" not in evidence


def test_usual_is_what_hosts_reach_that_are_not_slow() -> None:
    paces = {"a": {0: log(100.0)}, "b": {1: log(50.0)}, "c": {2: log(50.0)}}
    assert usual_pace(paces, ["b", "c"]) == log(100.0)
    assert usual_pace(paces, []) == log(50.0)
    assert usual_pace({"a": {0: 0.0}, "b": {1: -1.0}}, []) == 0.0  # of two the faster


def cluster(where: dict[str, str], hosts: str = "ab", **more: object) -> BrainState:
    """One job with its members on these hosts, of eight cores each."""
    spec = JobSpec(
        name="j", program=["x"], data=DataSpec(train="t", batch_size=64), plan=PlanSpec(window_s=4.0)
    )
    job = KnownJob("u", spec, plan=1, held=FOUR, hosts=list(hosts), **more)  # type: ignore[arg-type]
    state = BrainState(jobs={"j": job})
    state.hosts = {host: HostCapacity(cores=8, memory_bytes=1 << 30) for host in hosts}
    evolve(
        state,
        MembersSeen(
            job="j", members_plan=1, members=[member(name) for name in where], hosts=list(where.values())
        ),
    )
    return state


def member(name: str, incarnation: int = 1) -> Member:
    role, _, index = name.partition("-")
    return Member(role, int(index), incarnation)  # type: ignore[arg-type]


def close(state: BrainState, paces: dict[str, float], times: int = 1) -> None:
    """Close windows in which each worker had this pace of its own."""
    workers = [
        WorkerWindow(member(name).index, member(name).incarnation, pace / 2, pace / 2, 0.0, pace)
        for name, pace in paces.items()
    ]
    for _ in range(times):
        evolve(state, WindowClosed(job="j", seconds=4.0, clean=True, workers=workers))


def test_a_worker_that_trains_on_until_its_successor_comes_is_counted_where_it_is() -> None:
    names = {"ps-0": "a", "worker-0": "a", "worker-1": "a"}
    state = cluster(names)
    alone = {host: free_of(host, state).cores for host in "ab"}
    each = state.jobs["j"].charge(FOUR).worker_cores
    moved = [member("ps-0"), member("worker-0"), member("worker-1", 2)]
    seen = MembersSeen(
        job="j",
        members_plan=2,
        members=moved,
        hosts=["a", "a", "b"],
        former=[member("worker-1")],
        former_hosts=["a"],
    )
    evolve(state, seen)
    assert each > 0
    assert free_of("a", state).cores == pytest.approx(alone["a"])
    assert free_of("b", state).cores == pytest.approx(alone["b"] - each)
    evolve(state, MembersSeen(job="j", members_plan=3, members=moved, hosts=["a", "a", "b"]))
    assert free_of("a", state).cores == pytest.approx(alone["a"] + each)


APART = {"ps-0": "a", "ps-1": "b", "worker-0": "a", "worker-1": "a", "worker-2": "b", "worker-3": "b"}
TOGETHER = dict.fromkeys(APART, "a")


def share(state: BrainState, host: str) -> float:
    return share_of(state.host_evidence.get(host, {}), state.clock_s, HOUR_S)


def paces(a: float, b: float) -> dict[str, float]:
    return {"worker-0": a, "worker-1": a, "worker-2": b, "worker-3": b}


def test_workers_beside_one_another_show_which_host_is_slow() -> None:
    state = cluster(APART)
    close(state, paces(100.0, 50.0), 6)
    assert (share(state, "a"), share(state, "b")) == (1.0, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("cores", "binds", "named"),
    [
        (8.0, True, True),
        (3.0, True, True),  # full, and each keeps to its own
        (3.0, False, False),
        (2.0, True, False),  # more is promised than there is
        (8.0, False, True),
    ],
)
def test_a_crowded_host_is_not_called_slow(cores: float, binds: bool, named: bool) -> None:
    state = cluster(APART)  # three members of one core on each
    state.hosts["b"] = HostCapacity(cores=cores, memory_bytes=1 << 30, cores_bind=binds)
    close(state, paces(100.0, 50.0), 6)
    assert any(isinstance(each, HostSlow) for each in note_slow_hosts("j", state.jobs["j"], state)) is named


def test_a_job_that_is_slow_everywhere_blames_no_host() -> None:
    state = cluster(APART)
    close(state, paces(100.0, 100.0), 6)
    close(state, paces(40.0, 40.0), 12)
    assert (share(state, "a"), share(state, "b")) == (1.0, 1.0)


def test_a_job_on_one_host_is_compared_with_its_own_past() -> None:
    state = cluster(TOGETHER)
    close(state, paces(100.0, 100.0), 6)
    close(state, paces(50.0, 50.0), 12)
    assert share(state, "a") == pytest.approx(0.5, abs=0.05)
    close(state, paces(100.0, 100.0), 12)
    assert share(state, "a") == pytest.approx(1.0, abs=0.05)


def test_what_servers_take_is_not_held_against_a_workers_host() -> None:
    """The worker's own pace leaves pulls and pushes out."""
    samples = JobSamples()
    state = cluster(TOGETHER)
    for at in (0.0, 2.0, 4.0):
        samples.observe(
            WorkerProfile(
                window_s=2.0,
                job="j",
                member=member("worker-0"),
                samples=100,
                batches=1,
                read_s=0.1,
                compute_s=0.4,
                pull_s=1.0,
                push_s=0.5,
            ),
            at,
        )
    state.jobs["j"].members = [member("worker-0")]
    window = samples.close("j", state.jobs["j"], 5.0)
    assert window is not None
    assert (window.workers[0].pace, window.workers[0].own) == (50.0, 200.0)


def test_plans_name_slow_hosts_last_and_take_them_only_where_the_others_are_full() -> None:
    state = cluster(dict.fromkeys(APART, "b"), hosts="abc")
    job = state.jobs["j"]
    assert place(job, FOUR.replace(workers=9), state).slow == []
    state.slow_hosts["a"] = 0.0
    assert named_hosts(job, state) == ["b", "c", "a"]
    assert place(job, FOUR.replace(workers=1), state).slow == ["a"]  # for the successors of lost members
    enough = place(job, FOUR.replace(workers=14), state)  # ten more: two and eight are free
    assert (enough.slow, sorted(enough.workers)) == (["a"], ["b"] * 2 + ["c"] * 8)
    full = place(job, FOUR.replace(workers=15), state)
    assert (full.slow, len(full.workers), "a" in full.workers) == ([], 11, True)
    state.slow_hosts |= {"b": 0.0, "c": 0.0}
    assert place(job, FOUR.replace(workers=5), state).slow == []  # all are slow: there is no other


def test_members_with_limits_go_where_their_job_runs_else_on_the_fewest_hosts_in_equal_shares() -> None:
    state = cluster(dict.fromkeys(APART, "b"), hosts="abc")
    job = state.jobs["j"]
    assert place(job, FOUR.replace(workers=6), state).workers == ["b", "b"]
    fresh = KnownJob("v", job.spec)
    state.jobs["k"] = fresh
    small = place(fresh, FOUR, state)
    assert (set(small.workers + small.servers), len(small.workers), len(small.servers)) == ({"a"}, 4, 2)
    large = place(fresh, FOUR.replace(workers=10), state)
    assert sorted(large.workers) == ["a"] * 5 + ["c"] * 5
    assert sorted(large.servers) == ["a", "c"]


def test_members_without_limits_are_spread() -> None:
    state = cluster({}, hosts="abc")
    assert place(state.jobs["j"], Size(workers=9, servers=2), state).workers == []


def test_two_plans_of_one_moment_do_not_take_the_same_room() -> None:
    state = cluster({}, hosts="ab")
    state.jobs["j"].held = None
    for name in ("j", "k"):
        state.jobs.setdefault(name, KnownJob("v", state.jobs["j"].spec))
        places = place(state.jobs[name], FOUR, state)
        plan = PlanProposed(
            job=name,
            plan=1,
            workers=4,
            servers=2,
            worker_cores=1.0,
            server_cores=1.0,
            hosts=["a", "b"],
            worker_hosts=places.workers,
            server_hosts=places.servers,
        )
        evolve(state, plan)
    assert {name: set(job.load) for name, job in state.jobs.items()} == {"j": {"a"}, "k": {"b"}}


def test_what_hosts_carry_is_what_their_members_are_counted_with() -> None:
    state = cluster(APART)
    assert state.host_load == {"a": (3.0, 0.0), "b": (3.0, 0.0)}
    evolve(state, JobGone(job="j"))
    assert state.host_load == {"a": (0.0, 0.0), "b": (0.0, 0.0)}


def ready(own: float, where: dict[str, str] = APART) -> BrainState:
    """Host `b` is slow for a while; of their time workers spend the share `own` on their own work."""
    state = cluster(where)
    close(state, paces(100.0, 50.0), 8)
    state.slow_hosts["b"] = 0.0
    job = state.jobs["j"]
    job.own_share, job.total, job.recent = own, 0, [300.0, 300.0]
    return state


@pytest.mark.parametrize(("own", "leaves"), [(1.0, 2), (0.5, 2), (0.1, 0)])
def test_workers_leave_when_their_own_work_is_what_takes_time(own: float, leaves: int) -> None:
    state = ready(own)
    said = [each for each in leave_slow_hosts("j", state.jobs["j"], state) if isinstance(each, PlanProposed)]
    assert sum(len(plan.replaces) for plan in said) == leaves
    assert all(plan.slow_hosts == ["b"] for plan in said)


def test_servers_leave_when_workers_wait_for_them() -> None:
    where = {**dict.fromkeys(APART, "a"), "ps-1": "b"}
    state = cluster(where)
    state.host_evidence["b"] = shown(0.5, 0.5)
    state.slow_hosts["b"] = -100.0
    job = state.jobs["j"]
    job.recent, job.own_share = [300.0, 300.0], 0.2
    [asked] = list(leave_slow_hosts("j", job, state))
    assert isinstance(asked, SlotsMoveRequested)
    assert asked.host == "b"
    job.own_share = 1.0
    assert not list(leave_slow_hosts("j", job, state))


@pytest.mark.parametrize(("share", "replaced"), [(0.5, 0), (0.35, 0), (0.25, 1)])
def test_a_straggler_that_is_as_slow_as_its_host_is_the_hosts_affair(share: float, replaced: int) -> None:
    """Its successor would find the same room: workers leave the host where there is a better one, all at once."""
    state = ready(1.0)
    job = state.jobs["j"]
    job.stragglers, job.paces = {2: Reason.STRAGGLER_REPLACE}, {2: WorkerPace(straggling=50, share=share)}
    plans = list(replace_stragglers("j", job, state))
    assert len(plans) == replaced


@pytest.mark.parametrize(
    ("training", "room", "leave"), [("synchronous", 1, 0), ("asynchronous", 1, 1), ("synchronous", 2, 2)]
)
def test_workers_that_wait_for_one_another_gain_when_the_last_slow_one_leaves(
    training: str, room: int, leave: int
) -> None:
    state = ready(1.0)
    job = state.jobs["j"]
    job.spec = job.spec.replace(workers=WorkersSpec(training=training))  # type: ignore[arg-type]
    state.hosts["a"] = HostCapacity(cores=3.0 + room, memory_bytes=1 << 30)  # three are taken there
    plans = [each for each in leave_slow_hosts("j", job, state) if isinstance(each, PlanProposed)]
    assert sum(len(plan.replaces) for plan in plans) == leave


def test_a_job_that_ends_soon_stays() -> None:
    state = ready(1.0)
    job = state.jobs["j"]
    job.total, job.committed, job.slowest_start_s = 1000, 0, 30.0  # three seconds are left
    assert not list(leave_slow_hosts("j", job, state))


def test_as_many_workers_leave_as_the_others_have_room_for() -> None:
    state = ready(1.0)
    state.hosts["a"] = HostCapacity(cores=4, memory_bytes=1 << 30)  # three are taken there
    [plan] = list(leave_slow_hosts("j", state.jobs["j"], state))
    assert isinstance(plan, PlanProposed)
    assert len(plan.replaces) == 1


def test_a_snapshot_keeps_what_is_known_of_hosts() -> None:
    state = cluster(TOGETHER)
    close(state, paces(100.0, 100.0), 6)
    close(state, paces(50.0, 50.0), 3)
    state.slow_hosts["a"] = 1.0
    decider = BrainDecider(7)
    decider.state = state
    body = decider.dump()
    decider.restore(body)
    assert decider.state == state
