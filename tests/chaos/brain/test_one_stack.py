"""Jobs on one stack: a family learns once, ten share by value, one without servers is sized, lost places are given up.

Programs here sleep, so that many of them fit a small machine and what a worker brings is known.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from outside import rover
from patience import until
from small_job import SmallJob

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.node.local.layout import list_members

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(900)]
RIGS = Path(__file__).parents[2] / "rigs"
PLAN = '[plan]\nwindow = "2s"\ncooldown = "4s"'


def elastic(home: Path, name: str, program: str, most: int, cores: float = 0.0, servers: int = 0) -> SmallJob:
    """A job whose number of workers is open. Runs of one program are a family: they read the same clicks."""
    folder = home.parent / "jobs"
    folder.mkdir(exist_ok=True)
    return SmallJob(
        folder=folder,
        home=home,
        name=name,
        rows=20_000,
        epochs=20,
        workers=0,
        servers=servers,
        most_servers=servers,
        most=most,
        cores=cores,
        top=f'labels = {{ family = "{program}" }}',
        inner=RIGS / f"{program}.py",
        pace_s=0.3 if program == "sleeping" else 0.0,
        spares=0,
        checkpoint=f'every = "1h"\n{PLAN}',
    )


def plans(job: SmallJob) -> list[dict[str, Any]]:
    return job.facts("plan.proposed")


def cancel(job: SmallJob) -> None:
    assert job.rover("cancel", job.name).returncode == 0


def kept_workers(job: SmallJob) -> set[int]:
    """Workers of the plans that were kept, a person's among them."""
    kept = {each["plan"] for each in job.facts("plan.kept")}
    return {plan["workers"] for plan in job.facts("plan.applied") if plan["plan"] in kept}


def given_up(job: SmallJob) -> list[dict[str, Any]]:
    return [plan for plan in plans(job) if plan["constant"] == "shrink_after_loss"]


def kill_last_workers(stack: RunningStack, job: str) -> None:
    """All but one, at once: that is one decision."""
    workers = [m for m in list_members(stack.home.node, job) if m.member.role == "worker" and m.pid]
    for each in sorted(workers, key=lambda m: m.member.index)[1:]:
        os.kill(each.pid, signal.SIGKILL)


def end(job: SmallJob) -> None:
    job.finish()
    job.until(lambda: job.facts("job.ended"), "the end")
    assert job.facts("job.ended")[0]["state"] == "completed"


def test_a_job_without_servers_is_sized_and_a_second_run_begins_where_it_ended_without_a_probe(
    tmp_path: Path,
) -> None:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as stack:
        one = elastic(stack.home.root, "one", "sleeping", most=3)
        one.submit()
        one.until(lambda: [plan for plan in plans(one) if plan["workers"] == 3], "all that it may have pays")
        one.until(lambda: plans(one)[-1]["plan"] in [p["plan"] for p in one.facts("plan.kept")], "it is kept")
        end(one)
        assert {plan["step"] for plan in plans(one)} >= {"start", "probe"}
        assert not one.facts("checkpoint.opened"), "without servers there is no part to stage"

        two = elastic(stack.home.root, "two", "sleeping", most=3)
        two.submit()
        two.until(lambda: two.facts("plan.settled"), "it runs")
        [first, *_] = plans(two)
        assert first["workers"] == 3, first
        assert "from one" in first["reason"] or "its family" in first["reason"]
        two.until(lambda: two.facts("plan.withheld"), "the Brain has looked at it")
        assert "probe" not in {plan["step"] for plan in plans(two)}
        end(two)


@pytest.mark.long
def test_ten_jobs_share_one_stack_by_value_and_are_repriced_together_when_one_ends(tmp_path: Path) -> None:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as stack:
        home = stack.home.root
        cores = (os.cpu_count() or 1) / 20
        jobs = {
            name: elastic(home, name, program, most=4, cores=cores)
            for program, names in (("sleeping", "abcde"), ("in_turn", "vwxyz"))
            for name in names
        }
        for job in jobs.values():
            job.submit()
        sizes = lambda: {row["job"]: int(row["workers"]) for row in _rows(home)}  # noqa: E731
        until(
            lambda: len(sizes()) == 10 and min(sizes().values()) >= 1,
            "all ten run",
            1.0,
            lambda: str(sizes()),
        )
        # Workers that take turns bring nothing together: those that do not get what is left.
        until(
            lambda: sum(sizes()[n] for n in "abcde") >= 1.5 * sum(sizes()[n] for n in "vwxyz"),
            "workers go where they bring more",
            1.0,
            lambda: str(sizes()),
        )
        ended = max("abcde", key=lambda name: sizes()[name])
        before = {name: len(plans(job)) for name, job in jobs.items()}
        end(jobs[ended])
        others = {name: job for name, job in jobs.items() if name != ended}
        until(
            lambda: any(
                plan["workers"] > plan["held"]["workers"]
                for n, j in others.items()
                for plan in plans(j)[before[n] :]
            ),
            "another job gets what it had",
            1.0,
            lambda: str(sizes()),
        )
        for job in others.values():
            cancel(job)


def test_a_lost_place_that_does_not_pay_is_given_up(tmp_path: Path) -> None:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as stack:
        # More workers than one bring nothing, and cost too little to be worth a change: but they are not started again.
        job = elastic(stack.home.root, "one", "in_turn", most=3, cores=0.25, servers=1)
        longer = job.checkpoint.replace('window = "2s"', 'window = "5s"')
        job.checkpoint = longer  # a third one must not seem to bring 3 %
        job.submit()
        job.until(lambda: len(job.facts("plan.measured")) > 1, "the Brain has tried two")
        asked = job.rover("scale", job.name, "--workers", "3")
        assert asked.returncode == 0 or "it has 3 workers" in asked.stderr, (
            asked.stderr
        )  # by the Brain's own trial
        job.until(lambda: 3 in kept_workers(job), "three workers are measured, and stay")
        for _ in range(3):
            kill_last_workers(stack, job.name)
            time.sleep(15.0)  # what becomes of their places is decided at the Brain's next look
            if given_up(job):
                break
        assert given_up(job), job.rover("events", job.name, "-n", "60").stdout
        cancel(job)


def _rows(home: Path) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads(rover("jobs", "-o", "json", home=home).stdout)
    return said
