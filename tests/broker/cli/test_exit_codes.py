"""docs/cli.md's exit codes, of commands that need a stack. Those that need none: tests/core/cli/test_command_line.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import ROVER, rover
from small_job import SmallJob

from rover_bus.cli.stack import RunningStack


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallJob]:
    folder = tmp_path_factory.mktemp("codes")
    with RunningStack(folder / "state", disposable=True) as stack:
        made = SmallJob(
            folder=folder,
            home=stack.home.root,
            rows=640,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint=f'path = "{folder / "stored"}"',
        )
        made.submit()
        made.until(lambda: made.facts("plan.settled"), "a job that trains")
        yield made
        made.rover("cancel", made.name)


@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        (("events", "ads"), 0, ""),
        (("events", "adz"), 2, "there is no job 'adz'; did you mean 'ads'?"),
        (("events", "-k", "foo"), 2, "there are no events of kind 'foo'"),
        (("events", "-k", "plan.aplied"), 2, "did you mean 'plan.applied'?"),
        (("events", "ads", "-k", "host"), 0, ""),
        (("story", "999999"), 2, "no event '999999'"),
        (("submit", "job.toml"), 3, "exists"),
        (("plan", "approve", "ads"), 3, "no plan"),
        (("cancel", "adz"), 2, "did you mean 'ads'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_ends_with_its_code_and_one_line(
    job: SmallJob, words: tuple[str, ...], exit_code: int, says: str
) -> None:
    done = job.rover(*words)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_who_reads_no_more_is_no_error_of_ours(job: SmallJob) -> None:
    """`rover events | head`: the reading end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*ROVER, "events"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"ROVER_HOME": str(job.home)},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_trial_that_the_master_refuses_is_refused(job: SmallJob, tmp_path: Path) -> None:
    assert job.rover("pause", job.name).returncode == 0
    refused = job.rover("plan", "try", job.name, "--workers", "2")
    assert refused.returncode == 3, (refused.stdout, refused.stderr)
    assert rover("resume", job.name, home=job.home, cwd=tmp_path).returncode == 0
