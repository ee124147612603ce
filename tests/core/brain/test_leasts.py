"""A least of each role: a job begins with so many or with nothing, and is never made smaller than that (docs/design/0065)."""

from __future__ import annotations

from typing import Any

import pytest
from brain_states import cluster as hosts_and_jobs
from brain_states import round_of, runs, size, waits
from hypothesis import given, settings
from hypothesis import strategies as st
from life_of_jobs import Life

from rover_bus.brain.asked import refuse_size
from rover_bus.brain.decisions.hot_servers import ServerLoad, decide_hot_servers
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits
from rover_bus.brain.granting import grant, shrinks_after_loss
from rover_bus.brain.losses import give_up_places
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.wishes import Wish
from rover_bus.events import facts
from rover_bus.events.facts import Size
from rover_bus.events.host_facts import HostMemberStalled, HostRegistered
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec

GIB = 1 << 30


def spec_of(workers: int, servers: int = 1, **more: Any) -> JobSpec:
    return JobSpec(
        name="j",
        program=["train"],
        data=DataSpec(train="t", batch_size=100),
        workers=WorkersSpec(min_count=workers, cores=1.0, max_count=16),
        servers=RoleSpec(min_count=servers, cores=1.0, max_count=8),
        **more,
    )


def begun(spec: JobSpec, hosts: list[float], others: int = 0) -> Life:
    """A cluster with hosts of so many cores, on which others of a core run, and the job that is submitted to it."""
    life = Life(cores=hosts[0], memory_bytes=64 * GIB)
    for at, cores in enumerate(hosts[1:]):
        capacity = HostCapacity(cores=cores, memory_bytes=64 * GIB, cores_bind=True)
        life.notice(HostRegistered(host=f"h{at}", daemon="d", capacity=capacity))
    for at in range(others):
        life.submit(f"o{at}", lambda workers: 3600.0 * workers, workers=1, servers=1, cores=1.0)
    life.hand_in(spec, lambda workers: 3600.0 * workers)
    life.wait(4)
    return life


def plans(life: Life) -> list[facts.PlanProposed]:
    return [plan for plan in life.found(facts.PlanProposed) if plan.job == "j"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_a_start_is_the_least_of_each_role_at_least_or_none(
    hosts: list[float], workers: int, servers: int, others: int
) -> None:
    life = begun(spec_of(workers, servers), hosts, others)
    first = plans(life)[:1]
    room = sum(int(cores) for cores in hosts)
    if first:
        assert first[0].workers >= workers
        assert first[0].servers >= servers
        assert first[0].workers + first[0].servers <= room
    elif not others:
        assert workers + servers > room, "there was room for its least"


def test_a_job_that_waits_for_its_least_says_for_what_and_starts_when_there_is_room() -> None:
    life = begun(spec_of(4), [3.0])
    assert plans(life) == []
    (said,) = [fact for fact in life.found(facts.PlanWithheld) if fact.job == "j"]
    assert said.constant == Reason.LARGER_THAN_CLUSTER
    assert "4 workers and 1 server need 5 cores" in said.reason
    capacity = HostCapacity(cores=4.0, memory_bytes=64 * GIB, cores_bind=True)
    life.notice(HostRegistered(host="more", daemon="d", capacity=capacity))
    life.wait(4)
    assert (plans(life)[0].workers, plans(life)[0].servers) == (4, 2)  # a server to every four cores


def test_a_job_that_is_alone_waits_where_no_host_has_room_for_its_least() -> None:
    spec = spec_of(3).replace(workers=WorkersSpec(min_count=3, cores=2.0, max_count=8))
    life = begun(spec, [3.0, 3.0, 3.0])
    assert len(plans(life)) == 1
    life = begun(spec.replace(servers=RoleSpec(min_count=1, cores=2.0)), [3.0, 3.0, 3.0])
    assert plans(life) == []
    assert [each.constant for each in life.found(facts.PlanWithheld)] == [Reason.DOES_NOT_FIT_ANY_NODE]


def held(workers: int, spec: JobSpec, servers: int = 1) -> KnownJob:
    size = Size(workers=workers, servers=servers, worker_cores=1.0, server_cores=1.0)
    return KnownJob("u", spec, plan=1, held=size)


def cluster(jobs: dict[str, KnownJob], cores: float) -> BrainState:
    return BrainState(hosts={"h": HostCapacity(cores=cores, memory_bytes=64 * GIB)}, jobs=jobs)


def test_what_a_round_may_choose_begins_at_the_least() -> None:
    job = held(6, spec_of(3, 2), servers=3)
    space = space_of(job, family_varied=True)
    assert (min(space.workers), max(space.workers)) == (3, 16)
    assert min(space_of(KnownJob("u", spec_of(3, 2)), True, job.held).servers) == 2


@pytest.mark.parametrize(("cores", "left"), [(6.0, 5), (4.0, 3), (3.0, 0)])
def test_what_shrinks_after_a_lost_host_keeps_its_least_or_is_paused_whole(cores: float, left: int) -> None:
    state = cluster({"j": held(8, spec_of(3))}, cores)
    state.shrinks = True
    assert {name: size.workers for name, size in shrinks_after_loss(state, cores).items()} == {"j": left}


def test_a_newcomer_takes_no_equal_below_its_least() -> None:
    newcomer = KnownJob("n", spec_of(2).replace(name="n"))
    wish = Wish(
        size=Size(workers=2, servers=1, worker_cores=1.0, server_cores=1.0),
        step="start",
        constant=Reason.PROBE,
    )
    granted = grant("n", wish, cluster({"j": held(6, spec_of(3)), "n": newcomer}, 8.0), {})
    assert {name: size.workers for name, (size, _, _) in granted.shrinks.items()} == {"j": 4}
    granted = grant("n", wish, cluster({"j": held(6, spec_of(5)), "n": newcomer}, 8.0), {})
    assert (granted.size, granted.shrinks) == (None, {})


def test_a_person_is_told_that_fewer_are_of_no_use() -> None:
    job = held(6, spec_of(3))
    state = cluster({"j": job}, 8.0)
    assert job.held is not None
    refused = refuse_size(job, job.held.replace(workers=2), state)
    assert refused is not None
    assert refused[0] == Reason.LIMIT_EXCEEDED
    assert "2 workers are fewer than the job's min_count of 3" in refused[1]
    assert refuse_size(job, job.held.replace(workers=3), state) is None
    assert refuse_size(job, job.held.replace(workers=2), state, beyond_limits=True) is None


def asking(job: KnownJob, workers: int, policy: str = "staged") -> KnownJob:
    plan = job.spec.plan.replace(policy=policy)
    job.spec = job.spec.replace(workers=job.spec.workers.replace(min_count=workers), plan=plan)
    return job


@pytest.mark.parametrize(("least", "left"), [(1, 14), (14, 14), (15, 0)])
def test_places_that_do_not_pay_are_given_up_down_to_the_least_alone(least: int, left: int) -> None:
    job = asking(runs("one", size(16)), least)
    speeds = {workers: 1 / (1 / (3600.0 * workers) + 1 / 3600.0) for workers in (1, 2, 4, 8, 16)}
    job.tried = [TriedSize(size=size(count), weight=3.0, mean=mean) for count, mean in speeds.items()]
    job.recent = [speeds[16]] * 3
    state = hosts_and_jobs(job, cores=16.0)
    wish = give_up_places(job, ["worker-3", "worker-4"], StandingModels(state))
    assert (wish.size.workers if wish else 0) == left


def test_optimus_starts_no_job_below_its_least() -> None:
    ran, newcomer = asking(runs("one", size(2)), 0, "optimus"), asking(waits("two"), 9, "optimus")
    answer = round_of(hosts_and_jobs(ran, newcomer, cores=6.0))["two"]
    assert isinstance(answer, Wish)
    assert (answer.constant, answer.size.workers) == ("optimus_marginal_gain", 9)


@pytest.mark.parametrize(("least", "left"), [(1, 3), (4, 4), (5, 0)])
def test_hot_servers_take_no_worker_below_the_least(least: int, left: int) -> None:
    windows = [[ServerLoad(server=0, busy=0.99)]] * 2
    job = held(5, spec_of(least))
    assert job.held is not None
    limits = Limits(least_workers=least, max_servers=1, cores=6.0)
    remedy = decide_hot_servers(windows, job.charge(job.held), limits, 1.0)
    assert (remedy.allocation.workers if remedy else 0) == left


STARTS = spec_of(0, plan=PlanSpec(window_s=4.0)).replace(
    workers=WorkersSpec(start=4, cores=1.0), servers=RoleSpec(count=1, cores=1.0)
)
OF_THREE = STARTS.replace(workers=STARTS.workers.replace(min_count=3))
FIXED = STARTS.replace(workers=WorkersSpec(count=4, cores=1.0))
PATIENCE_S = STARTS.moves.start_patience_s


def stall(life: Life, *names: str) -> None:
    """The cluster says of these members, by their present incarnations, that no node takes them."""
    said = {"host": "h", "job": "j", "uid": f"{1:012x}", "reason": "Unschedulable", "why": "0/1 nodes"}
    members = {member.name: member for member in life.jobs["j"].members}
    life.jobs["j"].live_at = 1e9
    for name in names:
        life.notice(HostMemberStalled(**said, member=members[name]))
    life.wait(1)


def with_stalled(spec: JobSpec, *names: str) -> Life:
    """A job that begins with four workers and a server, of which these cannot start."""
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.hand_in(spec, lambda workers: 3600.0 * workers)
    stall(life, *names)
    return life


def counts(life: Life) -> list[tuple[int, int]]:
    return [(plan.workers, plan.servers) for plan in plans(life)]


def test_a_start_of_which_some_cannot_start_goes_on_with_the_others_by_one_plan() -> None:
    life = with_stalled(STARTS, "worker-2", "worker-3")
    first, second = plans(life)
    assert (first.workers, second.workers, second.rolls_back, second.constant) == (4, 2, 1, "never_live")
    assert "2 workers of plan 1 cannot start, worker-3.1 for one: Unschedulable: 0/1 nodes" in second.reason
    assert life.brain.state.jobs["j"].stalled == []
    life.jobs["j"].live_at = life.now
    life.wait(30)
    assert [kept.plan for kept in life.found(facts.PlanKept)][:1] == [2], "it is live, and measured"
    assert life.same()


WITHDRAWN = {
    "fewer than its least": (OF_THREE, ("worker-2", "worker-3")),
    "its server": (STARTS, ("ps-0",)),
    "its server, and fewer": (OF_THREE, ("worker-2", "worker-3", "ps-0")),
    "all workers": (STARTS, ("worker-0", "worker-1", "worker-2", "worker-3")),
    "the server of fixed ones": (FIXED, ("worker-2", "ps-0")),
    "all fixed workers": (FIXED, ("worker-0", "worker-1", "worker-2", "worker-3")),
}


@pytest.mark.parametrize("which", WITHDRAWN)
def test_a_start_whose_least_or_whose_server_cannot_start_is_withdrawn_whole(which: str) -> None:
    spec, names = WITHDRAWN[which]
    life = with_stalled(spec, *names)
    first, second = plans(life)
    assert (second.workers, second.servers, second.rolls_back, second.mode) == (0, 0, 1, "auto")
    assert second.constant == Reason.BELOW_LEAST
    state, job = life.brain.state, life.brain.state.jobs["j"]
    assert (job.held, job.change, job.waits, job.members) == (None, None, True, [])
    assert set(state.host_load.values()) <= {(0.0, 0.0)}, "what it held is free"
    (said,) = [each for each in life.found(facts.PlanWithheld) if each.job == "j"]
    assert (said.constant, said.wanted) == (Reason.BELOW_LEAST, first.size)
    assert said.reason.endswith(
        "for one: Unschedulable: 0/1 nodes; a start is tried again after 60 s, or once the cluster has more room"
    )
    assert life.same()


def test_a_start_whose_members_are_known_to_wait_one_after_another_shrinks_to_its_least_and_is_withdrawn() -> (
    None
):
    life = with_stalled(STARTS.replace(workers=STARTS.workers.replace(min_count=2)), "worker-3")
    stall(life, "worker-2")
    stall(life, "worker-1")
    assert counts(life) == [(4, 1), (3, 1), (2, 1), (0, 0)]
    assert [plan.rolls_back for plan in plans(life)] == [0, 1, 2, 3]
    assert life.same()


def test_a_start_of_a_fixed_count_goes_on_with_the_workers_that_are_there() -> None:
    life = with_stalled(FIXED, "worker-2", "worker-3")
    life.wait(70)
    assert counts(life) == [(4, 1)]
    assert life.same()


def test_a_withdrawn_start_is_tried_again_after_a_time_that_grows_with_new_incarnations() -> None:
    life, waited = with_stalled(OF_THREE, "ps-0"), []
    for run in range(2, 8):
        withdrawn_s = life.now
        while len(plans(life)) < 2 * run - 1:
            life.wait(5)
        waited.append(life.now - withdrawn_s)
        assert {member.incarnation for member in life.jobs["j"].members} == {run}
        stall(life, "ps-0")
    assert waited == [pytest.approx(each, abs=5) for each in (60, 120, 240, 480, 900, 900)]
    assert counts(life) == [(4, 1), (0, 0)] * 7
    assert life.same()


def test_a_start_that_is_live_in_the_end_begins_the_count_again() -> None:
    life = with_stalled(OF_THREE, "ps-0")
    life.wait(PATIENCE_S)
    job = life.brain.state.jobs["j"]
    assert (counts(life)[-1], job.withdrawn) == ((4, 1), 1)
    life.wait(20)
    assert (job.withdrawn, job.rollbacks, job.declined) == (0, 0, [])
    assert job.has_trained
    assert life.same()


def test_a_withdrawn_start_is_tried_at_once_where_the_cluster_has_more_room() -> None:
    def sees(cores: float) -> None:
        capacity = HostCapacity(cores=cores, memory_bytes=64 * GIB, cores_bind=True)
        life.notice(HostRegistered(host="h", daemon="d", capacity=capacity))

    life = with_stalled(OF_THREE, "ps-0")
    sees(7.0)
    sees(7.5)  # as pods of others come and go
    life.wait(10)
    assert counts(life) == [(4, 1), (0, 0)]
    sees(12.0)
    assert counts(life)[2:] == [(4, 1)]
    stall(life, "ps-0")
    life.notice(HostRegistered(host="more", daemon="d", capacity=HostCapacity(cores=1.0, memory_bytes=GIB)))
    assert counts(life)[4:] == [(4, 1)]
    assert life.same()


def test_a_withdrawn_start_is_tried_at_once_when_a_job_ends_that_held_anything() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.hand_in(OF_THREE, lambda workers: 3600.0 * workers)
    life.submit("other", lambda workers: 3600.0 * workers, workers=1, servers=1, cores=1.0)
    life.submit("waits", lambda workers: 3600.0 * workers, workers=60, servers=1, cores=1.0)
    stall(life, "ps-0")
    life.end("waits")
    life.wait(1)
    assert counts(life) == [(4, 1), (0, 0)]
    life.end("other")
    assert [workers >= 3 for workers, _ in counts(life)[2:]] == [True]
    assert life.same()


def test_the_room_of_a_withdrawn_start_is_another_jobs() -> None:
    life = with_stalled(OF_THREE, "ps-0")
    life.submit("other", lambda workers: 3600.0 * workers, workers=7, servers=1, cores=1.0)
    assert [plan.workers for plan in life.found(facts.PlanProposed) if plan.job == "other"] == [7]
    life.wait(PATIENCE_S + 5)
    assert counts(life) == [(4, 1), (0, 0)], "it waits for room like every other job"
    assert [each.constant for each in life.found(facts.PlanWithheld) if each.job == "j"][-1] == "no_capacity"


def test_a_successor_of_the_brain_waits_for_the_same_time() -> None:
    life = with_stalled(OF_THREE, "ps-0")
    life.wait(PATIENCE_S / 2)
    life.take_over()
    life.wait(PATIENCE_S / 2 - 5)
    assert counts(life) == [(4, 1), (0, 0)]
    life.wait(10)
    assert counts(life)[2:] == [(4, 1)]
    assert life.same()


def test_a_start_that_trains_keeps_its_members_whatever_cannot_start() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    job = life.hand_in(OF_THREE, lambda workers: 3600.0 * workers)
    job.live_at = float("inf")  # its workers train, though its plan is not live
    life.wait(20)
    assert life.brain.state.jobs["j"].has_trained
    said = {"host": "h", "job": "j", "uid": f"{1:012x}", "reason": "Unschedulable", "why": "0/1 nodes"}
    for name in ("worker-2", "worker-3"):
        life.notice(HostMemberStalled(**said, member=Member("worker", int(name[-1]), 1)))
    life.wait(10)
    assert counts(life) == [(4, 1)]
    assert life.same()


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        ("has_begun", "its start is not withdrawn: the job has begun to train"),
        ("limit_exceeded", "a running job needs one worker at least"),  # a master of 0.3.0
    ],
)
def test_a_start_that_the_master_does_not_withdraw_stays_as_it_is_and_is_said_to(
    constant: str, words: str
) -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    job = life.hand_in(OF_THREE, lambda workers: 3600.0 * workers)
    job.obeys = False
    stall(life, "worker-2", "worker-3")
    assert "a start is tried again" in [*life.found(facts.PlanWithheld)][-1].reason
    life.notice(facts.PlanRefused(job="j", plan=2, reason=words, constant=constant, position=(99, 0)))
    said = [*life.found(facts.PlanWithheld)][-1]
    assert (
        said.constant,
        f"its master does not end the start, and the job goes on once they can start: {words}" in said.reason,
    ) == (
        "below_least",
        True,
    )
    life.wait(70)
    known = life.brain.state.jobs["j"]
    assert (counts(life), known.held, known.waits) == ([(4, 1), (0, 0)], plans(life)[0].size, False)
    assert [*life.found(facts.PlanWithheld)][-1] == said
    assert life.same()


def test_a_withdrawn_start_that_a_person_pauses_is_offered_once_the_job_is_resumed() -> None:
    life = with_stalled(OF_THREE, "ps-0")
    life.notice(facts.JobPaused(job="j", workers=0, position=(97, 0)))
    life.wait(PATIENCE_S + 5)
    assert counts(life) == [(4, 1), (0, 0)]
    life.notice(facts.JobResumed(job="j", workers=0, position=(98, 0)))
    life.wait(1)
    assert counts(life)[2:] == [(4, 1)]
    assert life.same()


def test_a_start_that_the_master_refuses_is_not_proposed_at_each_look() -> None:
    life = with_stalled(OF_THREE, "ps-0")
    life.jobs["j"].obeys = False
    life.wait(PATIENCE_S + 5)
    life.notice(facts.PlanRefused(job="j", plan=3, reason="", constant="paused", position=(99, 0)))
    life.wait(40)
    assert counts(life) == [(4, 1), (0, 0), (4, 1)]
    assert life.brain.state.jobs["j"].again_s == float("inf")
    assert life.same_from_snapshot()
    assert life.same()


def test_a_member_that_is_said_twice_to_wait_is_counted_once() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.hand_in(OF_THREE, lambda workers: 3600.0 * workers)
    stall(life, "worker-3", "worker-3")
    assert counts(life) == [(4, 1), (3, 1)]


def test_a_start_that_is_paused_before_it_is_live_is_a_start_after_the_pause() -> None:
    life = with_stalled(OF_THREE, "worker-3")
    assert counts(life) == [(4, 1), (3, 1)]
    life.pause("j")
    life.wait(70)
    assert counts(life) == [(4, 1), (3, 1)], "a paused job has no plan"
    life.resume("j")
    stall(life, "worker-1")
    assert counts(life)[2:] == [(0, 0)]
    assert life.brain.state.jobs["j"].waits
    assert life.same()


def test_a_server_that_is_known_to_wait_while_the_job_is_paused_ends_the_start_after_the_pause() -> None:
    life = with_stalled(OF_THREE)
    life.pause("j")
    stall(life, "ps-0")
    assert counts(life) == [(4, 1)]
    life.jobs["j"].starts_s = 1e9
    life.resume("j")
    life.wait(1)
    assert counts(life)[1:] == [(0, 0)]
    assert life.same()


def test_a_start_whose_end_the_master_refused_for_a_pause_is_ended_after_the_pause() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    job = life.hand_in(OF_THREE, lambda workers: 3600.0 * workers)
    job.obeys = False
    stall(life, "ps-0")
    life.pause("j")
    life.notice(facts.PlanRefused(job="j", plan=2, reason="", constant="paused", position=(99, 0)))
    life.wait(1)
    assert counts(life) == [(4, 1), (0, 0)]
    job.starts_s = 1e9
    life.resume("j")
    life.wait(1)
    assert [(plan.plan, plan.workers, plan.servers, plan.rolls_back) for plan in plans(life)][2:] == [
        (3, 0, 0, 1)
    ]
    assert life.same()


def test_the_time_of_a_pause_is_none_that_members_took_to_arrive() -> None:
    life = Life(cores=8.0, memory_bytes=64 * GIB)
    life.wait(1)
    life.hand_in(OF_THREE, lambda workers: 3600.0 * workers).live_at = 1e9
    life.pause("j")
    life.wait(300)
    life.resume("j")
    life.wait(5)
    assert life.brain.state.jobs["j"].slowest_start_s == pytest.approx(1.5, abs=1)
    assert life.same()
