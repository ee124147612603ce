"""A synchronous job, all of whose workers have the pace of the slowest: it is found by its own part of a step."""

from __future__ import annotations

from life_of_jobs import Life

from rover_bus.brain.decisions.stragglers import (
    LASTING_WINDOWS,
    REPLACE_TOGETHER_WINDOWS,
    SLOW_WINDOWS,
    WorkerPace,
    decide_stragglers,
    is_due,
    was_well,
)
from rover_bus.events.facts import PlanProposed, StragglerFound


def played(training: str, slow: float) -> Life:
    life = Life(cores=64.0)
    job = life.submit("ads", lambda workers: 1000.0 * workers, workers=4, training=training)
    life.wait(40)
    job.slow[2] = slow
    life.wait(60)
    return life


def replaced(life: Life) -> list[str]:
    return [str(member) for plan in life.found(PlanProposed) for member in plan.replaces]


def test_the_worker_that_all_wait_for_is_named_and_replaced() -> None:
    life = played("synchronous", 0.3)
    found = list(life.found(StragglerFound))
    assert {str(fact.member) for fact in found} == {"worker-2.1"}
    assert (found[0].constant, found[0].lease_share) == ("straggler_holds_up_all", 1.0)
    assert abs(found[0].share - 0.3) < 0.05  # not the rate, which all have
    assert replaced(life) == ["worker-2.1"]
    assert life.same()


def test_one_that_is_ten_times_slower_is_found_too_though_the_others_work_a_tenth_of_their_time() -> None:
    assert replaced(played("synchronous", 0.1)) == ["worker-2.1"]


def test_it_is_replaced_sooner_than_one_whose_leases_can_shrink() -> None:
    pace = WorkerPace(past=100.0, slow=SLOW_WINDOWS, straggling=REPLACE_TOGETHER_WINDOWS, share=0.3)
    together, alone = (decide_stragglers({0: pace}, together=each)[0] for each in (True, False))
    assert (together.reason, together.lease_share) == ("straggler_replace", 1.0)
    assert (alone.reason, alone.lease_share) == ("straggler_smaller_leases", 0.3)


def test_a_successor_that_is_slow_too_is_replaced_later_each_time() -> None:
    """Its place makes it slow then: a job that was changed for it every other minute was never sized."""
    life = Life(cores=64.0)
    job = life.submit("ads", lambda workers: 1000.0 * workers, workers=4, training="synchronous")
    life.wait(40)
    for _ in range(240):
        job.slow[2] = 0.3
        life.wait(5)
    worker_2 = [name for name in replaced(life) if name.startswith("worker-2.")]
    assert 3 <= len(worker_2) <= 7  # fifty-three times without
    assert life.same()


def test_how_long_a_straggler_is_waited_for_doubles_with_each_that_it_succeeds() -> None:
    waited = [
        next(n for n in range(10_000) if is_due(WorkerPace(straggling=n), often, together=True))
        for often in range(4)
    ]
    assert waited == [REPLACE_TOGETHER_WINDOWS << often for often in range(4)]
    assert is_due(WorkerPace(straggling=10_000), 1_000)  # it is never given up
    had_been_well = WorkerPace(straggling=REPLACE_TOGETHER_WINDOWS, windows=LASTING_WINDOWS)
    assert is_due(had_been_well, 3, together=True)  # what slows it now is new
    assert was_well(WorkerPace(windows=LASTING_WINDOWS))
    assert not was_well(WorkerPace(windows=LASTING_WINDOWS - 1))
