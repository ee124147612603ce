"""A command that a test starts as a fork (tests/rigs/commands.py) says what one in a new Python says, and ends as that one does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from commands import LoadedPython, at_a_start, loaded_python, run_command, run_new

HERE = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
SCHEMA = '[data.schema]\ncategorical = ["user"]\n'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--version", "rover, version"),
        ("jobs", "no stack runs in /there/is/none"),
        ("submit job.toml", "absent.tsv"),
        ("run -- env", "ROVER_HOME=/there/is/none"),
        ("run -- pwd", ""),
        ("fit absent.csv --samples 5", "absent.csv: No such file"),
        ("no-such-command", "No command 'no-such-command'"),
    ],
)
def test_a_fork_says_and_ends_as_a_new_python_does(tmp_path: Path, words: str, says: str) -> None:
    (tmp_path / "job.toml").write_text('program = "dlrm"\n[data]\ntrain = "absent.tsv"\n' + SCHEMA)
    how = (words.split(), tmp_path, HERE | {"ROVER_HOME": "/there/is/none"}, 60.0)
    new, forked = run_new(*how), loaded_python().run(how[0], str(tmp_path), *how[2:])
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)
    assert says in forked.stdout + forked.stderr


def test_a_fork_that_lasts_too_long_is_killed(tmp_path: Path) -> None:
    loaded = loaded_python()
    with pytest.raises(subprocess.TimeoutExpired):
        loaded.run(["simulate", "--count", "1000000"], str(tmp_path), HERE, 0.5)
    psutil.wait_procs(psutil.Process(loaded.process.pid).children(), timeout=60.0)
    assert psutil.Process(loaded.process.pid).children() == []


def test_what_a_new_python_reads_at_its_start_is_given_to_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fork(*_: object) -> None:
        raise AssertionError("this is a fork")

    monkeypatch.setattr(LoadedPython, "run", no_fork)
    assert at_a_start(HERE | {"PYTHONDEVMODE": "1"}) != at_a_start(HERE)
    assert run_command(["--version"], tmp_path, HERE | {"PYTHONDEVMODE": "1"}, 60.0).returncode == 0
    with pytest.raises(AssertionError, match="a fork"):
        run_command(["--version"], tmp_path, HERE, 60.0)
