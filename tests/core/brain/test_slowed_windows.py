"""What is measured while a worker is slow says nothing of the job's size, unless it stays so."""

from __future__ import annotations

from typing import Any

import pytest

from rover_bus.brain.decisions.stragglers import REPLACE_WINDOWS, SLOW_WINDOWS
from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import WindowClosed, WorkerWindow
from rover_bus.brain.state import BrainState, Change, KnownJob
from rover_bus.events.facts import Size, StragglerFound, StragglerRecovered
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec


def told(rates: list[float], *more: object) -> list[object]:
    """Windows in which the job trained so many samples a second, then what else."""
    workers = [WorkerWindow(0, 1, rate, rate, 0.0) for rate in rates]
    windows = [WindowClosed(job="ads", seconds=10.0, clean=True, workers=[worker]) for worker in workers]
    return [*windows, *more]


def noted(found: bool) -> StragglerFound | StragglerRecovered:
    slow = Member("worker", 1, 1)
    if not found:
        return StragglerRecovered(job="ads", member=slow, share=0.2)
    return StragglerFound(
        job="ads", member=slow, share=0.2, lease_share=0.5, rate=1.0, usual=5.0, constant="smaller"
    )


def recent(*records: object) -> list[float]:
    return known_after(*records).recent


def pairs(*rates: tuple[float, float]) -> list[WindowClosed]:
    """Windows of two workers, with the pace of each."""
    return [
        WindowClosed(
            job="ads",
            seconds=10.0,
            clean=True,
            workers=[WorkerWindow(index, 1, rate, rate, 0.0) for index, rate in enumerate(both)],
        )
        for both in rates
    ]


def known_after(*records: object) -> KnownJob:
    state = BrainState(jobs={"ads": KnownJob(uid="u", spec=SPEC, held=Size(workers=2, servers=1))})
    for record in records:
        evolve(state, record)
    return state.jobs["ads"]


SPEC = JobSpec(name="ads", program=["train"], data=DataSpec(train="t.csv"))
FAST, SLOW = [100.0] * 4, [30.0] * SLOW_WINDOWS


def test_windows_that_showed_a_straggler_are_left_out_and_those_until_it_recovers() -> None:
    assert recent(*told(FAST + SLOW)) == FAST + SLOW
    assert recent(*told(FAST + SLOW, noted(True)), *told([40.0] * 3)) == FAST
    assert recent(*told(FAST + SLOW, noted(True)), *told([40.0], noted(False)), *told([90.0])) == [
        *FAST,
        90.0,
    ]


def test_a_worker_that_stays_slow_is_what_the_job_has() -> None:
    long = told([40.0] * REPLACE_WINDOWS)
    assert recent(*told(FAST + SLOW, noted(True)), *long) == [40.0] * SLOW_WINDOWS


def test_beside_peers_the_first_slow_window_is_left_out_and_what_a_size_has_shown_stays_clean() -> None:
    """The windows until a worker was found stood in its family's model: at half of the truth, where all wait for the slowest."""
    found = pairs(*[(50.0, 50.0)] * 4, *[(50.0, 10.0)] * SLOW_WINDOWS)
    job = known_after(*found, noted(True), *pairs((50.0, 10.0)), noted(False), *pairs((50.0, 50.0)))
    assert job.recent == [100.0] * 5
    assert [(row.mean, row.scatter) for row in job.tried] == [(100.0, 0.0)]


def test_a_single_slow_window_is_left_out_and_owes_nothing_to_the_next() -> None:
    job = known_after(*pairs(*[(50.0, 50.0)] * 4, *[(50.0, 10.0), (50.0, 50.0)] * REPLACE_WINDOWS))
    assert job.recent == [100.0] * 6
    assert job.slowed == []


def test_a_pair_of_which_one_stays_slow_is_what_the_job_has() -> None:
    slow = pairs(*[(50.0, 10.0)] * (REPLACE_WINDOWS + 2))
    assert known_after(*pairs(*[(50.0, 50.0)] * 4), *slow).recent == [60.0] * 2


def meanwhile(rates: list[float], settled: bool = False, workers: int = 2) -> list[float]:
    """What a change is held against after such windows while its members are on their way."""
    state = BrainState(jobs={"ads": KnownJob(uid="u", spec=SPEC, held=Size(workers=4, servers=1))})
    before, after = Size(workers=2, servers=1), Size(workers=4, servers=1)
    change = Change(2, "scale", before, after, 150.0, 0.0, [100.0] * 3, applied=True, settled=settled)
    state.jobs["ads"].change = change
    for rate in rates:
        each = [WorkerWindow(index, 1, rate / workers, rate / workers, 0.0) for index in range(workers)]
        evolve(state, WindowClosed(job="ads", seconds=10.0, clean=True, workers=each))
    return change.base


def test_a_change_is_held_against_the_bad_minutes_in_which_its_members_came() -> None:
    """A server was slow for six minutes, before a change and after it: growth by half was taken back for good (W2, seed 7)."""
    bad = [48.0, 52.0, 47.0, 50.0]
    assert meanwhile(bad)[-4:] == bad
    base = sorted(meanwhile(bad))
    assert base[len(base) // 2] <= 52.0


@pytest.mark.parametrize(
    ("rates", "more"),
    [([124.0] * 4, {}), ([95.0] * 4, {}), ([50.0] * 4, {"workers": 3}), ([50.0] * 4, {"settled": True})],
    ids=["a part of it has come", "noise", "some have come", "it is judged"],
)
def test_a_change_is_held_against_nothing_else_that_comes_meanwhile(
    rates: list[float], more: dict[str, Any]
) -> None:
    assert meanwhile(rates, **more) == [100.0] * 3
