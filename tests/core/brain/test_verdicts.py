"""What becomes of a change that was measured: a probe that gave cores back, and one that a slow worker overtook."""

from __future__ import annotations

import pytest
from brain_states import cluster, runs, size

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.judging import judge
from rover_bus.brain.state import Change, KnownJob
from rover_bus.events.facts import PlanKept, PlanMeasured, PlanProposed, PlanRolledBack, Size
from rover_bus.events.log import Record

WIDE, NARROW = size(2, cores=4.0), size(2, cores=2.0)
BASE = [100.0] * 3


def verdict(
    step: str,
    before: Size,
    after: Size,
    windows: list[float],
    slow: str = "",
    base: list[float] = BASE,
    **more: object,
) -> list[Record]:
    job: KnownJob = runs("j", after)
    state = cluster(job, cores=32.0)
    job.stragglers = {0: slow} if slow else {}
    change = Change(4, step, before, after, 90.0, 900.0, base, windows, applied=True, settled=True, **more)  # type: ignore[arg-type]
    job.change = change
    return [each for each in judge("j", job, state) if not isinstance(each, PlanMeasured)]


@pytest.mark.parametrize("speed", [91.0, 100.0, 103.0])
def test_a_probe_that_gives_back_cores_which_were_idle_is_kept(speed: float) -> None:
    """It was held to what growth has to bring, and taken back for good: members stayed as wide as their user had asked."""
    (kept,) = verdict("probe", WIDE, NARROW, [speed] * 2)
    assert isinstance(kept, PlanKept)


def test_one_that_costs_more_than_was_said_is_taken_back() -> None:
    back, _ = verdict("probe", WIDE, NARROW, [70.0] * 2)
    assert isinstance(back, PlanRolledBack)
    assert back.constant == Reason.THROUGHPUT_FELL


def test_more_cores_that_bring_nothing_are_not_kept() -> None:
    assert isinstance(verdict("probe", NARROW, WIDE, [103.0] * 2)[0], PlanRolledBack)


def test_windows_that_disagree_wait_for_others() -> None:
    """A server's bad minutes took growth back that brought half as much again (W1, seed 0): two windows of three were theirs."""
    spoilt, well = [54.0, 54.0], [150.0, 151.0, 149.0, 152.0]
    assert verdict("scale", NARROW, size(4), [*spoilt, *well[:1]]) == []
    assert isinstance(verdict("scale", NARROW, size(4), [*spoilt, *well])[0], PlanKept)


@pytest.mark.parametrize(
    ("step", "windows"),
    [("scale", [80.0, 50.0, 60.0]), ("probe", [80.0, 50.0]), ("scale", [150.0, 220.0, 190.0])],
)
def test_windows_that_disagree_are_not_waited_for_where_each_would_give_the_same_verdict(
    step: str, windows: list[float]
) -> None:
    """A job whose server stood still went on for six windows on more workers than it had use for (S16: three)."""
    said = verdict(step, NARROW, WIDE if step == "probe" else size(4), windows)
    assert isinstance(said[0], PlanKept if min(windows) > BASE[0] else PlanRolledBack)


def test_a_probe_that_was_to_teach_waits_for_windows_that_agree() -> None:
    assert verdict("probe", NARROW, size(3), [150.0, 220.0], constant="probe") == []


def test_windows_that_go_on_to_disagree_are_judged_all_the_same() -> None:
    assert isinstance(verdict("scale", NARROW, size(4), [54.0, 150.0] * 3)[0], PlanKept | PlanRolledBack)
    assert isinstance(verdict("scale", NARROW, size(4), [54.0, 55.0, 53.0])[0], PlanRolledBack)


@pytest.mark.parametrize("windows", [[], [30.0, 30.0, 30.0]])
def test_a_change_that_a_slow_worker_overtook_is_kept_so_that_it_can_be_replaced(
    windows: list[float],
) -> None:
    """Until there was a verdict it was not replaced, and all that there was to judge by was how slow it is."""
    (kept,) = verdict("scale", NARROW, size(4), windows, slow="straggler_replace")
    assert isinstance(kept, PlanKept)
    assert kept.constant == Reason.STRAGGLER_REPLACE


def test_a_persons_trial_and_a_worker_whose_slowness_may_pass_wait_for_their_verdict() -> None:
    assert verdict("scale", NARROW, size(4), [], slow="straggler_replace", by_person=True) == []
    assert isinstance(verdict("scale", NARROW, size(4), [30.0] * 3, slow="smaller")[0], PlanRolledBack)


def test_what_a_job_did_before_is_the_median_of_its_windows_however_many_there_are() -> None:
    """Of an even number the upper of the two in the middle was taken: growth was held to more than the job had done."""
    base = [90.0, 90.0, 110.0, 110.0]
    # 112 is 12 % more than 100, and 2 % more than 110
    (kept,) = verdict("probe", NARROW, WIDE, [112.0] * 4, base=base)
    assert isinstance(kept, PlanKept)
    assert (kept.before, kept.after) == (100.0, 112.0)
    back, proposed = verdict("scale", NARROW, size(4), [50.0] * 3, base=base)
    assert isinstance(back, PlanRolledBack)
    assert isinstance(proposed, PlanProposed)
    assert (back.before, proposed.predicted) == (100.0, 100.0)
