"""What is measured while members are on their way: a job has a size that no plan chose, and to learn from it costs nothing."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size

from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import WindowClosed, WorkerWindow
from rover_bus.brain.state import Change, KnownJob
from rover_bus.brain.v1 import Brain, ClusterHost, Measurement, TrainingJob
from rover_bus.brain.watch import JobSamples
from rover_bus.brain.wishes import probe_view
from rover_bus.events.facts import Size
from rover_bus.events.identity import Member
from rover_bus.events.profiles import ServerProfile, WorkerProfile

HELD = size(4)
SERVER = Member("ps", 0, 1)
WORKERS = [Member("worker", index, 1) for index in range(4)]


def says(watch: JobSamples, member: Member, *at: float) -> None:
    for second in at:
        watch.observe(WorkerProfile(window_s=2.0, job="j", member=member, samples=200, batches=1), second)


def server_says(watch: JobSamples) -> None:
    watch.observe_server(
        ServerProfile(window_s=2.0, job="j", member=SERVER, pulls=1, pushes=1, ignored=0, busy_s=1.0)
    )


def closes(watch: JobSamples, known: KnownJob, at: float = 4.0) -> WindowClosed | None:
    return watch.close("j", known, at)


def job() -> KnownJob:
    known = runs("j", HELD)
    known.spec = known.spec.replace(plan=known.spec.plan.replace(window_s=4.0))
    return known


def watched(*there: Member, server: bool = True) -> JobSamples:
    watch = JobSamples()
    watch.restart("j", 0.0)
    for member in there:
        says(watch, member, 0.5, 2.5, 4.0)
    if server:
        server_says(watch)
    return watch


def test_a_window_is_closed_in_time_while_a_worker_is_on_its_way_and_says_how_many_are_there() -> None:
    window = closes(watched(*WORKERS[:3]), job())
    assert window is not None
    assert (window.clean, window.present) == (False, 3)


def test_all_of_them_are_no_part() -> None:
    window = closes(watched(*WORKERS), job())
    assert window is not None
    assert (window.clean, window.present) == (True, 0)


def test_one_that_fell_silent_is_waited_for_and_its_silence_is_no_size() -> None:
    watch = watched(*WORKERS)
    assert closes(watch, job()) is not None
    for member in WORKERS[:3]:
        says(watch, member, 6.5, 8.0)
    server_says(watch)
    assert closes(watch, job(), 8.0) is None
    window = closes(watch, job(), 12.0)
    assert window is not None
    assert (window.clean, window.present) == (False, 0)


def test_one_that_comes_in_the_middle_makes_it_a_window_of_no_size() -> None:
    watch = watched(*WORKERS[:3])
    says(watch, WORKERS[3], 4.0)  # its first word
    assert closes(watch, job()) is None


def test_nor_is_one_while_a_server_is_on_its_way() -> None:
    assert closes(watched(*WORKERS[:3], server=False), job()) is None


def test_nor_while_workers_train_whose_successors_are_on_their_way() -> None:
    known = job()
    known.former = [(Member("worker", 3, 0), "h")]
    assert closes(watched(*WORKERS[:3]), known) is None


def window(present: int, rate: float = 700.0) -> WindowClosed:
    workers = [WorkerWindow(index, 1, rate, rate, 0.0) for index in range(present)]
    return WindowClosed(job="j", seconds=4.0, clean=False, present=present, workers=workers)


def joins(step: str, before: Size, *windows: WindowClosed) -> dict[int, float]:
    """The measured sizes, by workers, of a job whose change to `HELD` is carried out while these windows close."""
    known = runs("j", HELD)
    known.tried = []
    known.change = Change(4, step, before, HELD, 90.0, 900.0, [], [], applied=True)
    state = cluster(known)
    for each in windows:
        evolve(state, each)
    assert known.change is not None, "what members do on their way is no verdict"
    return {
        row.size.workers: row.mean
        for row in known.tried
        if row.size.shape == HELD.replace(workers=row.size.workers).shape
    }


@pytest.mark.parametrize(("step", "before"), [("start", HELD), ("scale", size(2)), ("probe", size(2))])
def test_the_second_window_of_those_who_are_there_is_a_measurement_of_their_number(
    step: str, before: Size
) -> None:
    """The first one may have begun with one worker less."""
    assert joins(step, before, window(2), window(3)) == {}
    assert joins(step, before, window(2), window(3), window(3)) == {3: pytest.approx(2100.0)}
    assert set(joins(step, before, window(1), window(1), window(3), window(3))) == {1, 3}


def test_a_window_of_another_kind_between_them_begins_the_row_again() -> None:
    silent = WindowClosed(job="j", seconds=4.0, clean=False, workers=window(3).workers)
    assert joins("scale", size(2), window(3), silent, window(3)) == {}


def test_probes_stay_around_the_first_size_that_a_plan_chose() -> None:
    """A start whose workers came one by one was measured with one of them first: probes would have gone around that."""
    known = runs("j", HELD)
    known.tried = []
    state = cluster(known)
    for present in (1, 1, 3, 3):
        evolve(state, window(present))
    assert probe_view(known, 8.0).anchor.workers == 4
    evolve(state, WindowClosed(job="j", seconds=4.0, clean=True, workers=window(4).workers))
    assert probe_view(known, 8.0).anchor.workers == 4
    assert [(row.size.workers, row.passing) for row in known.tried] == [(1, True), (3, True), (4, False)]


def test_a_size_that_passed_and_is_chosen_later_is_one_that_was_chosen() -> None:
    known = runs("j", HELD)
    known.tried = []
    state = cluster(known)
    for _ in range(2):
        evolve(state, window(3))
    known.held = size(3)
    evolve(state, WindowClosed(job="j", seconds=4.0, clean=True, workers=window(3).workers))
    for _ in range(2):
        evolve(state, window(2))
    assert [(row.size.workers, row.passing) for row in known.tried] == [(3, False), (2, True)]


def test_nothing_is_learnt_while_slots_move() -> None:
    assert joins("scale", size(2, servers=2), window(3), window(3)) == {}


def test_nor_from_windows_that_a_slow_worker_spoils() -> None:
    known = runs("j", HELD)
    known.tried = []
    known.stragglers = {1: "smaller"}
    state = cluster(known)
    for _ in range(3):
        evolve(state, window(3))
    assert known.tried == []


def test_a_scheduler_tells_of_those_who_are_there_by_their_rates() -> None:
    """The library's word is the service's: a pod that is late costs no knowledge."""
    brain = Brain(at_once=False)
    brain.set_hosts({"h": ClusterHost(cores=64)}, 0.0)
    brain.submit(TrainingJob(name="ads", workers=4, max_servers=1), 0.0)
    brain.decide(0.0)
    for number, there in enumerate([2, 3, 3], start=1):
        sample = Measurement(
            job="ads",
            seconds=30.0,
            samples_per_s=100.0 * there,
            worker_samples_per_s=[100.0] * there,
            server_cores_busy=[0.5],
        )
        brain.observe(sample, 30.0 * number)
        brain.decide(30.0 * number)
    tried = brain._decider.state.jobs["ads"].tried
    assert {row.size.workers: row.mean for row in tried} == {3: pytest.approx(300.0)}
