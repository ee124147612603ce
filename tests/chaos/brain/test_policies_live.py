"""What a job chose is in its plans' reasons: Optimus' marginal gain, or NSGA-II."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_job import SmallJob

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(900)]
RIGS = Path(__file__).parents[2] / "rigs"
PLAN = '[plan]\nwindow = "2s"\ncooldown = "{cooldown}"\n{choice}'


def elastic(root: Path, home: Path, name: str, program: Path, plan: str, pace_s: float) -> SmallJob:
    """A job with no fixed number of workers, one server, and a program that mostly sleeps."""
    folder = root / name
    folder.mkdir()
    job = SmallJob(
        folder=folder,
        home=home,
        name=name,
        rows=20_000,
        epochs=20,
        workers=0,
        servers=1,
        most=5,
        inner=program,
        pace_s=pace_s,
        checkpoint=f'path = "store"\nevery = "1h"\n{plan}',
    )
    job.submit()
    return job


def plans(job: SmallJob) -> list[dict[str, Any]]:
    return job.facts("plan.proposed")


def test_each_choice_is_seen_in_the_reason_of_a_plan(tmp_path: Path) -> None:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as stack:
        home = stack.home.root
        counting = RIGS / "counting.py"
        quick = PLAN.format(cooldown="2s", choice='policy = "optimus"')
        one = elastic(tmp_path, home, "one", counting, quick, pace_s=0.3)
        quick = PLAN.format(cooldown="2s", choice='search = "nsga2"')
        two = elastic(tmp_path, home, "two", counting, quick, pace_s=0.3)
        one.until(
            lambda: [plan for plan in plans(one) if plan["constant"] == "optimus_marginal_gain"],
            "a plan by marginal gain",
        )
        two.until(lambda: [plan for plan in plans(two) if "NSGA-II" in plan["reason"]], "a plan by NSGA-II")
        one.complete()
        two.complete()
