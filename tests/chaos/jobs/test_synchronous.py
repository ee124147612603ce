"""Workers with a barrier of their own: the one that all wait for is found, a killed one is one loss from outside, all is exact.

The job files allow no failure of the program at all (`relaunches = 0`): one that was charged would end the job. Nothing is asserted
about time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outside import Hand, living, name_of, seeds
from slowed import Slowed
from small_job import SmallJob

from rover_bus.cli.stack import RunningStack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).parents[2] / "rigs" / "in_step.py"
SHARE = 0.25
PLAN = '[plan]\nwindow = "1s"\ncooldown = "3s"'


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("stack") / "state") as running:
        yield running


def job(stack: RunningStack, folder: Path, name: str, workers: int) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=stack.home.root,
        name=name,
        rows=6_000,
        epochs=15,
        workers=workers,
        servers=1,
        most=3,
        pace_s=0.05,
        training="synchronous",
        inner=PROGRAM,
        leases="relaunches = 0\ndeterministic_failures = 2",
        checkpoint=f'every = "1h"\npath = "store"\n{PLAN}',
    )


def pid_of(at: SmallJob, index: int) -> int:
    return next(row["pid"] for row in living(at.home, at.name, "worker") if row["index"] == index)


def groups(at: SmallJob) -> list[dict[str, Any]]:
    return at.facts("group.formed")


def names(members: list[dict[str, Any]]) -> list[str]:
    return [f"{each['role']}-{each['index']}.{each['incarnation']}" for each in members]


def test_a_killed_worker_is_one_loss_from_outside_and_a_slow_one_is_named_and_replaced(
    stack: RunningStack, tmp_path: Path
) -> None:
    it = job(stack, tmp_path, "steps", 3)
    it.submit()
    it.until(lambda: groups(it), "a group")
    it.until(lambda: it.facts("job.reported"), "steps")

    os.kill(pid_of(it, 2), signal.SIGKILL)
    it.until(lambda: it.facts("group.broken"), "the step fails with it")
    (broken,) = it.facts("group.broken")
    assert broken["outside"] is True, broken
    assert broken.get("charged", []) == []
    it.until(lambda: len(groups(it)) > 1, "the next group")
    assert names(groups(it)[1]["members"])[2] == "worker-2.2"

    slow = pid_of(it, 1)
    with Slowed(lambda: [slow], SHARE):
        it.until(lambda: it.facts("straggler.found"), "the slow worker is named")
        found = names([fact["member"] for fact in it.facts("straggler.found")])
        assert set(found) == {names(groups(it)[1]["members"])[1]}
        it.until(
            lambda: any(names(plan["replaces"]) == found[:1] for plan in it.facts("plan.proposed")),
            "a plan replaces it",
        )
        it.until(lambda: found[0] not in names(groups(it)[-1]["members"]), "a group without it")
    it.complete()
    assert len(it.facts("group.broken")) == 1  # the others went on with its successor at the same step


def test_a_synchronous_job_is_sized_and_its_new_workers_join_at_the_same_step(
    stack: RunningStack, tmp_path: Path
) -> None:
    it = job(stack, tmp_path, "sized", 0)
    it.submit()
    it.until(lambda: any(len(group["members"]) > 1 for group in groups(it)), "more workers than one")
    it.complete()
    assert it.facts("group.broken") == []


class Killer(Hand):
    """Kills workers and masters of the job, and stops workers for longer than a step."""

    pauses_s = (2.0, 7.0)

    def strike(self) -> None:
        rows = self.living("worker", "master")
        if not rows:
            return
        row = self.chance.choice(rows)
        if row["role"] == "master" or self.chance.random() < 0.7:
            self.send(row["pid"], f"kill {name_of(row)}")
        elif self.send(row["pid"], f"pause {name_of(row)}", signal.SIGSTOP):
            self.over.wait(self.chance.uniform(0.5, 5.0))
            self.send(row["pid"], f"on {name_of(row)}", signal.SIGCONT)


@pytest.mark.parametrize("seed", seeds(1, 3, soon=1))
def test_whatever_is_killed_no_failure_is_charged_and_every_sample_is_applied_once(
    seed: int, stack: RunningStack, tmp_path: Path
) -> None:
    it = job(stack, tmp_path, f"killed-{seed}", 3)
    it.submit()
    it.until(lambda: groups(it), "a group")
    with Killer(it.home, it.name, seed) as hand:
        it.until(lambda: len(hand.done) >= 8, "enough was killed")
    it.complete()
    assert all(broken["outside"] for broken in it.facts("group.broken")), hand.done
