"""The decider of a host's members: what runs follows what is desired, whatever is repeated, late or stale."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rover_bus.events.deciding import WakeAt
from rover_bus.events.facts import (
    JobEnded,
    JobForgotten,
    JobSubmitted,
    MembersDesired,
    MembersUnheard,
    PlanProposed,
)
from rover_bus.events.identity import DesiredMember, Exit, ExitReason, MasterSeat, Member, Resources
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.settings import DEFAULTS
from rover_bus.node import decider
from rover_bus.node.decider import Adjust, Effect, Erase, Forget, Start, Stop
from rover_bus.node.members import (
    Happening,
    HostMembers,
    RecordsForgotten,
    RunErased,
    evolve,
    wants_the_same,
)
from rover_bus.node.port import (
    EVERY_ROLE,
    Adjusted,
    AdjustRefused,
    Exited,
    Incarnation,
    Leaving,
    Running,
    Spawned,
)

HERE, ELSEWHERE = "host-a", "host-b"
EMPTY = HostMembers(HERE, (0, 1, 2, 3))


def decide(state: HostMembers, now_s: float) -> list[Effect]:
    """Return what is to be done now, without when to decide again."""
    return [each for each in decider.decide(state, now_s) if not isinstance(each, WakeAt)]


def next_wake_s(state: HostMembers, now_s: float) -> float | None:
    return next((each.at_s for each in decider.decide(state, now_s) if isinstance(each, WakeAt)), None)


def submitted(uid: str = "u1", job: str = "demo") -> JobSubmitted:
    """A job without a program: that programs are tried before a start is test_programs.py's."""
    return JobSubmitted(job=job, uid=uid, spec=JobSpec(name=job, program=[], data=DataSpec(train="x")))


def worker(index: int, incarnation: int = 1, host: str = HERE, cores: float = 0.0) -> DesiredMember:
    member = Member("worker", index, incarnation)
    return DesiredMember(member=member, host=host, command=["x"], resources=Resources(cores=cores))


def desired(
    *members: DesiredMember,
    term: int = 1,
    plan: int = 1,
    uid: str = "u1",
    job: str = "demo",
    former: Iterable[DesiredMember] = (),
) -> Happening:
    return MembersDesired(job=job, uid=uid, term=term, plan=plan, members=list(members), former=list(former))


def masters(*hosts: str, plan: int = 1, brain_term: int = 0) -> Happening:
    return PlanProposed(
        job="demo", plan=plan, brain_term=brain_term, workers=1, servers=0, masters=list(hosts)
    )


def ended(member: Member, reason: ExitReason = "killed", at_s: float = 0.0, ran_s: float = 1.0) -> Exited:
    return Exited("demo", "u1", member, Exit(reason=reason), ran_s, at_s)


def after(state: HostMembers, events: Iterable[Happening]) -> HostMembers:
    for event in events:
        state = evolve(state, event)
    return state


def act(state: HostMembers, now_s: float = 0.0) -> tuple[HostMembers, list[Effect]]:
    """Carry out what is decided, as the adapter does."""
    actions = decide(state, now_s)
    for action in actions:
        match action:
            case Start(incarnation):
                state = evolve(state, Spawned(incarnation))
            case Stop(incarnation, hurried):
                state = evolve(state, Leaving(incarnation.key, hurried))
            case Adjust(incarnation, resources, cpus):
                state = evolve(state, Adjusted(incarnation.key, resources, cpus))
            case Forget(job):
                state = evolve(state, RecordsForgotten(job))
    return state, actions


def started(actions: list[Effect]) -> list[str]:
    return [str(each.incarnation.member) for each in actions if isinstance(each, Start)]


def stopped(actions: list[Effect]) -> list[str]:
    return [str(each.incarnation.member) for each in actions if isinstance(each, Stop)]


def test_only_members_of_this_host_are_started_and_each_once() -> None:
    state = after(EMPTY, [submitted(), desired(worker(0), worker(1, host=ELSEWHERE))])
    state, actions = act(state)
    assert started(actions) == ["worker-0.1"]
    assert decide(state, 0.0) == []


def test_a_desired_state_is_absolute_so_whom_it_does_not_name_is_drained() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0), worker(1))]))
    _, actions = act(evolve(state, desired(worker(1), plan=2)))
    assert (started(actions), stopped(actions)) == ([], ["worker-0.1"])


def test_a_worker_trains_on_until_its_successor_comes_elsewhere() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0), worker(1))]))
    moved = worker(0, 2, ELSEWHERE), worker(1, 2, ELSEWHERE)
    state, actions = act(evolve(state, desired(*moved, plan=2, former=[worker(0), worker(1)])))
    assert (started(actions), stopped(actions)) == ([], [])
    state, actions = act(evolve(state, desired(*moved, plan=3, former=[worker(1)])))
    assert (started(actions), stopped(actions)) == ([], ["worker-0.1"])
    _, actions = act(evolve(state, JobEnded(job="demo", state="completed")))
    assert stopped(actions) == ["worker-1.1"]


def test_a_former_worker_is_never_started_nor_kept_as_another_incarnation_or_of_another_run() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, 2))]))
    moved = worker(0, 4, ELSEWHERE)
    _, actions = act(evolve(state, desired(moved, plan=2, former=[worker(0, 3)])))
    assert (started(actions), stopped(actions)) == ([], ["worker-0.2"])
    assert decide(after(EMPTY, [submitted(), desired(moved, former=[worker(0, 3)])]), 0.0) == []
    other = after(state, [submitted("u2"), desired(moved, uid="u2", former=[worker(0, 2)])])
    assert stopped(decide(other, 0.0)) == ["worker-0.2"]


def test_a_worker_that_is_kept_and_ends_is_not_started_again() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0))]))
    state = evolve(state, desired(worker(0, 2, ELSEWHERE), plan=2, former=[worker(0)]))
    assert decide(evolve(state, ended(worker(0).member)), 0.0) == []


def test_a_lower_term_or_plan_is_stale_counted_and_changes_nothing() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0), term=2, plan=5)]))
    for stale in (desired(term=1, plan=9), desired(term=2, plan=4)):
        assert decide(evolve(state, stale), 0.0) == []
        assert evolve(state, stale).stale == state.stale + 1


def test_within_one_plan_an_earlier_position_of_the_log_is_stale() -> None:
    def at(sequence: int, incarnation: int) -> Happening:
        return MembersDesired(
            job="demo", uid="u1", term=1, plan=1, position=(sequence, 0), members=[worker(0, incarnation)]
        )

    state = after(EMPTY, [submitted(), at(9, incarnation=2), at(7, incarnation=1)])
    assert started(decide(state, 0.0)) == ["worker-0.2"]


def test_a_desired_state_of_another_run_of_the_job_is_stale() -> None:
    state = after(EMPTY, [submitted("u1"), submitted("u2"), desired(worker(0), uid="u1", term=99)])
    assert decide(state, 0.0) == []
    assert state.stale == 1


def test_a_new_run_of_a_job_ends_the_members_of_the_old_one_before_its_own_start() -> None:
    state, _ = act(after(EMPTY, [submitted("u1"), desired(worker(0))]))
    state = after(state, [submitted("u2"), desired(worker(0), uid="u2")])
    state, actions = act(state)
    assert (started(actions), stopped(actions)) == ([], ["worker-0.1"])
    state, actions = act(evolve(state, ended(Member("worker", 0, 1), "drained")))
    assert [each.incarnation.uid for each in actions if isinstance(each, Start)] == ["u2"]


def test_one_that_was_lost_is_given_no_time_even_if_it_was_asked_to_leave_before() -> None:
    """It is fenced and its successor waits; one that has left keeps the time that its program needs to end."""
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, 1))]))
    left, actions = act(evolve(state, desired(worker(0, 2), plan=2)))
    assert [(str(each.incarnation.member), each.hurried) for each in actions if isinstance(each, Stop)] == [
        ("worker-0.1", False)
    ]
    lost = desired(worker(0, 2).replace(after_loss=True), plan=3)
    for before in (state, left):
        now, actions = act(evolve(before, lost))
        assert [each.hurried for each in actions if isinstance(each, Stop)] == [True]
        assert decide(now, 0.0) == [], "asked twice it answers the same"


def test_a_new_incarnation_waits_until_the_former_one_is_proven_dead() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, 1))]))
    state, actions = act(evolve(state, desired(worker(0, 2), plan=2)))
    assert (started(actions), stopped(actions)) == ([], ["worker-0.1"])
    state, actions = act(state, 1000.0)
    assert actions == []
    _, actions = act(evolve(state, ended(Member("worker", 0, 1))))
    assert started(actions) == ["worker-0.2"]


def test_an_incarnation_that_ended_is_never_repeated_however_often_it_is_desired() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, 3))]))
    state = after(
        state, [ended(Member("worker", 0, 3)), desired(worker(0, 3), plan=2), desired(worker(0, 2), plan=3)]
    )
    assert decide(state, 1000.0) == []


def test_leader_and_standby_start_with_the_plan_before_any_master_exists() -> None:
    state = after(EMPTY, [submitted(), masters(HERE, ELSEWHERE, HERE)])
    _, actions = act(state)
    assert started(actions) == ["master-0.1", "master-2.1"]


def test_a_platform_without_a_command_for_masters_still_runs_the_others() -> None:
    plain = HostMembers(HERE, (0, 1, 2, 3), EVERY_ROLE - {"master"})
    state = after(plain, [submitted(), masters(HERE), desired(worker(0))])
    assert started(decide(state, 0.0)) == ["worker-0.1"]


def test_a_later_plan_that_names_no_masters_leaves_them_where_they_are() -> None:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE)]))
    assert decide(evolve(state, masters(plan=2)), 0.0) == []


def seated(*hosts: str, first: int = 1, plan: int = 1) -> Happening:
    seats = [MasterSeat(host=host, first=first) for host in hosts]
    return MembersDesired(job="demo", uid="u1", term=1, plan=plan, members=[], masters=seats)


def test_masters_run_where_the_job_s_own_log_seats_them_whatever_plans_say_later() -> None:
    state, actions = act(after(EMPTY, [submitted(), masters(ELSEWHERE), seated(HERE, ELSEWHERE, first=1001)]))
    assert started(actions) == ["master-0.1001"]
    assert decide(evolve(state, masters(ELSEWHERE, HERE, plan=2)), 0.0) == []
    state, actions = act(after(state, [seated(ELSEWHERE, ELSEWHERE, plan=2)]))
    assert stopped(actions) == ["master-0.1001"]


def test_a_desired_set_that_names_no_masters_leaves_them_where_the_plan_put_them() -> None:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE)]))
    assert decide(evolve(state, desired()), 0.0) == []


def test_a_master_that_hung_here_and_was_seated_anew_meanwhile_makes_room_for_its_next_name() -> None:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE)]))
    state, actions = act(evolve(state, seated(HERE, first=2001)))
    assert (stopped(actions), started(actions)) == (["master-0.1"], [])
    _, actions = act(evolve(state, ended(Member("master", 0, 1))), 10.0)
    assert started(actions) == ["master-0.2001"]


def test_a_plan_of_an_older_brain_is_stale() -> None:
    state = after(
        EMPTY, [submitted(), masters(HERE, plan=1, brain_term=2), masters(ELSEWHERE, plan=9, brain_term=1)]
    )
    assert started(decide(state, 0.0)) == ["master-0.1"]
    assert state.stale == 1


def test_a_plan_that_is_told_before_the_submission_seats_masters_too() -> None:
    _, actions = act(after(EMPTY, [masters(HERE, HERE), submitted()]))
    assert [str(a.incarnation.member) for a in actions] == ["master-0.1", "master-1.1"]


def unheard(host: str, stand_in: str = "", first: int = 501) -> Happening:
    seat = MasterSeat(host=stand_in, first=first) if stand_in else None
    return MembersUnheard(job="demo", host=host, stand_in=seat)


def test_a_stand_in_runs_where_it_is_named_until_the_log_says_where_masters_are() -> None:
    state, actions = act(after(EMPTY, [submitted(), seated(ELSEWHERE, "third")]))
    assert actions == []
    state, actions = act(evolve(state, unheard(ELSEWHERE)))
    assert actions == []
    state, actions = act(evolve(state, unheard("third", HERE)))
    assert [str(a.incarnation.member) for a in actions] == ["master-0.501"]
    state, actions = act(evolve(state, seated(HERE, "fourth", first=1001, plan=2)))
    assert [type(a) for a in actions] == [Stop]


def test_masters_that_are_not_heard_go_on_until_their_log_says_otherwise() -> None:
    state, _ = act(after(EMPTY, [submitted(), seated(HERE, ELSEWHERE)]))
    state, actions = act(evolve(state, unheard(HERE, "third")))
    assert actions == []


def test_nobody_stands_in_for_a_job_that_is_over() -> None:
    ended = JobEnded(job="demo", state="completed")
    assert act(after(EMPTY, [submitted(), seated(ELSEWHERE), ended, unheard(ELSEWHERE, HERE)]))[1] == []


def test_a_master_that_ends_comes_back_as_its_next_incarnation_after_a_short_backoff() -> None:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE)]))
    state = evolve(state, ended(Member("master", 0, 1), at_s=100.0))
    assert decide(state, 100.0) == []
    wake_s = next_wake_s(state, 100.0)
    assert wake_s is not None
    assert 100.0 < wake_s < 101.0
    assert started(decide(state, wake_s)) == ["master-0.2"]


def backoffs(reason: ExitReason, ran_s: float, times: int) -> list[float]:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE)]))
    waits, now_s = list[float](), 0.0
    for incarnation in range(1, times + 1):
        state = evolve(state, ended(Member("master", 0, incarnation), reason, at_s=now_s, ran_s=ran_s))
        wake_s = next_wake_s(state, now_s)
        waits.append(0.0 if wake_s is None else round(wake_s - now_s, 6))
        now_s = wake_s or now_s
        state, actions = act(state, now_s)
        assert started(actions) == [f"master-0.{incarnation + 1}"]
    return waits


def test_a_master_that_fails_at_once_is_tried_ever_more_slowly_but_for_ever() -> None:
    waits = backoffs("failed", ran_s=0.1, times=9)
    assert waits == sorted(waits)
    assert waits[-1] == DEFAULTS.members.most_restart_pause_s


@pytest.mark.parametrize(
    ("reason", "pauses"), [("out_of_memory", True), ("failed", False), ("drained", False)]
)
def test_what_its_memory_limit_kills_at_once_is_started_ever_more_slowly(
    reason: ExitReason, pauses: bool
) -> None:
    """Twice a second, a hundred times, without; what is charged to the job's budget follows at once."""
    waits, now_s, state = list[float](), 0.0, after(EMPTY, [submitted()])
    for incarnation in range(1, 10):
        state = evolve(state, desired(worker(0, incarnation), plan=incarnation))
        wake_s = next_wake_s(state, now_s)
        assert started(decide(state, now_s)) == ([] if wake_s else [f"worker-0.{incarnation}"])
        waits.append(0.0 if wake_s is None else round(wake_s - now_s, 6))
        now_s = wake_s or now_s
        state, actions = act(state, now_s)
        assert started(actions) == [f"worker-0.{incarnation}"]
        state = evolve(state, ended(Member("worker", 0, incarnation), reason, at_s=now_s, ran_s=0.3))
    assert waits == sorted(waits)
    assert waits[-1] == (DEFAULTS.members.most_restart_pause_s if pauses else 0.0)


def test_a_master_that_is_killed_again_and_again_is_back_at_once_each_time() -> None:
    assert set(backoffs("killed", ran_s=0.5, times=9)) == {0.1}


def test_a_long_run_clears_the_backoff() -> None:
    assert backoffs("failed", ran_s=DEFAULTS.members.healthy_after_s, times=3) == [0.0, 0.0, 0.0]


def test_the_end_of_a_job_ends_everything_of_it_and_nothing_is_started_again() -> None:
    state, _ = act(after(EMPTY, [submitted(), masters(HERE), desired(worker(0))]))
    state, actions = act(evolve(state, JobEnded(job="demo", state="completed")))
    assert sorted(stopped(actions)) == ["master-0.1", "worker-0.1"]
    late = [desired(worker(0, 2), term=9, plan=9), masters(HERE, plan=9), ended(Member("master", 0, 1))]
    state, actions = act(after(state, late), 1000.0)
    assert started(actions) == []


def test_a_job_is_forgotten_only_when_the_last_of_it_is_dead() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0), worker(1))]))
    state, _ = act(after(state, [JobEnded(job="demo", state="failed"), ended(Member("worker", 0, 1))]))
    assert Forget("demo", "u1") not in decide(state, 0.0)
    state, actions = act(evolve(state, ended(Member("worker", 1, 1))))
    assert actions == [Forget("demo", "u1")]
    assert decide(state, 0.0) == []


def test_an_adopted_member_that_is_no_longer_desired_is_drained() -> None:
    _, actions = act(after(EMPTY, [submitted(), desired(worker(0), worker(1))]))
    running = [each.incarnation for each in actions if isinstance(each, Start)]
    successor = after(EMPTY, [*(Spawned(each) for each in running), submitted(), desired(worker(1), plan=2)])
    assert stopped(decide(successor, 0.0)) == ["worker-0.1"]


def test_an_adopted_master_keeps_its_incarnation() -> None:
    state, actions = act(after(EMPTY, [submitted(), masters(HERE)]))
    state = evolve(state, ended(Member("master", 0, 1)))
    state, actions = act(state, 10.0)
    (run,) = [each.incarnation for each in actions if isinstance(each, Start)]
    successor = after(EMPTY, [Spawned(run), Running(run.key, 9), submitted(), masters(HERE)])
    assert decide(successor, 0.0) == []


def test_other_resources_change_a_running_member_in_place() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, cores=1.0))]))
    state, actions = act(evolve(state, desired(worker(0, cores=2.0), plan=2)))
    (adjust,) = actions
    assert isinstance(adjust, Adjust)
    assert adjust.cpus == {0: 1.0, 1: 1.0}
    assert decide(state, 0.0) == []


def test_resources_that_are_refused_are_not_asked_for_again_and_others_are() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, cores=1.0))]))
    wanted = evolve(state, desired(worker(0, cores=2.0), plan=2))
    assert [type(each) for each in decide(wanted, 0.0)] == [Adjust]
    refused = evolve(wanted, AdjustRefused(("demo", "worker-0"), Resources(cores=2.0), "Infeasible"))
    assert decide(refused, 0.0) == []
    _, (adjust,) = act(evolve(refused, desired(worker(0, cores=1.5), plan=3)))
    assert isinstance(adjust, Adjust)
    assert adjust.resources.cores == 1.5


def test_members_get_cores_of_their_own_while_there_are_any() -> None:
    state = after(EMPTY, [submitted(), desired(*(worker(index, cores=1.5) for index in range(4)))])
    _, actions = act(state)
    pins = [dict(each.incarnation.cpus) for each in actions if isinstance(each, Start)]
    assert pins == [{0: 1.0, 1: 0.5}, {1: 0.5, 2: 1.0}, {}, {}]


def test_an_end_of_a_former_incarnation_does_not_end_the_present_one() -> None:
    state, _ = act(after(EMPTY, [submitted(), desired(worker(0, 2))]))
    assert decide(evolve(state, ended(Member("worker", 0, 1))), 0.0) == []


# -- whatever happens --------------------------------------------------------------------------------------------------

places = st.tuples(
    st.integers(0, 2),
    st.integers(1, 4),
    st.sampled_from([HERE, ELSEWHERE]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
histories = st.lists(
    st.one_of(
        st.tuples(st.just("desired"), st.integers(1, 3), st.integers(1, 5), st.lists(places, max_size=3)),
        st.tuples(
            st.just("masters"), st.integers(1, 5), st.lists(st.sampled_from([HERE, ELSEWHERE]), max_size=2)
        ),
        st.tuples(st.just("submitted again")),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("job ended")),
        st.tuples(st.just("wait"), st.floats(0.0, 20.0)),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_no_incarnation_is_ever_started_twice_nor_beside_another_of_its_member(history: list[tuple]) -> None:  # type: ignore[type-arg]
    state, now_s, uid = evolve(EMPTY, submitted()), 0.0, "u1"
    ran: set[tuple[str, Member]] = set()
    for step in history:
        match step:
            case ("desired", term, plan, members):
                named = {each[0]: worker(*each) for each in members}
                state = evolve(state, desired(*named.values(), term=term, plan=plan, uid=uid))
            case ("masters", plan, hosts):
                state = evolve(state, masters(*hosts, plan=plan))
            case ("submitted again",):
                uid = f"u{int(uid[1:]) + 1}"
                state = evolve(state, submitted(uid))
            case ("end", which) if state.observed:
                it = list(state.observed.values())[which % len(state.observed)].incarnation
                state = evolve(state, Exited("demo", it.uid, it.member, Exit(reason="killed"), 1.0, now_s))
            case ("job ended",):
                state = evolve(state, JobEnded(job="demo", state="stopped"))
            case ("wait", seconds):
                now_s += seconds
        running = set(state.observed)
        state, actions = act(state, now_s)
        for action in actions:
            if isinstance(action, Start):
                assert action.incarnation.key not in running
                assert (action.incarnation.uid, action.incarnation.member) not in ran
                ran.add((action.incarnation.uid, action.incarnation.member))
        assert not [each for each in decide(state, now_s) if not isinstance(each, Forget)]
        loads: dict[int, float] = {}
        for each in state.observed.values():
            for cpu, share in each.incarnation.cpus.items():
                loads[cpu] = loads.get(cpu, 0.0) + share
        assert all(load <= 1.0 + 1e-6 for load in loads.values())


def forgotten(uid: str = "u1") -> JobForgotten:
    return JobForgotten(job="demo", uid=uid)


def test_the_files_of_a_job_that_was_forgotten_go_once_nothing_of_it_lives() -> None:
    running = after(EMPTY, [submitted("u1"), Spawned(Incarnation("demo", "u1", worker(0)))])
    ended_job = after(running, [JobEnded(job="demo", state="completed"), forgotten()])
    assert Erase("demo", "u1") not in decide(ended_job, 0.0)
    over = evolve(ended_job, ended(Member("worker", 0, 1)))
    over = evolve(over, RecordsForgotten("demo"))
    assert decide(over, 0.0) == [Erase("demo", "u1")]
    assert decide(evolve(over, RunErased("demo")), 0.0) == []


@pytest.mark.parametrize("uid", ["u1", "u2"])
def test_a_job_that_runs_is_not_forgotten(uid: str) -> None:
    state = after(EMPTY, [submitted("u1"), desired(worker(0), uid="u1")])
    assert evolve(state, forgotten(uid)).jobs == state.jobs


def test_a_daemon_that_was_away_erases_what_it_kept_and_not_the_next_run_of_the_name() -> None:
    assert decide(evolve(EMPTY, forgotten()), 0.0) == [Erase("demo", "u1")]
    assert decide(after(EMPTY, [forgotten(), submitted("u2")]), 0.0) == []


IN_ORDER = [(0, 1, "host-a", 0.0), (1, 1, "host-a", 0.0)]


@settings(max_examples=300, deadline=None)
@given(histories)
@example([("desired", 1, 1, IN_ORDER), ("desired", 1, 1, IN_ORDER[::-1])])
def test_what_wants_the_same_needs_no_decision(history: list[tuple]) -> None:  # type: ignore[type-arg]
    state, uid = evolve(EMPTY, submitted()), "u1"
    for step in history:
        before = state
        match step:
            case ("desired", term, plan, members):
                named = {each[0]: worker(*each) for each in members}
                state = evolve(state, desired(*named.values(), term=term, plan=plan, uid=uid))
            case ("masters", plan, hosts):
                state = evolve(state, masters(*hosts, plan=plan))
            case ("submitted again",):
                uid = f"u{int(uid[1:]) + 1}"
                state = evolve(state, submitted(uid))
            case ("job ended",):
                state = evolve(state, JobEnded(job="demo", state="stopped"))
            case _:
                state, _ = act(state, 0.0)
                continue
        if wants_the_same(before, state, "demo"):
            assert decide(state, 0.0) == decide(before, 0.0)


def test_a_plan_wants_something_where_it_adds_or_removes_a_member() -> None:
    first = evolve(EMPTY, submitted())
    elsewhere = evolve(first, desired(worker(0, host=ELSEWHERE), plan=1))
    here = evolve(elsewhere, desired(worker(0, host=ELSEWHERE), worker(1), plan=2))
    more = evolve(here, desired(worker(0, host=ELSEWHERE), worker(1), worker(2, host=ELSEWHERE), plan=3))
    none = evolve(more, desired(worker(0, host=ELSEWHERE), plan=4))
    pairs = [(first, elsewhere), (elsewhere, here), (here, more), (more, none)]
    assert [wants_the_same(*pair, "demo") for pair in pairs] == [True, False, True, False]
    assert elsewhere != first, "what is older is refused from here on"
