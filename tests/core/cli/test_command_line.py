"""The door: what `rover` imports, how it ends, and what it says when the user errs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from click.testing import CliRunner
from exit_codes import ROWS, WITHOUT_STACK, Row

import rover_bus
from rover_bus.cli.commands.submit import EXIT_CODES
from rover_bus.cli.group import COMMANDS, rover
from rover_bus.events.errors import RoverError

DOCS = Path(__file__).parents[3] / "docs"
JOB_FILE = Path(__file__).parents[3] / "examples/jobs/movielens.toml"
FAILING = """program = ["python", "-c", "raise SystemExit(7)"]
[data]
train = "t.csv"
schema = { label = "label", categorical = ["user"] }
"""


def run(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rover_bus.cli.entry", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_group_is_there_and_explains_itself(command: str) -> None:
    said = CliRunner().invoke(rover, [command, "--help"])
    assert said.exit_code == 0, said.output
    assert "Usage:" in said.output


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['rover', '--help']\n"
        "from rover_bus.cli.entry import main\n"
        "assert main() == 0\n"
        "heavy = {'msgspec', 'numpy', 'nats', 'asyncio', 'rich'} & set(sys.modules)\n"
        "commands = [name for name in sys.modules if name.startswith('rover_bus.cli.commands')]\n"
        "print('loaded:', sorted(heavy), commands)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: [] []"
    for command in COMMANDS:
        assert f"  {command} " in done.stdout


@pytest.mark.parametrize("row", WITHOUT_STACK, ids=str)
def test_a_command_ends_with_its_code_and_one_clear_line(tmp_path: Path, row: Row) -> None:
    job = JOB_FILE.read_text()
    job = re.sub(r"^train = .*", 'train = "absent.tsv"', job, flags=re.MULTILINE)
    (tmp_path / "job.toml").write_text(job)
    (tmp_path / "t.csv").write_text("label,user\n1,u\n0,v\n")
    (tmp_path / "failing.toml").write_text(FAILING)
    done = run(*row.words.split(), cwd=tmp_path)
    assert done.returncode == row.code, done.stderr
    assert row.says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".rover").exists()


@pytest.mark.parametrize(
    ("measuring", "says"),
    [
        ("echo warming up >&2; echo no GPU >&2; exit 3", "exit code 3: no GPU"),
        ("exit 1", "exit code 1: it said nothing"),
        ("echo 12 steps/s", "its last word is 'steps/s', not a throughput"),
        ("true", "its last word is '', not a throughput"),
        ("echo -5", "it printed -5, not a number above 0"),
    ],
)
def test_a_probe_that_fails_is_told_in_the_words_of_the_users_own_program(
    tmp_path: Path, measuring: str, says: str
) -> None:
    (tmp_path / "c.csv").write_text("workers,ps\n" + "".join(f"{w},1\n" for w in range(1, 7)))
    (tmp_path / "measure.sh").write_text(f'if [ "$1" = 3 ]; then {measuring}; else echo "$1.5"; fi\n')
    done = run(
        *("fit", "--choose", "6", "--candidates", "c.csv", "--measure", "sh measure.sh", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert f"sh measure.sh 3 1: {says}" in done.stderr
    assert "3 workers, 1 ps: nan steps/s" in done.stderr
    assert '"samples":5' in done.stdout.splitlines()[-1]


def test_each_doubt_of_a_fit_is_a_line_of_its_own(tmp_path: Path) -> None:
    rows = [f"{w},2,{100 * w if w < 8 else 20}" for w in range(1, 10)]
    (tmp_path / "a.csv").write_text("\n".join(["workers,ps,throughput", *rows]) + "\n")
    done = run("fit", "--train", "a.csv", "--test", "a.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said, *doubts = done.stdout.splitlines()
    assert said.startswith("all rows: ")
    assert "beware" not in said
    assert len(doubts) > 1, done.stdout
    assert all(line.startswith("  beware: ") for line in doubts), doubts
    assert any("ps was never varied" in line for line in doubts)


def test_the_broker_is_named_by_the_environment_unless_a_directory_is(tmp_path: Path) -> None:
    for arguments, says in (((), "nats://127.0.0.1:9"), (("--dir", "here"), "start one with `rover up`")):
        done = run("jobs", *arguments, cwd=tmp_path, ROVER_URL="nats://127.0.0.1:9")
        assert done.returncode == 4
        assert says in done.stderr


def test_a_bug_of_ours_is_one_line_too_unless_one_debugs(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['rover', 'jobs']\n"
        "import rover_bus.cli.connection as connection\n"
        "def broken(*_): raise RuntimeError('spam')\n"
        "connection.find_stack = broken\n"
        "from rover_bus.cli.entry import main\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "rover: RuntimeError: spam (a bug in rover: ROVER_DEBUG=1 shows where)"
    ]
    debugging = {"PATH": "", "ROVER_DEBUG": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=debugging)
    assert "Traceback" in done.stderr


def exit_codes_in_use() -> dict[int, str]:
    """Every exit code that an error of ours, or an end of a job, can lead to."""
    for module in walk_packages(rover_bus.__path__, "rover_bus."):
        if "_examples" not in module.name:
            import_module(module.name)
    found = dict.fromkeys(EXIT_CODES.values(), "job")
    waiting: list[type[RoverError]] = [RoverError]
    while waiting:
        error = waiting.pop()
        found[error.exit_code] = error.__name__
        waiting += error.__subclasses__()
    return found


def documented_codes() -> set[int]:
    return {int(code) for code in re.findall(r"^\| (\d+) \|", (DOCS / "cli.md").read_text(), re.MULTILINE)}


def test_every_exit_code_is_documented() -> None:
    missing = {code: name for code, name in exit_codes_in_use().items() if code not in documented_codes()}
    assert not missing


def test_every_documented_exit_code_is_seen_by_a_row_of_the_table() -> None:
    assert {row.code for row in ROWS} == documented_codes()


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [command for command in COMMANDS if f"`rover {command}" not in text] == []


def test_every_key_of_a_job_file_is_documented() -> None:
    from rover_bus.client.job_file import TABLES, keys_of
    from rover_bus.events.job import JobSpec

    text = (DOCS / "job-file.md").read_text()
    keys = {key for cls in (JobSpec, *TABLES.values()) for key in keys_of(cls)}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
