"""The demo's voice: plans with their rivals, predicted against measured, and silence on what only prepares them."""

from __future__ import annotations

import io

from rich.console import Console

from rover_bus.cli.demo.narrator import Narrator
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import facts
from rover_bus.events.facts import Fact, LosingPlan, Size
from rover_bus.events.identity import Member

ONE = Size(workers=1, servers=1)
PROPOSED = facts.PlanProposed(
    job="demo",
    plan=2,
    workers=4,
    servers=1,
    step="scale",
    constant="more_throughput",
    held=ONE,
    measured=1000.0,
    predicted=4000.0,
    losers=[
        LosingPlan(size=Size(workers=workers, servers=1), reason="less_gain", throughput=1000.0 * workers)
        for workers in (1, 2, 3, 5, 6)
    ],
)


def told(*happened: Fact) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    narrator = Narrator(console, live=False)
    for fact in happened:
        narrator.fact(fact)
    out = console.file
    assert isinstance(out, io.StringIO)
    return [line.split(" s  ", 1)[1].strip() for line in out.getvalue().splitlines()]


def test_a_plan_is_told_with_its_best_rivals_and_no_more_of_them() -> None:
    assert told(PROPOSED) == [
        "plan 2, more throughput: workers 1 -> 4; 1,000 samples/s now, 4,000 predicted",
        "not: as it is, 1,000 samples/s: cheaper, but the step beyond it still pays",
        "not: workers 1 -> 2, 2,000 samples/s: cheaper, but the step beyond it still pays",
        "not: workers 1 -> 3, 3,000 samples/s: cheaper, but the step beyond it still pays",
    ]


def test_a_verdict_sets_the_measurement_beside_the_prediction() -> None:
    figures = {"job": "demo", "plan": 2, "before": 1000.0, "after": 3800.0, "predicted": 4000.0}
    kept = facts.PlanKept(constant="gain_confirmed", **figures)  # type: ignore[arg-type]
    back = facts.PlanRolledBack(constant="gain_too_small", by_plan=3, **figures)  # type: ignore[arg-type]
    assert told(kept, back) == [
        "plan 2 is kept: 1,000 -> 3,800 samples/s measured, 4,000 predicted (-5 %)",
        "plan 2 does not pay, plan 3 reverts it: 1,000 -> 3,800 samples/s measured, 4,000 predicted (-5 %)",
    ]


def test_what_only_prepares_a_plan_is_not_told() -> None:
    assert (
        told(
            facts.PlanChecked(job="demo", plan=2),
            facts.PlanApplied(job="demo", plan=2, workers=4, servers=1),
            facts.PlanMeasured(job="demo", plan=2, before=1.0, after=2.0, predicted=2.0),
            facts.JobReported(job="demo", epoch=0, committed=1, dead_lettered=0, total=2),
        )
        == []
    )


def test_cuts_are_told_once_and_what_becomes_of_servers_always() -> None:
    names = {"job": "demo", "cut": 1, "generation": 0}
    opened = cuts.CheckpointOpened(**names)  # type: ignore[arg-type]
    ready = cuts.CheckpointReady(path="/s", **names)  # type: ignore[arg-type]
    restored = cuts.ServerRestored(member=Member("ps", 0, 2), source="memory", **names)  # type: ignore[arg-type]
    assert told(opened, ready, opened, ready, restored, restored) == [
        "cut 1 is ready: /s",
        *["ps-0.2 restored from cut 1 in memory: 0 rows in 0.00 s"] * 2,
    ]


def test_a_trial_is_told_as_one_and_not_as_a_gain() -> None:
    kept = facts.PlanKept(job="a", plan=2, constant="measured", before=1000.0, after=900.0, predicted=0.0)
    assert told(kept) == [
        "plan 2 was to be measured, and is: 1,000 -> 900 samples/s measured, nothing was predicted"
    ]
