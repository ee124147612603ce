"""A change downwards of which nothing can be told is taken back; one upwards, and one that was told, are not."""

from __future__ import annotations

import pytest

from rover_bus.brain.evolution import evolve
from rover_bus.brain.log import WindowClosed, WorkerWindow
from rover_bus.brain.state import WINDOWS_KEPT, BrainState, Change, KnownJob
from rover_bus.brain.unsettled import take_back_unsettled
from rover_bus.events.facts import PlanProposed, PlanRolledBack, Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec

WINDOW_S = 4.0
THREE, TWO = Size(workers=3, servers=1), Size(workers=2, servers=1)


def change(before: Size = THREE, after: Size = TWO, **more: object) -> Change:
    said: dict[str, object] = {"step": "probe", "applied": True, "settled": True, **more}
    return Change(plan=2, before=before, after=after, predicted=1.0, since_s=0.0, **said)  # type: ignore[arg-type]


def brain(rates: list[float], **more: object) -> BrainState:
    spec = JobSpec(name="j", program=["x"], data=DataSpec(train="t"), plan=PlanSpec(window_s=WINDOW_S))
    job = KnownJob("u", spec, plan=2, held=TWO, settled_s=0.0, **more)  # type: ignore[arg-type]
    state = BrainState(hosts={"h": HostCapacity(cores=8, memory_bytes=1 << 30)}, jobs={"j": job})
    for rate in rates:
        worker = [WorkerWindow(0, 1, rate, rate, 0.0)]
        evolve(state, WindowClosed(job="j", seconds=WINDOW_S, clean=bool(rate), workers=worker))
    return state


def taken_back(state: BrainState) -> bool:
    said = list(take_back_unsettled("j", state.jobs["j"], state))
    if said:
        rolled, plan = said
        assert isinstance(rolled, PlanRolledBack)
        assert isinstance(plan, PlanProposed)
        assert (rolled.constant, plan.size, plan.mode, plan.rolls_back) == ("unsettled", THREE, "auto", 2)
    return bool(said)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([100.0, 30.0] * 3, True),
        ([100.0, 30.0] * 2, False),  # too few to say so
        ([100.0, 99.0] * 3, False),
        (
            [100.0] * 14 + [100.0, 30.0] * 3,
            False,
        ),  # its size was chosen meanwhile; what came later is no probe's doing
    ],
)
def test_a_probe_downwards_that_was_kept_is_taken_back_after_unrest(
    rates: list[float], expected: bool
) -> None:
    assert taken_back(brain(rates, probe=change())) is expected


@pytest.mark.parametrize(
    ("one", "windows", "expected"),
    [
        (change(), 16, True),
        (change(), WINDOWS_KEPT, False),
        (change(step="scale"), 16, True),
        (change(before=TWO, after=THREE), 16, False),  # more takes nothing from the job
        (change(by_person=True), 16, False),  # a word is not overruled
        (change(settled=False), 16, False),  # `never_live` is for these
    ],
)
def test_a_change_downwards_without_a_verdict_is_taken_back(
    one: Change, windows: int, expected: bool
) -> None:
    assert taken_back(brain([0.0] * windows, change=one)) is expected
