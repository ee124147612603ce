"""Rounds of all jobs: who begins with what, in which order answers are carried out, and what hosts have room for."""

from __future__ import annotations

import numpy as np
import pytest
from brain_states import GIB, cluster, round_of, runs, size, spec_of, speed, waits

from rover_bus.brain.choosing import room_for_round
from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.scaling import PlanFront
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.evolution import evolve
from rover_bus.brain.families import usual_use
from rover_bus.brain.granting import grant, grant_best
from rover_bus.brain.history import traits_of
from rover_bus.brain.judging import judge
from rover_bus.brain.log import JobGone, JobSeen
from rover_bus.brain.next_best import _some_of
from rover_bus.brain.rooms import MemberHosts, fits_hosts, may_stay, moving_workers
from rover_bus.brain.settling import settle
from rover_bus.brain.sizing import first_size, narrowed
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainRuleOff, Change, TriedSize
from rover_bus.brain.wishes import CapacityLeft, Wish
from rover_bus.events.facts import JobSubmitted, PlanKept, PlanProposed, PlanRolledBack, Size
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity
from rover_bus.events.inputs import Observed, Ticked, TookOver
from rover_bus.events.job import RoleSpec, WorkersSpec

# -- starts ------------------------------------------------------------------------------------------------------------


def test_a_newcomer_begins_with_what_its_familys_model_finds_best_for_what_is_free() -> None:
    state = cluster(runs("one", size(4)), waits("two"), cores=16.0)
    first = state.jobs["two"].spec.workers.start
    answer = round_of(state)["two"]
    assert isinstance(answer, Wish)
    assert answer.step == "start"
    assert answer.size.workers > max(first, 1), "nothing was known of its family"
    assert answer.predicted == pytest.approx(speed(answer.size.workers), rel=0.2)
    assert "its family has shown" in answer.detail


def test_a_newcomer_of_an_unknown_family_begins_small() -> None:
    state = cluster(waits("one"), cores=16.0)
    answer = round_of(state)["one"]
    assert isinstance(answer, Wish)
    assert (answer.size.workers, answer.predicted, answer.constant) == (1, 0.0, "cold_start")


def test_a_newcomer_and_those_that_run_share_a_full_cluster_by_value() -> None:
    state = cluster(runs("one", size(14)), waits("two"), cores=8.0)
    answers = round_of(state)
    one, two = answers["one"], answers["two"]
    assert isinstance(one, Wish)
    assert isinstance(two, Wish)
    assert one.size.workers < 14
    assert one.size.workers + two.size.workers + 2 <= 16
    assert list(answers) == ["one", "two"], "what shrinks comes first"


def test_the_start_waits_for_the_shrink_of_its_round_and_takes_nothing_else() -> None:
    one, other = runs("one", size(10)), runs("other", size(4))
    state = cluster(one, other, waits("two"), cores=8.0)
    one.change = Change(plan=4, step="scale", before=size(10), after=size(6), predicted=0.0, since_s=1000.0)
    granted = grant("two", Wish(size=size(3), step="start", constant="warm_start"), state, {})
    assert (granted.size, granted.waits_for, granted.shrinks) == (None, ["one"], {})
    state = cluster(runs("one", size(6)), other, waits("two"), cores=8.0)
    assert grant("two", Wish(size=size(3), step="start", constant="warm_start"), state, {}).size == size(3)


def test_a_start_comes_before_growth_and_a_better_priority_before_both() -> None:
    low, equal = runs("low", size(2)), runs("equal", size(2), priority=1)
    state = cluster(low, equal, waits("new", 1), cores=64.0)
    order = [name for name, answer in round_of(state).items() if isinstance(answer, Wish)]
    assert order == ["new", "equal", "low"]


def test_a_job_that_does_not_compete_keeps_its_room() -> None:
    state = cluster(runs("one", size(4)), runs("two", size(6)), runs("better", size(2), priority=3))
    alone = room_for_round(0, ["one"], state)
    assert alone.cores == pytest.approx(8.0 * 0.99 - 3.5 - 1.5)
    assert room_for_round(3, ["better"], state).cores == pytest.approx(8.0 * 0.99)


def test_a_cluster_that_is_fuller_than_it_is_large_lets_no_job_grow() -> None:
    one, two = runs("one", size(10)), runs("two", size(5))
    state = cluster(one, two, cores=6.0)
    answers = round_of(state)
    sizes = [answer.size for answer in answers.values() if isinstance(answer, Wish)]
    assert all(
        job.charge(job.held).cores >= job.charge(at).cores
        for job, at in zip((one, two), sizes, strict=False)
        if job.held
    )


# -- what is known of a family -----------------------------------------------------------------------------------------


def past(train: str = "t", cores: float = 0.7, server_bytes: int = 0) -> PastJob:
    final = Allocation(
        workers=4, servers=2, worker_cores=cores, server_cores=0.2, server_memory_bytes=server_bytes
    )
    return PastJob(job="old", traits=traits_of(spec_of("old", train=train)), final=final, ended_at_s=0.0)


def test_jobs_of_one_user_with_equal_batches_are_not_similar_for_that() -> None:
    state = cluster(cores=32.0)
    stranger = spec_of("new", train="elsewhere").replace(program=["other"], labels={"user": "ann"})
    known = traits_of(spec_of("old").replace(labels={"user": "ann"}))
    state.past = [PastJob(job="old", traits=known, final=Allocation(workers=9, servers=1), ended_at_s=0.0)]
    assert first_size(stranger, state)[1].reason == "cold_start"
    assert first_size(spec_of("new"), state)[1].reason == "warm_start"


def test_a_member_without_a_limit_counts_as_what_the_familys_last_run_used() -> None:
    state = cluster(cores=32.0)
    state.past = [past(cores=0.7), past(train="elsewhere", cores=3.0)]
    free = spec_of("new").replace(workers=WorkersSpec(), servers=RoleSpec(cores=0.5))
    assert usual_use(state, free) == {"worker": 0.7}
    evolve(state, JobSeen(job="new", uid="u", spec=free, cause="x"))
    assert state.jobs["new"].cores_used == {"worker": 0.7}
    evolve(state, JobGone(job="new", cause="x"))


@pytest.mark.parametrize(("train", "limit"), [("t", 6 * GIB), ("elsewhere", 8 * GIB)])
def test_a_server_begins_with_the_memory_that_runs_of_its_family_ended_with(train: str, limit: int) -> None:
    state = cluster(cores=32.0)
    state.past = [past(server_bytes=3 * GIB), past("other data", server_bytes=50 * GIB)]
    spec = spec_of("new", memory_bytes=8 * GIB, train=train).replace(
        servers=RoleSpec(count=1, cores=0.5, memory_bytes=8 * GIB)
    )
    assert first_size(spec, state)[0].server_memory_bytes == limit


def test_other_servers_are_tried_where_that_takes_little_of_what_is_left() -> None:
    job = runs("job", size(4))
    assert space_of(job).servers == (1, 2)
    job.total = int(job.committed + 300 * speed(4))
    assert space_of(job).servers == (1,)
    job.total, job.cold, job.tried = 1_000_000_000, True, job.tried[-2:]
    assert space_of(job).servers == (1,), "first other sizes of it are known"


def test_servers_vary_once_any_run_of_the_family_has_varied_them() -> None:
    one, two = runs("one", size(4)), runs("two", size(4))
    two.total, two.committed = 1_000_000, 900_000  # it ends before a trial would pay
    assert space_of(two, StandingModels(cluster(one, two)).varied_servers(two)).servers == (1,)
    one.tried.append(TriedSize(size=size(4, 2), weight=3.0, mean=speed(4) * 1.1))
    assert space_of(two, StandingModels(cluster(one, two)).varied_servers(two)).servers == (1, 2, 3, 4)


# -- hosts -------------------------------------------------------------------------------------------------------------


def test_members_grow_only_as_far_as_their_own_host_has_room() -> None:
    job, full = runs("job", size(2)), runs("full", size(12))
    state = cluster(job, full, hosts="hi")  # 8 cores each; on h 1.5 and 6.5 are taken
    assert not fits_hosts(job, size(2, cores=1.0), state)
    assert fits_hosts(job, size(6), state), "new members go to the other host"
    assert fits_hosts(job, size(1), state)
    assert not fits_hosts(job, size(20), state)
    free = size(2).replace(worker_cores=0.0)
    assert fits_hosts(job, free.replace(workers=100), state), "members without a limit share what there is"


def test_workers_that_have_no_room_to_grow_on_their_host_are_followed_elsewhere() -> None:
    job, full = runs("job", size(4)), runs("full", size(9))
    state = cluster(job, full, hosts="hi")  # on h 2.5 and 5 of 8 cores are taken
    larger = size(4, cores=0.75)
    assert fits_hosts(job, larger, state)
    assert [str(member) for member in moving_workers(job, larger, state)] == ["worker-2.1", "worker-3.1"]
    [plan] = settle("job", job, state, StandingModels(state), Wish(size=larger, step="scale", constant="x"))
    assert isinstance(plan, PlanProposed)
    assert [str(member) for member in plan.replaces] == ["worker-2.1", "worker-3.1"]
    assert plan.worker_hosts == ["i", "i"]
    assert plan.stays == plan.replaces, "they train on until those are there"
    wider = size(4, cores=1.0)
    assert not fits_hosts(job, wider, state), "more than half of the workers would start elsewhere"
    job.slowest_start_s = 1.0
    job.where = dict.fromkeys(job.where, "h") | {"ps-0": "i"}
    state.host_load = {"h": (7.6, 0.0), "i": (1.0, 0.0)}
    assert fits_hosts(job, wider, state), "to stand still until they are there is less than it brings"
    job.slowest_start_s = 0.1 * job.remaining_s
    assert not fits_hosts(job, wider, state)
    assert moving_workers(job, size(5), state) == [], "who stays as large stays where it is"


def test_workers_stay_until_their_successors_come_where_their_host_has_room_for_what_comes_meanwhile() -> (
    None
):
    job, full = runs("job", size(4)), runs("full", size(9))
    state = cluster(job, full, hosts="hi")  # 7.5 of 8 cores of h are taken, 0 of i
    moving = [member for member in job.members if member.index in (2, 3)]
    larger = size(4, cores=0.75)

    def stays(then: Size, **places: list[str]) -> list[str]:
        return [str(member) for member in may_stay(job, then, moving, MemberHosts(**places), state)]

    both = ["worker-2.1", "worker-3.1"]
    assert stays(larger, workers=["i", "i"]) == both, "what grows beside them takes what is free"
    assert stays(size(4).replace(server_cores=1.0), workers=["i", "i"]) == both
    assert stays(larger.replace(server_cores=1.0), workers=["i", "i"]) == [], "they make way for a server"
    assert stays(larger, workers=["i", "h"]) == [], "one of them starts where another was"
    assert stays(size(4, 2), workers=["i", "i"], servers=["h"]) == both
    assert stays(size(4, 3), workers=["i", "i"], servers=["h", "h"]) == []
    state.hosts = {"i": state.hosts["i"]}
    assert stays(larger, workers=["i", "i"]) == [], "their host is gone"


def test_the_next_best_is_taken_where_hosts_have_no_room_for_the_best() -> None:
    job, full = runs("job", size(2)), runs("full", size(12))
    job.total = 100_000
    state = cluster(job, full, hosts="hi")
    best = Wish(size=size(4, cores=2.0), step="scale", constant="x", predicted=3.0, others=[size(6)])
    granted, wish = grant_best("job", best, state, {})
    assert (granted.size, wish.constant) == (size(6), "more_throughput")
    [plan] = settle("job", job, state, StandingModels(state), best)
    assert isinstance(plan, PlanProposed)
    assert plan.workers == 4, "the most that one change may, by what hosts have room for"
    assert plan.predicted == pytest.approx(speed(4), rel=0.1), "what that size promises, not the best one"
    granted, _ = grant_best("job", Wish(size=size(4, cores=2.0), step="scale", constant="x"), state, {})
    assert granted.left is not None
    assert granted.left.constant == "does_not_fit_any_node"
    assert "a worker" in granted.left.detail
    assert "free" in granted.left.detail


def test_a_start_is_cut_down_to_what_hosts_have_room_for() -> None:
    state = cluster(runs("a", size(10), "h"), runs("b", size(12), "i"), waits("new"), hosts="hi")
    big = Wish(size=size(4, cores=2.0), step="start", constant="x")  # 2.5 and 1.5 cores are free
    granted, _ = grant_best("new", big, state, {})
    assert granted.size == size(1, cores=2.0)


def test_servers_that_no_host_has_memory_for_begin_as_twice_as_many_with_half_of_it() -> None:
    state = cluster(runs("other", size(1)), waits("new"), hosts="hi", memory_bytes=10 * GIB)
    granted, _ = grant_best(
        "new", Wish(size=size(1, 1, 0.5, 16 * GIB), step="start", constant="x"), state, {}
    )
    assert granted.size == size(1, 2, 0.5, 8 * GIB)


def test_a_start_has_narrower_members_where_no_host_has_room_for_those_that_were_asked_for() -> None:
    one, two, new = runs("one", size(11), "h"), runs("two", size(11), "i"), waits("new")
    new.cores_bind = True
    new.spec = new.spec.replace(
        workers=WorkersSpec(max_count=8, start=2, cores=0.5, start_cores=4.0, max_cores=4.0),
        servers=RoleSpec(max_count=2, start=1, cores=0.5, start_cores=4.0, max_cores=4.0),
    )
    state = cluster(one, two, new, hosts="hi")  # about 2 of 8 cores are free on each
    state.hosts = {name: host.replace(cores_bind=True) for name, host in state.hosts.items()}
    answer = round_of(state)["new"]
    assert isinstance(answer, Wish)
    [plan] = settle("new", new, state, StandingModels(state), answer)
    assert isinstance(plan, PlanProposed), "it waited for a host with 4 free cores"
    assert plan.workers >= 1
    assert 0.5 <= plan.server_cores < 4.0


def test_a_round_begins_a_newcomer_with_narrow_members_where_the_cluster_is_crowded() -> None:
    one, new = runs("one", size(11)), waits("new")
    new.cores_bind = True
    new.spec = new.spec.replace(
        data=new.spec.data.replace(train="another"),  # no run of its family says how fast it would be
        workers=WorkersSpec(count=1, cores=0.5, start_cores=4.0, max_cores=4.0),
        servers=RoleSpec(count=1, cores=0.5, start_cores=4.0, max_cores=4.0),
    )
    one.spec = one.spec.replace(workers=WorkersSpec(count=11, cores=0.5))  # 6 cores that it keeps
    state = cluster(one, new, cores=11.0)
    state.hosts = {name: host.replace(cores_bind=True) for name, host in state.hosts.items()}
    answer = round_of(state)["new"]
    assert isinstance(answer, Wish)
    assert (answer.size.worker_cores, answer.size.server_cores) == (2.0, 2.0), "4 of 5 cores that are left"


def test_a_start_has_narrower_members_rather_than_few() -> None:
    state = cluster(runs("a", size(9), "h"), runs("b", size(9), "i"), new := waits("new"), hosts="hi")
    new.cores_bind = True
    new.spec = new.spec.replace(
        workers=WorkersSpec(max_count=8, cores=0.25, max_cores=4.0),
        servers=RoleSpec(max_count=2, cores=0.25, max_cores=4.0),
    )
    big = Wish(size=size(3, cores=1.7), step="start", constant="x")  # 3 of 8 cores are free on each host
    granted, _ = grant_best("new", big, state, {})
    assert granted.size is not None
    assert (granted.size.workers, granted.size.worker_cores) == (3, 0.85)


def test_where_servers_have_no_room_to_grow_a_size_with_the_same_servers_is_among_the_next_best() -> None:
    held = Allocation(workers=2, servers=1, worker_cores=1.0, server_cores=1.0)
    larger = [held.replace(workers=w, server_cores=2.0) for w in range(3, 23)]
    offers = [*larger, more := held.replace(workers=4)]
    front = PlanFront(offers, np.arange(21.0), speeds := np.array([*np.arange(21.0, 41.0), 20.5]))
    rows = [int(row) for row in np.argsort(-speeds)]
    some = [offers[row] for row in _some_of(rows, front, held)]
    assert some[0] == larger[-1]
    assert more in some
    assert len(some) < len(offers)


def test_what_is_tried_next_of_a_long_front_is_near_to_what_had_no_room() -> None:
    held = Allocation(workers=2, servers=1, worker_cores=1.0, server_cores=1.0)
    offers = [held.replace(workers=w, server_cores=2.0) for w in range(3, 67)]
    front = PlanFront(offers, np.arange(64.0), np.arange(21.0, 85.0))
    workers = [offers[row].workers for row in _some_of(list(range(63, -1, -1)), front, held)]
    assert workers[0] == 66
    assert max(-np.diff(workers)) <= 4, (
        "a step that is far smaller than the best costs a change that could have brought more"
    )


def test_cores_that_the_user_fixed_are_not_halved() -> None:
    fixed, open_ = waits("fixed"), waits("open")
    fixed.cores_bind = open_.cores_bind = True
    open_.spec = open_.spec.replace(workers=WorkersSpec(max_count=8, cores=0.5, max_cores=4.0))
    assert narrowed(size(4, cores=2.0), fixed) == size(4, cores=2.0)
    assert narrowed(size(4, cores=2.0), open_) == size(4, cores=1.0)
    assert narrowed(size(4, cores=0.75), open_) == size(4, cores=0.5), "never below what the user asked for"
    open_.cores_bind = False
    assert narrowed(size(4, cores=2.0), open_) == size(4, cores=2.0), "no host holds to them"


def test_a_job_that_is_alone_may_ask_more_of_its_hosts_than_they_have() -> None:
    state = cluster(waits("new"), cores=1.0)
    asked = Wish(size=size(4), step="start", constant="constrained_by_user")
    assert grant("new", asked, state, {}).size == size(4)


def test_a_job_begins_though_rounds_are_switched_off() -> None:
    brain = BrainDecider(1)
    brain.decide(TookOver("b", 1), 0.0)
    brain.state.rules_off["sizes"] = BrainRuleOff(release="")
    host = HostRegistered(host="h", daemon="d", capacity=HostCapacity(cores=4.0, memory_bytes=GIB))
    brain.decide(Observed(host, "F:1"), 0.0)
    brain.decide(Observed(JobSubmitted(job="j", spec=spec_of("j"), uid="0" * 12), "F:2"), 0.0)
    plans = [record for record in brain.decide(Ticked(), 1.0).effects if isinstance(record, PlanProposed)]
    assert [plan.step for plan in plans] == ["start"]


@pytest.mark.parametrize(("cores", "verdict"), [(16.0, PlanRolledBack), (5.0, PlanKept)])
def test_what_a_job_gave_up_is_taken_back_only_while_there_is_room(cores: float, verdict: type) -> None:
    job, other = runs("one", size(4)), runs("two", size(4))
    job.change = Change(4, "scale", size(6), size(4), speed(4), 0.0, base=[speed(6)] * 3, settled=True)
    job.change.windows = [speed(1)] * 3
    records = list(judge("one", job, cluster(job, other, cores=cores)))
    assert isinstance(records[1], verdict)
    assert (records[1].constant == "no_capacity") == (verdict is PlanKept)


def test_a_job_that_changes_have_cost_much_is_not_said_to_lack_room() -> None:
    job = runs("one", size(2))
    state = cluster(job, cores=64.0)
    assert isinstance(round_of(state)["one"], Wish)
    job.lost_s = 0.9 * job.clock_s
    assert isinstance(round_of(state)["one"], Wish), "days are left to earn it"
    job.committed = job.total - int(2 * job.lost_s * job.throughput)
    answer = round_of(state)["one"]
    assert isinstance(answer, CapacityLeft)
    assert answer.constant == "dead_band"
    assert "less than the change costs in the time that is left" in answer.detail
