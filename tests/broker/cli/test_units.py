"""The units that are shipped: what systemd makes of them, that they call commands that there are, and how little they may do."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from rover_bus.cli.group import rover
from rover_bus.events.written_settings import choose, of_processes
from rover_bus.node.users import read_range

UNITS = sorted((Path(__file__).parents[3] / "deploy" / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 30  # of 100, by systemd's own count; a unit without any restriction has 96
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    return parser


def runnable(unit: Path, directory: Path) -> Path:
    """Return a copy whose program and whose settings are there, which systemd looks for."""
    env = directory / "stack.env"
    env.write_text("ROVER_ADDRESS=127.0.0.2\n")
    text = (
        unit.read_text()
        .replace("/opt/rover/bin/rover", "/bin/true")
        .replace("/etc/rover/stack.env", str(env))
    )
    copy = directory / unit.name
    copy.write_text(text)
    return copy


def test_there_are_two_units() -> None:
    assert [unit.name for unit in UNITS] == ["rover-host.service", "rover-stack.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_calls_a_command_with_options_that_it_has(unit: Path) -> None:
    program, command, *options = shlex.split(read(unit)["Service"]["ExecStart"])
    assert program == "/opt/rover/bin/rover"
    text = CliRunner().invoke(rover, [command, "--help"]).output
    assert [option for option in options if option.startswith("--") and option not in text] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_leaves_time_to_end_and_keeps_what_outlives_it(unit: Path) -> None:
    service = read(unit)["Service"]
    assert service["KillMode"] == "mixed", "members are drained by the daemon, not killed beside it"
    assert int(service["TimeoutStopSec"]) > 30 + 60, "last checkpoints, then the end of all processes"
    assert service["RemoveIPC"] == "no"
    assert set(service["RestartPreventExitStatus"].split()) == {"2", "5"}


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(unit: Path, tmp_path: Path) -> None:
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(runnable(unit, tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_may_do_little(unit: Path, tmp_path: Path) -> None:
    assert ANALYZE is not None
    command = [ANALYZE, "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager"]
    done = subprocess.run(
        [*command, str(runnable(unit, tmp_path))], capture_output=True, text=True, check=False
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_drop_in_of_a_user_per_job_sets_what_there_is_and_runs_as_root() -> None:
    service = read(UNITS[0].parent / "user-per-job.conf")["Service"]
    assert service["User"] == "root"
    chosen = choose([], dict(word.split("=") for word in service["Environment"].split()))
    assert list(read_range(of_processes(chosen).hosts)[:2]) == [700_000, 700_001]
    needed = {"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_SYS_PTRACE"}
    assert needed <= set(service["CapabilityBoundingSet"].split())


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_the_drop_in(unit: Path, tmp_path: Path) -> None:
    copy = runnable(unit, tmp_path)
    copy.write_text(copy.read_text() + (unit.parent / "user-per-job.conf").read_text())
    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
