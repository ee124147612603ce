"""Two jobs on one plain machine, each run a user of its own: what a program of one tries on the other, the kernel refuses.

A spy in the program of job `a` tries what stands in a list; without the option each of its attempts succeeds. The stack runs by an
interpreter that every user can execute: that of a virtual environment in a closed home cannot be (docs/operations/security.md).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import pytest
from outside import living, rover
from patience import until
from small_job import SmallJob

import rover_bus
from rover_bus.client.programs import find_example
from rover_bus.flash.places import host_root

pytestmark = pytest.mark.chaos
FIRST, COUNT = 3_100_000_000 + 64 * os.getpid(), 64
A_USER_PER_JOB = f"hosts.first_member_uid={FIRST}", f"hosts.member_uids={COUNT}"
SOURCES = Path(rover_bus.__file__).parents[1]
PACKAGES = f"{SOURCES}:{Path(msgspec.__file__).parents[1]}"
PROGRAM = """
import json, os, pathlib, runpy, sys, threading, time
import slow_library

def attempt(what, path):
    try:
        if what == "signal":
            os.kill(int(path), 0)
        elif what == "list":
            os.listdir(path)
        else:
            open(path, "rb").read(1)
    except PermissionError:
        return "refused"
    except OSError as error:
        return repr(error)
    return "allowed"

def spy():
    orders = pathlib.Path({orders!r})
    while not orders.exists():
        time.sleep(0.05)
    found = [[what, path, attempt(what, path)] for what, path in json.loads(orders.read_text())]
    print("spied " + json.dumps(found), flush=True)

threading.Thread(target=spy, daemon=True).start()
program = {program!r}
sys.path.insert(0, os.path.dirname(program))
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""


def is_open(path: Path) -> bool:
    """Whether every user may pass to a file and read it."""
    real = path.resolve()
    ways = [*path.parents, *real.parents]
    return all(way.stat().st_mode & stat.S_IXOTH for way in ways) and bool(real.stat().st_mode & stat.S_IROTH)


def open_python() -> str:
    """Return an interpreter of this version that every user may run."""
    system = shutil.which(
        f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin"
    )
    found = [each for each in (sys.executable, system) if each and is_open(Path(each))]
    if os.geteuid() != 0:
        pytest.skip("only root starts members as other users")
    if not found or not is_open(SOURCES / "rover_bus" / "__init__.py") or not is_open(Path(msgspec.__file__)):
        pytest.skip("no interpreter with these packages that every user may run")
    return found[0]


@dataclass
class Stack:
    """A stack by an interpreter that all users may run. `home`: of its state."""

    home: Path
    folder: Path
    python: str


@contextmanager
def stack_up(top: Path, *settings: str) -> Iterator[Stack]:
    """Run a stack in a directory until the `with` ends; what its jobs staged stays, as after `rover down`."""
    python = open_python()
    stack = Stack(top / "state", top / "jobs", python)
    stack.folder.mkdir(mode=0o755, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    words = [python, "-m", "rover_bus.cli.entry", "up", "--dir", str(stack.home), "--page", "none"]
    words += [word for setting in settings for word in ("--set", setting)]
    environment["PYTHONPATH"] = PACKAGES
    environment["PATH"] += f":{Path(sys.executable).parent}"  # nats-server lies beside our interpreter
    running = subprocess.Popen(words, env=environment, cwd=top)
    try:
        until(lambda: (stack.home / "stack.json").exists() or running.poll() is not None, "a stack")
        assert running.poll() is None
        yield stack
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            running.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                running.wait(60)
                break


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory to which every user may pass; that of pytest is closed."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="rover-users-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(host_root(made / "state" / "node"), ignore_errors=True)
    shutil.rmtree(made)


class Spied(SmallJob):
    """The small job with a spy in its program, which is slow to load."""

    stack: Stack

    @property
    def orders(self) -> Path:
        return self.folder / f"{self.name}.orders"

    def write(self) -> None:
        super().write()
        (self.folder / "slow_library.py").write_text("import time\ntime.sleep(1.5)\n")
        inner = self.folder / f"{self.name}.py"
        inner.write_text(PROGRAM.format(orders=str(self.orders), program=str(find_example("dlrm/train.py"))))
        file = self.folder / "job.toml"
        mine = file.read_text().replace(self.gate.program(), self.gate.program(inner))
        file.write_text(mine.replace(sys.executable, self.stack.python))

    def members(self, *roles: str) -> list[dict[str, object]]:
        return living(self.home, self.name, *roles)

    def pid(self, role: str) -> int:
        return int(str(self.members(role)[0]["pid"]))

    def uid(self) -> str:
        return str(self.facts("job.submitted")[0]["uid"])

    def user(self, role: str) -> dict[str, str]:
        """What the kernel says of a member."""
        lines = Path(f"/proc/{self.pid(role)}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return {key: found[key].strip() for key in ("Uid", "Gid", "Groups", "NoNewPrivs")}

    @property
    def run(self) -> str:
        return f"{self.name}.{self.uid()}"

    @property
    def staged(self) -> Path:
        return host_root(self.home / "node") / self.uid()

    def try_all(self, attempts: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Have the spy try these; return what came of each."""
        fresh = self.orders.with_suffix(".fresh")
        fresh.write_text(json.dumps(attempts))
        fresh.rename(self.orders)
        logs = self.home / "node" / "logs" / self.run

        def said() -> list[str]:
            lines = [line for log in logs.glob("worker-*.log") for line in log.read_text().splitlines()]
            return [line for line in lines if line.startswith("spied ")]

        until(said, "what the spy found")
        return {(what, path): found for what, path, found in json.loads(said()[0].removeprefix("spied "))}


def submitted(stack: Stack, name: str) -> Spied:
    job = Spied(
        folder=stack.folder / name,
        home=stack.home,
        rows=4_000,
        epochs=2,
        workers=1,
        servers=1,
        checkpoint='path = "store"\nevery = "1s"\nkeep = 1000',
        name=name,
        spares=1,
        top='[plan]\nmode = "observe"',
    )
    job.stack = stack
    job.folder.mkdir(mode=0o755)
    job.submit()
    return job


def attempts_on(job: Spied) -> list[tuple[str, str]]:
    """What a program of another job may try on this one: each is something that is there."""
    node, pid = job.home / "node", job.pid("worker")
    directory = Path(os.fsdecode(environment_of(pid)[b"ROVER_MEMBER_DIR"]))
    shim = psutil.Process(pid).ppid()
    slot = next(job.staged.glob("*.slot"))
    store = job.folder / "store" / job.run
    part = next(path for path in (store / "parts").rglob("*") if path.is_file())
    log = next((node / "logs" / job.run).glob("worker-*.log"))
    return [
        ("list", str(job.staged)),
        ("read", str(slot)),
        ("list", str(directory)),
        ("read", str(directory / "order")),
        ("read", str(directory / "credential")),
        ("list", str(store)),
        ("read", str(part)),
        ("read", str(log)),
        ("read", f"/proc/{pid}/environ"),
        ("read", f"/proc/{job.pid('ps')}/environ"),
        ("read", f"/proc/{job.pid('master')}/environ"),
        ("read", f"/proc/{shim}/environ"),
        ("signal", str(shim)),
        ("signal", str(pid)),
        ("signal", str(job.pid("ps"))),
        ("read", str(job.home / "auth" / "creds" / "operator.creds")),
        ("list", str(job.home / "broker")),
        ("list", str(job.home / "services")),
        ("list", str(node)),
        ("list", str(host_root(node))),
    ]


def environment_of(pid: int) -> dict[bytes, bytes]:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(word.split(b"=", 1) for word in words if b"=" in word)


def test_a_job_cannot_reach_another_and_both_train_to_the_end(top: Path) -> None:
    with stack_up(top, *A_USER_PER_JOB) as stack:
        a, b = submitted(stack, "a"), submitted(stack, "b")
        for job in (a, b):
            job.until(lambda job=job: job.facts("checkpoint.ready"), "a checkpoint")
        renew(stack, b)
        users = {}
        for job in (a, b):
            told = {role: job.user(role) for role in ("worker", "ps", "master")}
            assert len({each["Uid"] for each in told.values()}) == 1, told
            users[job.name] = int(told["worker"]["Uid"].split()[0])
            for each in told.values():
                assert set(each["Uid"].split()) == set(each["Gid"].split()) == {str(users[job.name])}
                assert (each["Groups"], each["NoNewPrivs"]) == ("", "1")
        assert users["a"] != users["b"]
        assert {user in range(FIRST, FIRST + COUNT) for user in users.values()} == {True}
        found = a.try_all(attempts_on(b))
        assert set(found.values()) == {"refused"}, found
        kill_daemon(stack)
        restores_from_memory(b)
        restores_from_storage(b)
        lost_worker_is_a_spare(b, users["b"])
        for job in (a, b):
            job.complete()
            exported = rover("export", job.name, str(stack.folder / f"{job.name}.npz"), home=stack.home)
            assert exported.returncode == 0, exported.stderr


def renew(stack: Stack, job: Spied) -> None:
    """Have the keys of members replaced: each that runs gets a credential in a file, which it reads as its own user."""
    done = rover("auth", "rotate", home=stack.home)
    assert done.returncode == 0, done.stderr
    members = stack.home / "node" / "members" / job.run
    job.until(lambda: list(members.glob("worker-*/credential")), "a new credential")
    (file,) = members.glob("worker-*/credential")
    found, owner = file.stat(), job.user("worker")["Uid"].split()[0]
    assert (str(found.st_uid), stat.S_IMODE(found.st_mode)) == (owner, 0o600)


def kill_daemon(stack: Stack) -> None:
    """The next one finds the members, and whose they are."""
    marks = ["rover_bus.cli.serve", "daemon", str(stack.home / "node")]
    (daemon,) = [each for each in psutil.process_iter() if _has(each, marks)]
    daemon.kill()
    daemon.wait()
    until(lambda: [each for each in psutil.process_iter() if _has(each, marks)], "the next daemon")


def _has(process: psutil.Process, words: list[str]) -> bool:
    with suppress(psutil.Error):
        return set(words) <= set(process.cmdline())
    return False


def restores_from_memory(job: Spied) -> None:
    os.kill(job.pid("ps"), signal.SIGKILL)
    job.until(lambda: job.facts("server.restored"), "a server is restored")
    assert job.facts("server.restored")[0]["source"] == "memory", job.facts("server.restored")


def restores_from_storage(job: Spied) -> None:
    former = len(job.facts("server.restored"))
    os.kill(job.pid("ps"), signal.SIGKILL)
    for path in (*job.staged.glob("*.slot"), *job.staged.glob("*.digests")):
        path.unlink(missing_ok=True)
    job.until(lambda: len(job.facts("server.restored")) > former, "a server is restored again")
    assert job.facts("server.restored")[former]["source"] == "storage", job.facts("server.restored")


def lost_worker_is_a_spare(job: Spied, user: int) -> None:
    spares = job.home / "node" / "spares"

    def ready() -> list[Path]:
        found = spares.glob(f"{job.name}.*/ready")
        return [each for each in found if not each.parent.is_symlink()]

    def warm() -> list[object]:
        return [each for each in job.facts("host.started") if each["warm"]]

    job.until(ready, "a spare")
    os.kill(job.pid("worker"), signal.SIGKILL)
    job.until(warm, "a spare becomes the worker")
    job.until(lambda: job.members("worker"), "the worker")
    told = job.user("worker")
    assert set(told["Uid"].split()) == {str(user)}
    assert (told["Groups"], told["NoNewPrivs"]) == ("", "1")


def test_without_the_option_each_attempt_succeeds(top: Path) -> None:
    with stack_up(top) as stack:
        a, b = submitted(stack, "a"), submitted(stack, "b")
        for job in (a, b):
            job.until(lambda job=job: job.facts("checkpoint.ready"), "a checkpoint")
        renew(stack, b)
        assert a.user("worker")["Uid"].split()[0] == "0"
        found = a.try_all(attempts_on(b))
        assert set(found.values()) == {"allowed"}, found
        for job in (a, b):
            job.complete()


def test_turned_on_between_two_runs_of_a_stack_a_job_goes_on_from_what_root_staged(top: Path) -> None:
    with stack_up(top) as stack:
        job = submitted(stack, "a")
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint")
        assert (job.staged.stat().st_uid, job.user("ps")["Uid"].split()[0]) == (0, "0")
    with stack_up(top, *A_USER_PER_JOB):
        job.until(lambda: job.facts("server.restored"), "a server is restored")
        assert job.facts("server.restored")[0]["source"] == "memory"
        job.until(lambda: job.members("ps"), "a server")
        user = int(job.user("ps")["Uid"].split()[0])
        assert user in range(FIRST, FIRST + COUNT)
        assert {path.stat().st_uid for path in (job.staged, *job.staged.iterdir())} == {user}
        store = job.folder / "store" / job.run
        former = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > former, "another checkpoint")
        assert {path.stat().st_uid for path in (store, *store.rglob("*"))} == {user}
        job.complete()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hosts.first_member_uid=5"], "uids of members lie in 1000 to 4294967293"),
        (["hosts.first_member_uid=4294967200", "hosts.member_uids=1000"], "uids of members lie in 1000 to"),
        (["hosts.first_member_uid=many"], "hosts.first_member_uid must be a whole number"),
        (["hosts.member_uids=1"], "1 is outside 2 to 16777216"),
    ],
)
def test_a_range_that_cannot_be_is_refused_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = rover("up", "--dir", str(tmp_path / "s"), *(each for word in words for each in ("--set", word)))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_without_root_or_a_way_to_its_directory_it_is_refused_in_one_line() -> None:
    python, setting = open_python(), f"hosts.first_member_uid={FIRST}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rover-users-") as top:
        Path(top).chmod(0o711)
        closed = Path(top, "closed")
        closed.mkdir(mode=0o700)
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONPATH": PACKAGES}
        for user, directory, wanted in (
            (FIRST, f"{top}/s", "only root may start members as other users"),
            (0, f"{closed}/s", f"chmod o+x {closed}"),
        ):
            words = [python, "-m", "rover_bus.cli.entry", "up", "--dir", directory, "--set", setting]
            done = subprocess.run(
                words, user=user, env=environment, cwd="/", capture_output=True, text=True, check=False
            )
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
            assert wanted in done.stderr
