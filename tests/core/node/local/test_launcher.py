"""What the launcher of a spare imports: the files that a worker had, and nothing in their place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rover_bus.node.local.launcher import NO_SPARE
from rover_bus.node.local.launching import launch_command

LOAD = """
import json, sys
sys.path[:0] = sys.argv[1:2]
from rover_bus.node.local.launcher import load
own = list(sys.path)
files = load(json.loads(sys.argv[2]), [sys.argv[3], *sys.path])
assert sys.path == own
print(sorted(file.rsplit("/", 1)[1] for file in files), sorted({"one", "two", "three"} & sys.modules.keys()))
"""


def load(modules: list[list[str]], first: Path, along: Path) -> subprocess.CompletedProcess[str]:
    """Load modules in an interpreter that finds some in `first`; their worker found them `along`."""
    words = [sys.executable, "-c", LOAD, str(first), json.dumps(modules), str(along)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def write(folder: Path, *names: str) -> dict[str, str]:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("")
    return {name: str(folder / f"{name}.py") for name in names}


def test_a_module_is_imported_from_the_file_that_the_worker_had_and_skipped_where_another_is_found(
    tmp_path: Path,
) -> None:
    first, along = write(tmp_path / "first", "one"), write(tmp_path / "along", "two")
    named = [["one", first["one"]], ["two", along["two"]], ["three", str(tmp_path / "three.py")]]
    done = load(named, tmp_path / "first", tmp_path / "along")
    assert done.stdout.strip() == "['one.py', 'two.py'] ['one', 'two']", done.stderr
    other = load([["one", along["two"]]], tmp_path / "first", tmp_path / "along")
    assert other.stdout.strip() == "[] []", other.stderr


def test_a_worker_that_had_another_file_for_what_the_launcher_needs_has_no_spares(tmp_path: Path) -> None:
    own = write(tmp_path / "own", "json")
    assert load([["json", own["json"]]], tmp_path, tmp_path / "own").returncode == NO_SPARE


@pytest.mark.parametrize(
    ("program", "rest"),
    [
        (["/usr/bin/python3.11", "train.py", "-x"], ["script", "train.py", "-x"]),
        (["python", "-u", "-X", "dev", "a/b.py"], ["script", "a/b.py"]),
        (["python", "-u", "-m", "package.train", "a"], ["module", "package.train", "a"]),
    ],
)
def test_scripts_and_modules_can_have_spares(program: list[str], rest: list[str]) -> None:
    command = launch_command(program, Path("/spare"))
    at = command.index("/spare")
    assert command[at + 1 :] == rest
    assert command[: command.index("-c")] == [each for each in program if each not in (*rest, "-m")]


@pytest.mark.parametrize(
    "program",
    [
        [],
        ["sh", "train.sh"],
        ["python"],
        ["python", "-c", "pass"],
        ["python", "archive.pyz"],
        ["python", "-mpackage"],
        ["python", "-"],
    ],
)
def test_what_has_no_first_line_to_stop_before_can_have_none(program: list[str]) -> None:
    assert launch_command(program, Path("/spare")) == []
