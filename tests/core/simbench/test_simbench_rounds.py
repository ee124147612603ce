"""A round across jobs whose models are their own: never above capacity, room for who waits, quiet where nothing is gained."""

from __future__ import annotations

import numpy as np
import pytest
from brain_states import decide_round
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import Contender
from rover_bus.brain.decisions.scaling import DEFAULT_RULES, JobView, plan_front
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.models.throughput import Prediction

SPACE = PlanSpace((1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4), (1, 2, 4))


class Concave:
    """Throughput grows with the square root of all cores."""

    def __init__(self, scale: float = 1000.0) -> None:
        self.scale = scale

    def predict(self, at: Configurations) -> Prediction:
        speed = self.scale * np.sqrt(at.workers * at.worker_cores + at.ps * at.ps_cores)
        return Prediction(speed, speed, speed, np.zeros(len(at), dtype=np.bool_))


def contender(workers: int = 4, waiting: bool = False, known: bool = True, samples: float = 1e7) -> Contender:
    held = Allocation(
        workers=workers,
        servers=1,
        worker_cores=2,
        server_cores=2,
        worker_memory_bytes=GIB,
        server_memory_bytes=2 * GIB,
    )
    view = JobView(held=held, batch_size=512, remaining_samples=samples, table_bytes=GIB)
    return Contender(view=view, model=Concave() if known else None, waiting=waiting)


def test_jobs_that_run_make_room_for_one_that_waits() -> None:
    running = [contender(8), contender(8)]
    full = sum(c.view.held.cores for c in running)
    decisions = decide_round([*running, contender(4, waiting=True)], full, 1000 * GIB, SPACE)
    assert decisions[-1].allocation.workers > 0
    assert decisions[-1].reason is Reason.BEST_VALUE_UNDER_CAPACITY
    assert sum(d.allocation.cores for d in decisions) <= full


def test_a_waiting_job_without_room_gets_nothing_and_says_so() -> None:
    unchangeable = contender(4, known=False)
    decisions = decide_round([unchangeable, contender(4, waiting=True)], 10.0, 1000 * GIB, SPACE)
    assert decisions[0].reason is Reason.KEEP
    assert decisions[1].allocation.members == 0
    assert decisions[1].reason is Reason.NO_CAPACITY


def test_when_not_even_what_runs_fits_nobody_is_moved_and_nobody_starts() -> None:
    decisions = decide_round([contender(8, known=False), contender(4, waiting=True)], 3.0, 1000 * GIB, SPACE)
    assert decisions[0].allocation == contender(8).view.held
    assert decisions[1].allocation.members == 0


def test_a_job_that_must_rest_keeps_what_it_holds() -> None:
    import msgspec

    resting = msgspec.structs.replace(contender(2), settled=False)
    assert decide_round([resting], 1000.0, 1000 * GIB, SPACE)[0].allocation == resting.view.held


def test_a_gain_within_the_dead_band_moves_nobody() -> None:
    best = decide_round([contender(16)], 1000.0, 1000 * GIB, SPACE)[0].allocation
    view = JobView(held=best, batch_size=512, remaining_samples=1e7, table_bytes=GIB)
    again = decide_round([Contender(view=view, model=Concave())], 1000.0, 1000 * GIB, SPACE)[0]
    assert again.reason is Reason.KEEP


def test_the_front_ends_where_the_next_step_does_not_pay() -> None:
    front = plan_front(contender(4).view, Concave(), SPACE)
    assert np.all(np.diff(front.cost) > 0)
    assert np.all(np.diff(front.speed) > 0)
    longer = plan_front(contender(4).view, Concave(1.0), SPACE)
    assert len(front.allocations) == len(longer.allocations), "no unit of throughput matters"


@settings(deadline=None, max_examples=40)
@given(
    workers=st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=6),
    waiting=st.lists(st.booleans(), min_size=6, max_size=6),
    cores=st.floats(4.0, 200.0),
)
def test_a_round_never_passes_capacity_and_never_starves_what_runs(
    workers: list[int], waiting: list[bool], cores: float
) -> None:
    jobs = [contender(w, waiting=waits) for w, waits in zip(workers, waiting, strict=False)]
    running = sum(c.view.held.cores for c in jobs if not c.waiting)
    decisions = decide_round(jobs, cores, 1000 * GIB, SPACE)
    total = sum(d.allocation.cores for d in decisions)
    assert total <= max(cores, running) * (1 + 1e-9)
    for job, decision in zip(jobs, decisions, strict=True):
        assert job.waiting or decision.allocation.workers >= 1


def test_an_empty_round_decides_nothing() -> None:
    assert decide_round([], 10.0, GIB, SPACE) == []


@pytest.mark.parametrize("short", [0, 1])
def test_short_jobs_go_first_when_both_cannot(short: int) -> None:
    samples = [1e9, 1e9]
    samples[short] = 1e6
    jobs = [contender(8, samples=s) for s in samples]
    import msgspec

    from rover_bus.brain.decisions.scoring import ScalePolicy

    rules = msgspec.structs.replace(DEFAULT_RULES, policy=ScalePolicy(scale_s=0.0, short_jobs_first=1.0))
    decisions = decide_round(jobs, 30.0, 1000 * GIB, SPACE, rules)
    assert decisions[short].allocation.cores > decisions[1 - short].allocation.cores


class Guessing(Concave):
    """Certain of what has at most four workers; everything beyond is a guess."""

    def predict(self, at: Configurations) -> Prediction:
        said = super().predict(at)
        return Prediction(said.throughput, said.low_90, said.high_90, at.workers > 4)


@pytest.mark.parametrize(("tries", "most"), [(False, 4), (True, 8)])
def test_a_round_tries_a_guess_only_where_the_rules_say_so_and_never_beyond_one_step(
    tries: bool, most: int
) -> None:
    import msgspec

    rules = msgspec.structs.replace(
        DEFAULT_RULES, restraint=msgspec.structs.replace(DEFAULT_RULES.restraint, tries=tries)
    )
    front = plan_front(contender(4).view, Guessing(), SPACE, rules)
    assert max(allocation.workers for allocation in front.allocations) == most
