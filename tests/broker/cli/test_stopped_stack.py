"""What a stack left is read without it: a private broker over the same store, gone afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from outside import rover

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.broker
JOB = """program = ["python", "-c", "pass"]
[data]
train = "t.csv"
schema = { categorical = ["user"] }
[workers]
count = 1
[servers]
count = 1
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stack that was ended, with a job that had been submitted. Each test leaves it as a stack that was ended."""
    folder = tmp_path_factory.mktemp("left")
    (folder / "t.csv").write_text("label,user\n" + "1,u\n0,v\n" * 20)
    (folder / "job.toml").write_text(JOB)
    with RunningStack(folder / "state"):
        submitted = rover("submit", "job.toml", "--dir", "state", cwd=folder)
        assert submitted.returncode == 0, submitted.stderr
    return folder


def brokers_below(directory: Path) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if str(directory) in " ".join(each.info["cmdline"] or ())]


@pytest.mark.parametrize(
    "words", [("events",), ("events", "job"), ("history",), ("explain", "job"), ("story", "1")]
)
def test_a_stopped_stack_is_read_and_nothing_of_it_runs_afterwards(
    left: Path, words: tuple[str, ...]
) -> None:
    said = rover(*words, "-o", "json", "--dir", "state", cwd=left)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1])
    assert "this is what it left" in said.stderr
    assert brokers_below(left) == []


def test_what_will_never_come_is_not_waited_for(left: Path) -> None:
    said = rover("events", "--follow", "--dir", "state", cwd=left)
    assert said.returncode == 4
    assert "leave --follow out" in said.stderr


def test_a_directory_without_a_stacks_log_says_so(tmp_path: Path) -> None:
    said = rover("events", "--dir", "state", cwd=tmp_path)
    assert said.returncode == 4
    assert "none left a log there" in said.stderr
    assert not (tmp_path / "state").exists()


def test_the_stack_starts_again_after_its_log_was_read(left: Path) -> None:
    before = rover("events", "-o", "json", "--dir", "state", cwd=left).stdout.splitlines()
    with RunningStack(left / "state"):
        after = rover("events", "-o", "json", "--dir", "state", cwd=left).stdout.splitlines()
    assert after[: len(before)] == before
