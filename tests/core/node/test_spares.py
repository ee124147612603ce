"""Spares of a host: made where a start is worth it, in the room that members leave, first to go, used by a worker that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rover_bus.events.deciding import WakeAt
from rover_bus.events.facts import JobEnded, JobForgotten, JobSubmitted, MembersDesired
from rover_bus.events.host_facts import HostSpareFailed, HostSpareMended
from rover_bus.events.identity import DesiredMember, Exit, HostCapacity, Member, Resources
from rover_bus.events.job import DataSpec, JobSpec, WorkersSpec
from rover_bus.events.programs import STARTS
from rover_bus.node import decider
from rover_bus.node.decider import Effect, Erase, Forget, Start, Stop, TryProgram
from rover_bus.node.members import Happening, HostMembers, ProgramTried, RecordsForgotten, RunErased, evolve
from rover_bus.node.port import (
    Exited,
    Leaving,
    Running,
    SpareGone,
    SpareReady,
    SpareSpawned,
    Spawned,
    WorkerLoaded,
)
from rover_bus.node.spares import (
    CALM_S,
    MOST_LOADING_S,
    PAUSE_S,
    Drop,
    MemoryPressed,
    Prepare,
    is_pressed,
    spare_fact,
)

HERE, GIB = "host-a", 1 << 30
PROGRAM = ["python", "train.py"]
SLOW_S, QUICK_S = 5.0, 0.4  # starts of programs


def worker(
    index: int, incarnation: int = 1, *, cores: float = 1.0, memory_bytes: int = 0, **more: object
) -> DesiredMember:
    member = Member("worker", index, incarnation)
    resources = Resources(cores=cores, memory_bytes=memory_bytes)
    wanted = DesiredMember(member=member, host=HERE, command=PROGRAM, resources=resources)
    return wanted.replace(**more)


class HostOfSpares:
    """A host as its daemon and a platform carry out what is decided."""

    def __init__(self, cores: float = 8.0, memory_bytes: int = 64 * GIB, most: int = 2) -> None:
        capacity = HostCapacity(cores=cores, memory_bytes=memory_bytes)
        self.state = HostMembers(HERE, capacity=capacity)
        self.now_s = 100.0
        self.plan = 0
        self.submit("demo", "u1", most)

    def submit(self, job: str, uid: str, most: int = 2) -> None:
        workers = WorkersSpec(spares=most)
        spec = JobSpec(name=job, program=PROGRAM, data=DataSpec(train="x"), workers=workers)
        self.take(JobSubmitted(job=job, uid=uid, spec=spec))

    def take(self, *happenings: Happening) -> None:
        for each in happenings:
            self.state = evolve(self.state, each)

    def desire(self, *members: DesiredMember, job: str = "demo", uid: str = "u1") -> None:
        self.plan += 1
        self.take(MembersDesired(job=job, uid=uid, term=1, plan=self.plan, members=list(members)))

    def turn(self) -> list[Effect]:
        """Decide, and carry it out as a platform does, until nothing is left to do; return all that was done."""
        done: list[Effect] = []
        while effects := [
            each for each in decider.decide(self.state, self.now_s) if not isinstance(each, WakeAt)
        ]:
            done += effects
            assert len(done) < 100, done
            for effect in effects:
                self.carry_out(effect)
        return done

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(run, spare):
                gone = [SpareGone((run.job, spare), "used", self.now_s)] if spare else []
                self.take(*gone, Spawned(run), Running(run.key))
            case Stop(run):
                self.take(Leaving(run.key))
                end = Exited(run.job, run.uid, run.member, Exit(reason="drained"), 9.0, self.now_s)
                self.take(end)
            case Prepare(spare):
                self.take(SpareSpawned(spare, self.now_s))
            case Drop(spare):
                self.take(SpareGone(spare.key, "dropped", self.now_s))
            case Forget(job):
                self.take(RecordsForgotten(job))
            case Erase(job):
                self.take(RunErased(job))
            case TryProgram(job, uid, for_start=for_start):
                self.take(ProgramTried(job, uid, for_start=for_start))
                self.take(ProgramTried(job, uid, STARTS, self.now_s))

    def load(self, index: int = 0, start_s: float = SLOW_S, job: str = "demo", uid: str = "u1") -> None:
        self.take(WorkerLoaded((job, f"worker-{index}"), uid, start_s, self.now_s))

    def ready(self) -> None:
        """Each spare that is made in the course of a minute gets ready."""
        for _ in range(60):
            self.now_s += 1.0
            self.turn()
            self.take(*(SpareReady(key) for key in self.state.spares.held))

    @property
    def spares(self) -> list[int]:
        return sorted(number for _, number in self.state.spares.held)


def made(effects: list[Effect]) -> list[int]:
    return [each.spare.number for each in effects if isinstance(each, Prepare)]


def dropped(effects: list[Effect]) -> list[int]:
    return [each.spare.number for each in effects if isinstance(each, Drop)]


def started(effects: list[Effect]) -> dict[str, int]:
    return {str(each.incarnation.member): each.spare for each in effects if isinstance(each, Start)}


def running_host(*members: DesiredMember, cores: float = 8.0, most: int = 2) -> HostOfSpares:
    """A host whose workers have run, and one of which said what it had loaded."""
    host = HostOfSpares(cores, most=most)
    host.desire(*(members or [worker(0)]))
    host.turn()
    host.load()
    return host


def test_a_worker_that_took_long_to_join_is_followed_by_spares_one_after_the_other() -> None:
    host = running_host()
    assert made(host.turn()) == [], "it has only just joined"
    host.now_s += CALM_S
    assert made(host.turn()) == [1]
    assert made(host.turn()) == [], "one at a time"
    host.take(SpareReady(("demo", 1)))
    assert made(host.turn()) == [2]
    host.take(SpareReady(("demo", 2)))
    assert made(host.turn()) == [], "two are the most"


def test_it_is_asked_again_when_the_first_spare_may_be_made() -> None:
    host = running_host()
    wakes = [each.at_s for each in decider.decide(host.state, host.now_s) if isinstance(each, WakeAt)]
    assert wakes == [host.now_s + CALM_S]


@pytest.mark.parametrize("why", ["its start was quick", "it never joined", "it wants none"])
def test_a_job_gets_no_spares_where(why: str) -> None:
    host = HostOfSpares(most=0 if why == "it wants none" else 2)
    host.desire(worker(0))
    host.turn()
    if why != "it never joined":
        host.load(start_s=QUICK_S if why == "its start was quick" else SLOW_S)
    host.ready()
    assert host.spares == []


def test_the_next_worker_is_what_a_spare_becomes_and_another_spare_follows() -> None:
    host = running_host()
    host.ready()
    host.desire(worker(0), worker(1))
    assert started(host.turn()) == {"worker-1.1": 1}
    assert host.spares == [2]
    host.ready()
    assert host.spares == [2, 3]


def test_two_workers_never_become_the_same_spare_and_a_third_starts_cold() -> None:
    host = running_host()
    host.ready()
    host.desire(worker(0), worker(1), worker(2), worker(3))
    assert sorted(started(host.turn()).values()) == [0, 1, 2]


def test_a_lost_worker_is_followed_by_a_spare() -> None:
    host = running_host()
    host.ready()
    host.take(Exited("demo", "u1", Member("worker", 0, 1), Exit(reason="killed"), 9.0, host.now_s))
    assert dropped(host.turn()) == [], "it is still desired: its master has not reacted yet"
    host.desire(worker(0, 2))
    assert started(host.turn()) == {"worker-0.2": 1}


def test_a_spare_that_is_not_ready_is_no_start() -> None:
    host = running_host()
    host.now_s += CALM_S
    host.turn()
    host.desire(worker(0), worker(1))
    assert started(host.turn()) == {"worker-1.1": 0}


@pytest.mark.parametrize(
    "other",
    [
        {"command": ["python", "train.py", "--more"]},
        {"environment": {"A": "b"}},
        {"directory": "/elsewhere"},
        {"resources": Resources(cores=2.0)},
        {"grace_s": 99.0},
    ],
)
def test_a_worker_of_another_shape_starts_cold_and_the_spares_are_replaced(other: dict[str, object]) -> None:
    host = running_host()
    host.ready()
    host.desire(worker(0), worker(1, **other))
    effects = host.turn()
    assert started(effects) == {"worker-1.1": 0}
    assert dropped(effects) == [1, 2]
    host.ready()
    assert host.spares == [3, 4]
    host.desire(worker(0), worker(1, **other), worker(2, **other))
    assert started(host.turn()) == {"worker-2.1": 3}


def test_the_next_run_of_a_job_takes_no_spare_of_the_former() -> None:
    host = running_host()
    host.ready()
    host.take(JobEnded(job="demo", state="completed"))
    host.submit("demo", "u2")
    host.desire(worker(0), uid="u2")
    effects = host.turn()
    assert started(effects) == {"worker-0.1": 0}
    assert dropped(effects) == [1, 2]


@pytest.mark.parametrize("end", ["ended", "forgotten", "no worker here"])
def test_spares_go_with_what_they_were_for(end: str) -> None:
    host = running_host()
    host.ready()
    if end == "no worker here":
        host.desire()
    else:
        host.take(JobEnded(job="demo", state="completed"))
    if end == "forgotten":
        host.take(JobForgotten(job="demo", uid="u1"))
    assert dropped(host.turn()) == [1, 2]
    host.ready()
    assert host.spares == []


def test_spares_have_only_the_cores_that_members_leave() -> None:
    host = running_host(worker(0, cores=1.5), worker(1, cores=1.5), cores=4.0)
    host.ready()
    assert host.spares == [], "three of four cores are promised, and a spare is as large as a worker"
    host = running_host(worker(0, cores=1.5), cores=4.0)
    host.ready()
    assert len(host.spares) == 1


def test_spares_go_in_the_same_turn_in_which_a_member_of_another_job_needs_their_room() -> None:
    host = running_host(worker(0), cores=4.0)
    host.ready()
    assert host.spares == [1, 2]
    host.submit("other", "v1")
    host.desire(worker(0, cores=2.0), job="other", uid="v1")
    host.turn()
    effects = host.turn()
    assert host.spares == [1], effects


def test_memory_that_was_promised_bounds_spares_too() -> None:
    host = HostOfSpares(memory_bytes=10 * GIB)
    host.desire(worker(0, cores=0.0, memory_bytes=4 * GIB))
    host.turn()
    host.load()
    host.ready()
    assert len(host.spares) == 1


def test_all_spares_go_when_the_hosts_memory_is_pressed_and_return_when_it_is_not() -> None:
    host = running_host(worker(0, cores=0.0))
    host.ready()
    host.take(MemoryPressed(pressed=True))
    assert dropped(host.turn()) == [1, 2]
    host.ready()
    assert host.spares == []
    host.take(MemoryPressed(pressed=False))
    host.ready()
    assert len(host.spares) == 2


def test_memory_is_pressed_from_one_share_on_until_below_another() -> None:
    assert [is_pressed(False, used, 100) for used in (80, 86)] == [False, True]
    assert [is_pressed(True, used, 100) for used in (80, 74)] == [True, False]


def test_a_spare_that_ends_by_itself_is_followed_after_a_pause_that_doubles() -> None:
    host = running_host()
    host.now_s += CALM_S
    host.turn()
    for factor in (1.0, 2.0, 4.0):
        (number,) = host.spares
        host.take(SpareGone(("demo", number), "ended", host.now_s))
        host.now_s += factor * PAUSE_S - 0.1
        assert made(host.turn()) == []
        host.now_s += 0.2
        assert made(host.turn()) == [number + 1]


def test_a_spare_that_never_gets_ready_goes_and_is_followed_after_a_pause() -> None:
    host = running_host()
    host.now_s += CALM_S
    host.turn()
    host.now_s += MOST_LOADING_S
    effects = host.turn()
    assert (made(effects), dropped(effects)) == ([], [1])
    host.now_s += PAUSE_S
    assert made(host.turn()) == [2]


def test_failures_of_spares_are_said_with_their_cause_and_a_spare_that_is_ready_again() -> None:
    host = running_host()
    host.now_s += CALM_S
    host.turn()
    said = list[str]()

    def see(seen: SpareReady | SpareGone) -> None:
        before = host.state.spares
        host.take(seen)
        match spare_fact(before, host.state.spares, seen, HERE, "d1"):
            case HostSpareFailed(failures=failures, why=why, again_s=again_s):
                said.append(f"{failures}: {why}, again after {again_s:g} s")
            case HostSpareMended(number=number):
                said.append(f"{number} is ready")

    see(SpareGone(("demo", 1), "ended", host.now_s, "SIGKILL"))
    host.now_s += PAUSE_S
    host.turn()
    host.now_s += MOST_LOADING_S
    see(SpareGone(("demo", 2), "dropped", host.now_s, "reading a large file"))
    host.now_s += 2 * PAUSE_S
    host.turn()
    see(SpareReady(("demo", 3)))
    see(SpareGone(("demo", 3), "used", host.now_s))
    host.now_s += CALM_S
    host.turn()
    see(SpareReady(("demo", 4)))
    see(SpareGone(("demo", 4), "dropped", host.now_s))
    assert said == [
        "1: it ended by itself: SIGKILL, again after 30 s",
        "2: not ready after 120 s: reading a large file, again after 60 s",
        "3 is ready",
    ]


def test_a_host_that_does_not_know_its_capacity_bounds_no_spares() -> None:
    host = running_host()
    host.state = replace(host.state, capacity=None)
    host.ready()
    assert len(host.spares) == 2


def test_jobs_that_have_fewest_spares_are_served_first() -> None:
    host = running_host(worker(0), cores=5.0)
    host.submit("other", "v1")
    host.desire(worker(0), job="other", uid="v1")
    host.turn()
    host.load(job="other", uid="v1")
    host.ready()
    assert sorted(job for job, _ in host.state.spares.held) == ["demo", "demo", "other"]
