"""`rover submit` asks the daemons whether the program starts on their hosts; where it does not, nothing is submitted."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import rover

from rover_bus.cli import programs
from rover_bus.cli.connection import visit
from rover_bus.cli.programs import read_hosts_with_room, require_program
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.client.job_file import read_job
from rover_bus.events.job import JobSpec, RoleSpec

HOST = "h1"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A host without a Brain: what is submitted stays as it is."""
    with RunningStack(tmp_path_factory.mktemp("up"), brain=None, here=Here(HOST), disposable=True) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's directory, which is not the one that `rover` is run in."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "clicks.csv").write_text("label,user\n1,a\n0,b\n")
    (tmp_path / "jobs" / "train.py").write_text("import rover_bus.client as rover\nrover.join()\n")
    (tmp_path / "jobs" / "binary").write_bytes(Path("/bin/true").read_bytes())
    (tmp_path / "jobs" / "binary").chmod(0o700)
    return tmp_path


def write(folder: Path, *program: str, name: str = "ads", rest: str = "") -> Path:
    file = folder / "jobs" / "job.toml"
    data = '[data]\ntrain = "clicks.csv"\nschema = { categorical = ["user"] }'
    file.write_text(f'name = "{name}"\nprogram = {json.dumps(program)}\n{data}\n{rest}\n')
    return file


def submitted(stack: RunningStack) -> list[str]:
    listed = rover("jobs", "-o", "json", home=stack.home.root).stdout
    return [row["job"] for row in json.loads(listed or "[]")]


@pytest.mark.parametrize(
    ("program", "path", "says"),
    [
        (("python", "trian.py"), "{jobs}/trian.py", "no such file"),
        (("python", "-S", "train.py"), "{python}", "ModuleNotFoundError: No module named 'rover_bus'"),
        (("./train.py",), "{jobs}/./train.py", "it cannot be executed"),
        (("no-such-program",), "no-such-program", "no such program on the PATH of this host"),
        (("/no/such/python3.12", "train.py"), "/no/such/python3.12", "no such file"),
    ],
)
def test_a_program_that_does_not_start_is_refused_with_host_path_and_reason(
    stack: RunningStack, folder: Path, program: tuple[str, ...], path: str, says: str
) -> None:
    done = rover("submit", str(write(folder, *program)), home=stack.home.root, cwd=folder)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"host {HOST}: " in last
    assert f"{path.format(jobs=folder / 'jobs', python=sys.executable)}: {says}" in last
    assert "ads" not in submitted(stack)


@pytest.mark.parametrize(
    "program",
    [("python", "train.py"), ("python", "-u", "./train.py", "--fast"), ("./binary",), ("sleep", "100")],
    ids=" ".join,
)
def test_a_program_that_starts_is_submitted(
    stack: RunningStack, folder: Path, program: tuple[str, ...]
) -> None:
    name = f"starts-{program[0].strip('./')}-{len(program)}"
    done = rover("submit", str(write(folder, *program, name=name)), home=stack.home.root, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert name in submitted(stack)


def test_a_host_without_room_is_not_asked(stack: RunningStack, folder: Path) -> None:
    spec = RoleSpec(cores=100_000)
    assert visit(stack.address, lambda bus: read_hosts_with_room(bus, spec)) == []
    assert visit(stack.address, lambda bus: read_hosts_with_room(bus, RoleSpec(cores=0.5))) == [HOST]
    file = write(folder, "python", "trian.py", name="large", rest="[workers]\ncores = 100000")
    done = rover("submit", str(file), home=stack.home.root)
    assert done.returncode == 0, done.stderr
    file = write(folder, "python", "trian.py", name="small", rest="[workers]\ncores = 0.5")
    assert rover("submit", str(file), home=stack.home.root).returncode == 2


def test_a_daemon_that_does_not_answer_is_warned_of_and_refuses_nothing(
    stack: RunningStack, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "ANSWER_S", 1.0)
    spec: JobSpec = read_job(write(folder, "python", "trian.py"))
    warnings: list[str] = []
    daemon = stack.pids()["daemon"]
    os.kill(daemon, signal.SIGSTOP)
    try:
        visit(stack.address, lambda bus: require_program(bus, spec, warnings.append))
    finally:
        os.kill(daemon, signal.SIGCONT)
    (warning,) = warnings
    assert f"host {HOST}: its daemon did not answer within 1 s" in warning


def test_a_private_stack_is_asked_too_and_what_runs_here_is_not(stack: RunningStack, folder: Path) -> None:
    refused = rover("submit", str(write(folder, "python", "trian.py")), "--embedded", cwd=folder)
    assert refused.returncode == 2, refused.stderr
    assert "trian.py: no such file" in refused.stderr
    here = rover("run", "--", "true", home=stack.home.root)  # no host is meant
    assert here.returncode == 0, here.stderr
