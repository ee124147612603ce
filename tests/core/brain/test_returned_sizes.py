"""What a size shows when its job comes back to it is its own, and what drifts while a job stays drifts for all sizes."""

from __future__ import annotations

import pytest

from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import FactObserved, WindowClosed, WorkerWindow
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.events.facts import PlanApplied, PlanSettled, Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec

WINDOW_S = 4.0
NARROW, WIDE, OTHER = (Size(workers=workers, servers=1) for workers in (2, 4, 3))


def brain() -> BrainState:
    """A job that holds two workers, and takes four for a sixth faster, because it was measured while one of the two was slow."""
    spec = JobSpec(name="j", program=["x"], data=DataSpec(train="t"), plan=PlanSpec(window_s=WINDOW_S))
    rows = [TriedSize(size, 9.0, mean) for size, mean in ((NARROW, 214.0), (WIDE, 250.0), (OTHER, 200.0))]
    job = KnownJob("u", spec, plan=2, held=NARROW, settled_s=0.0, tried=rows)
    return BrainState(hosts={"h": HostCapacity(cores=8, memory_bytes=1 << 30)}, jobs={"j": job})


def move(state: BrainState, plan: int, size: Size) -> None:
    applied = PlanApplied(job="j", plan=plan, workers=size.workers, servers=1, size=size)
    for fact in (applied, PlanSettled(job="j", plan=plan)):
        evolve(state, FactObserved(fact=fact, cause="x"))


def windows(state: BrainState, rate: float, count: int) -> None:
    for _ in range(count):
        worker = [WorkerWindow(0, 1, rate, rate, 0.0)]
        evolve(state, WindowClosed(job="j", seconds=WINDOW_S, clean=True, workers=worker))


def means(state: BrainState) -> list[float]:
    return [row.mean for row in state.jobs["j"].tried]


def test_two_sizes_that_were_taken_for_different_are_told_apart_by_going_there_and_back() -> None:
    state = brain()
    move(state, 3, WIDE)
    windows(state, 214.0, 3)
    assert means(state) == pytest.approx([214.0, 214.0, 200.0], rel=0.03)
    move(state, 4, NARROW)
    windows(state, 214.0, 3)
    assert means(state) == pytest.approx([214.0, 214.0, 200.0], rel=0.03)


def test_what_drifts_while_a_job_stays_drifts_for_all_its_sizes() -> None:
    state = brain()
    windows(state, 107.0, 40)
    assert means(state) == pytest.approx([107.0, 125.0, 100.0], rel=0.03)


def test_what_a_job_comes_back_to_and_what_drifts_from_then_on_are_two_things() -> None:
    state = brain()
    move(state, 3, WIDE)
    windows(state, 214.0, 6)
    windows(state, 107.0, 40)
    assert means(state) == pytest.approx([107.0, 107.0, 100.0], rel=0.05)


def test_a_lone_worker_is_not_called_slow_for_what_a_smaller_size_costs_it() -> None:
    """It was replaced again and again: half the cores made it half as fast as it had been, and no peer said that this is usual."""
    state = brain()
    alone = Size(workers=1, servers=1, worker_cores=2.0, server_cores=2.0)
    state.jobs["j"].held = alone
    windows(state, 100.0, 6)
    move(state, 3, alone.replace(worker_cores=1.0, server_cores=1.0))
    windows(state, 50.0, 6)
    assert not state.jobs["j"].paces[0].straggling
    windows(state, 20.0, 6)
    assert state.jobs["j"].paces[0].straggling, "but for what befalls it there"
