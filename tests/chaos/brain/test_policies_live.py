"""What a job chose is in its plans' reasons: Optimus' marginal gain, NSGA-II, a place that is given up once its worker is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from small_job import SmallJob

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.events.identity import Member
from rover_bus.node.local.layout import list_members

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
        pace_s=pace_s,
        checkpoint=f'path = "store"\nevery = "1h"\n{plan}',
    )
    job.write()
    spec = folder / "job.toml"
    said = spec.read_text().replace(job.gate.program(), job.gate.program(program))
    spec.write_text(said.replace("[workers]\ncount = 0\n", "[workers]\nmax_count = 5\n"))
    submitted = job.rover("submit", "job.toml")
    assert submitted.returncode == 0, submitted.stderr
    return job


def plans(job: SmallJob) -> list[dict[str, Any]]:
    return job.facts("plan.proposed")


def test_each_choice_is_seen_in_the_reason_of_a_plan(tmp_path: Path) -> None:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as stack:
        home = stack.home.root
        counting, serialized = RIGS / "counting.py", RIGS / "serialized.py"
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

        slow = PLAN.format(cooldown="1h", choice="")
        three = elastic(tmp_path, home, "three", serialized, slow, pace_s=0.0)
        three.until(lambda: len(three.facts("plan.measured")) >= 2, "three sizes are measured")
        three.until(
            lambda: three.rover("scale", "three", "--workers", "4").returncode == 0, "four workers by hand"
        )
        three.until(lambda: is_measured(three, workers=4), "four workers are measured")
        killed: set[int] = set()
        three.until(lambda: given_up(three) or kill_again(stack, three, killed), "a lost place is given up")
        three.complete()


def is_measured(job: SmallJob, workers: int) -> bool:
    of_size = {plan["plan"] for plan in plans(job) if plan["workers"] == workers and plan["step"] == "asked"}
    return any(fact["plan"] in of_size for fact in job.facts("plan.measured"))


def given_up(job: SmallJob) -> bool:
    return any(plan["constant"] == "shrink_after_loss" for plan in plans(job))


def kill_again(stack: RunningStack, job: SmallJob, killed: set[int]) -> bool:
    """Kill worker-1 once an incarnation: a loss while another change is under way is left to the master."""
    joined = {Member(**fact["member"]) for fact in job.facts("member.admitted")}
    for each in list_members(stack.home.node, job.name):
        fresh = each.member in joined and each.member.incarnation not in killed
        if each.member.name == "worker-1" and each.pid and fresh:
            killed.add(each.member.incarnation)
            os.kill(each.pid, signal.SIGKILL)
    return False
