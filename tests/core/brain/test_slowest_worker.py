"""The slowest of workers that wait for one another is replaced where that pays, though it is no straggler (design 0086)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from life_of_jobs import Job, Life

from rover_bus.brain.decisions.stragglers import LASTING_WINDOWS, WorkerPace, evolve_paces, find_slowest
from rover_bus.events.facts import PlanProposed


def paces(*shares: float, windows: int = 20, noise: float = 0.0) -> dict[int, WorkerPace]:
    """The paces of workers of these speeds after so many windows."""
    chance, known = random.Random(1), dict[int, WorkerPace]()
    for _ in range(windows):
        rates = {i: 100 * share * math.exp(noise * chance.gauss(0, 1)) for i, share in enumerate(shares)}
        known = evolve_paces(known, rates)
    return known


def test_the_gain_is_what_all_have_to_wait_for_then() -> None:
    found = find_slowest(paces(1.0, 0.95, 0.85, 1.0), 4)
    assert found is not None
    assert found.worker == 2
    # One of four successors is as slow as the slowest; with the others all wait for the second slowest.
    assert found.gain == pytest.approx(math.log(0.95 / 0.85) * 3 / 4)
    assert found.behind == pytest.approx(math.log(1.0 / 0.85))


@pytest.mark.parametrize(
    ("shares", "windows"),
    [
        ((1.0,), 20),  # it waits for no other
        ((1.0, 0.85, 1.0, 1.0), LASTING_WINDOWS - 1),  # not known yet
        ((1.0, 0.3, 1.0, 1.0), 20),  # a straggler, which has a remedy of its own
    ],
)
def test_none_is_named(shares: Sequence[float], windows: int) -> None:
    assert find_slowest(paces(*shares, windows=windows), len(shares)) is None


def test_a_worker_that_joined_lately_is_waited_for() -> None:
    known = paces(1.0, 0.85, 1.0, 1.0)
    for _ in range(LASTING_WINDOWS - 1):
        known = evolve_paces(known, {0: 100.0, 1: 85.0, 2: 100.0, 3: 100.0, 4: 90.0})
    assert find_slowest(known, 5) is None
    known = evolve_paces(known, {0: 100.0, 1: 85.0, 2: 100.0, 3: 100.0, 4: 90.0})
    assert find_slowest(known, 5) is not None


def test_workers_that_are_alike_are_seldom_told_apart_by_noise() -> None:
    named = 0
    for seed in range(200):
        chance, known = random.Random(seed), dict[int, WorkerPace]()
        for _ in range(LASTING_WINDOWS):
            known = evolve_paces(known, {i: 100 * math.exp(0.2 * chance.gauss(0, 1)) for i in range(4)})
        named += find_slowest(known, 4) is not None
    assert named < 100


def played(training: str, share: float, seconds: float = 120.0, **more: float) -> tuple[Life, Job]:
    life = Life(cores=more.pop("cluster", 64.0))
    job = life.submit("ads", lambda workers: 1000.0 * workers, workers=4, training=training, **more)
    job.slow[2] = share
    life.wait(seconds)
    return life, job


def replaced(life: Life) -> list[tuple[str, str]]:
    return [(str(member), plan.constant) for plan in life.found(PlanProposed) for member in plan.replaces]


def test_a_synchronous_job_is_given_another_worker_for_its_slowest() -> None:
    life, _ = played("synchronous", 0.85)
    assert replaced(life) == [("worker-2.1", "slowest_replace")]
    (plan,) = (plan for plan in life.found(PlanProposed) if plan.replaces)
    assert "all wait for worker-2.1, which takes 18% longer" in plan.reason
    assert plan.predicted > plan.measured > 0
    assert life.same()


def test_workers_that_wait_for_none_are_left_as_they_are() -> None:
    assert not replaced(played("asynchronous", 0.85)[0])


def test_what_differs_little_is_left() -> None:
    assert not replaced(played("synchronous", 0.99)[0])


def test_a_job_that_ends_soon_keeps_its_workers() -> None:
    total = 4 * 1000 * 125
    assert not replaced(played("synchronous", 0.97, total=total)[0])
    assert replaced(played("synchronous", 0.97, total=100 * total)[0])


def test_without_room_for_a_successor_beside_it_the_slowest_stays() -> None:
    assert not replaced(played("synchronous", 0.85, cores=1.0, cluster=5.0)[0])
    assert replaced(played("synchronous", 0.85, cores=1.0, cluster=6.0)[0])
