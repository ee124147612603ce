"""A stack as its user meets it: what it starts, what it keeps alive, what it says when something is wrong, what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from facts_read import records_of
from outside import living, rover
from patience import PATIENCE_S, until
from small_job import SmallJob

from rover_bus.cli.home import Home, NoStack
from rover_bus.cli.stack import Here, OtherBroker, RunningStack
from rover_bus.events.broker import find_server
from rover_bus.events.errors import Refused
from rover_bus.flash.places import host_root
from rover_bus.node.local.layout import list_members

pytestmark = pytest.mark.broker
ASK_S = 0.2  # between two commands of one that waits: each takes a core from what is waited for


def processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line names a directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(directory) in word for word in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def services_of(state: Path) -> list[int]:
    """Return the Brain and the daemon of a state directory."""
    return sorted(
        pid for pid in processes_of(state) if {"brain", "daemon"} & set(psutil.Process(pid).cmdline())
    )


def commands_of(processes: list[int]) -> list[str]:
    """What they run, for the words of a failure."""
    return [" ".join(process.cmdline()) for process in psutil.process_iter() if process.pid in processes]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    with RunningStack(tmp_path / "state") as running:
        yield running
    assert processes_of(tmp_path) == []


@pytest.fixture(scope="module")
def unused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A stack for all that is refused: it stays as it was."""
    folder = tmp_path_factory.mktemp("unused")
    with RunningStack(folder / "state") as running:
        yield running
    assert processes_of(folder) == []


def write_job(folder: Path, name: str = "tiny", *, columns: str = "age") -> Path:
    (folder / "t.csv").write_text("label,age,user\n" + "".join(f"{n % 2},{n},u{n % 7}\n" for n in range(50)))
    path = folder / "job.toml"
    path.write_text(
        f'name = "{name}"\nprogram = ["{sys.executable}", "-c", "import time; time.sleep(600)"]\n'
        f'[data]\ntrain = "t.csv"\n[data.schema]\ndense = ["{columns}"]\ncategorical = ["user"]\n'
        "[workers]\ncount = 1\n[servers]\ncount = 1\n"
    )
    return path


def test_a_stack_runs_its_services_apart_and_is_gone_without_a_trace(tmp_path: Path) -> None:
    home = Home(tmp_path / "state")
    with RunningStack(home) as stack:
        assert set(stack.pids()) == {"brain", "daemon", "broker"}
        assert home.read_record().url == stack.url
        assert stack.secret_file.stat().st_mode & 0o777 == 0o600
        port = int(stack.url.rsplit(":", 1)[1])
    assert processes_of(tmp_path) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    with pytest.raises(NoStack):
        home.read_record()


def test_a_stack_that_nobody_wants_to_keep_frees_the_memory_of_its_cuts(tmp_path: Path) -> None:
    with RunningStack(tmp_path / "state", disposable=True) as stack:
        staged = host_root(stack.home.node) / "u1"
        staged.mkdir(parents=True)
        (staged / "ps-0.0.slot").write_bytes(bytes(4096))
    assert not staged.parent.exists()


def test_what_dies_is_started_again(stack: RunningStack, tmp_path: Path) -> None:
    before = stack.pids()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    until(
        lambda: len(stack.pids()) == 3 and not set(before.values()) & set(stack.pids().values()), "successors"
    )
    where = ("--dir", str(stack.home.root))
    until(lambda: rover("doctor", *where, cwd=tmp_path).returncode == 0, "a healthy stack", ASK_S)


def test_how_a_service_ended_is_an_event_once_the_bus_is_there(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with in_the_foreground(state):
        pids = {
            "brain": next(pid for pid in processes_of(state) if "brain" in psutil.Process(pid).cmdline()),
            "daemon": next(pid for pid in processes_of(state) if "daemon" in psutil.Process(pid).cmdline()),
            "broker": next(pid for pid in processes_of(state) if "-c" in psutil.Process(pid).cmdline()),
        }
        os.kill(pids["broker"], signal.SIGKILL)  # first: the others end while there is no bus
        os.kill(pids["brain"], signal.SIGBUS)
        os.kill(pids["daemon"], signal.SIGKILL)
        where = ("--dir", str(state))

        def told() -> dict[str, dict[str, Any]]:
            said = records_of(state, "", "host.service_ended") or []
            bodies = [each["body"] for each in said]
            assert len(bodies) == len({body["service"] for body in bodies}), bodies
            return {body["service"]: body for body in bodies}

        until(lambda: len(told()) == 3, "an event of each")
        bodies = told()
        assert {service: body["pid"] for service, body in bodies.items()} == pids
        assert bodies["brain"]["exit"]["signal"] == signal.SIGBUS
        assert "Fatal Python error: Bus error" in bodies["brain"]["exit"]["stderr"]
        assert bodies["broker"]["exit"]["signal"] == bodies["daemon"]["exit"]["signal"] == signal.SIGKILL
        assert "Server is ready" in bodies["broker"]["exit"]["stderr"]
        narrated = rover("events", "-k", "host.service_ended", *where).stdout
        assert "ended after" in narrated
        assert "is started again: SIGBUS: Fatal Python error: Bus error" in narrated
        until(lambda: rover("doctor", *where).returncode == 0, "a healthy stack", ASK_S)
        seen = rover("doctor", *where).stdout
        for service in pids:
            assert f"note  the {service} of host " in seen
        assert "ended once within a day, last by SIGBUS: Fatal Python error: Bus error" in seen


def test_where_a_host_stands_and_where_it_stages_is_said_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("ROVER_DOMAIN", "rack-7")
    monkeypatch.setenv("ROVER_SHM", str(tmp_path / "shm"))
    with RunningStack(tmp_path / "state") as stack:

        def opened() -> list[str]:
            told = rover("events", "-k", "host.storage_opened", "--json", home=stack.home.root)
            return [json.loads(line)["body"]["domain"] for line in told.stdout.splitlines()]

        until(lambda: opened() == ["rack-7"], "the host's storage", 0.5)
        daemon = psutil.Process(stack.pids()["daemon"]).environ()
        assert daemon["ROVER_SHM"] == str(tmp_path / "shm")


def test_one_directory_holds_one_stack(unused: RunningStack) -> None:
    with pytest.raises(Refused, match="a stack runs in"):
        RunningStack(unused.home).start()


def test_a_job_that_waits_says_for_what(stack: RunningStack, tmp_path: Path) -> None:
    job = Tiny(stack, tmp_path)
    assert job.rover("submit", str(job.file)).returncode == 0
    until(job.workers, "the first job's worker", ASK_S)
    file = write_job(tmp_path, "huge")
    file.write_text(file.read_text().replace("[workers]", "[workers]\ncores = 100000"))
    assert job.rover("submit", str(file)).returncode == 0

    def reason() -> str:
        listed: list[dict[str, str]] = json.loads(job.rover("jobs", "-o", "json").stdout)
        return next(row["reason"] for row in listed if row["job"] == "huge")

    until(lambda: "and the cluster has" in reason(), "the Brain's reason", ASK_S)
    assert f"job huge: {reason()}" in job.rover("doctor").stdout


class Tiny:
    """The job `tiny`, as its user asks about it."""

    def __init__(self, stack: RunningStack, folder: Path) -> None:
        self.file, self._home, self._folder = write_job(folder), stack.home.root, folder

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, "--dir", str(self._home), cwd=self._folder)

    def refused(self, *words: str, because: str, exit_code: int = 3) -> None:
        done = self.rover(*words)
        assert (done.returncode, because in done.stderr) == (exit_code, True), done.stderr

    def members(self) -> list[dict[str, object]]:
        listed = self.rover("members", "tiny", "-o", "json")
        found: list[dict[str, object]] = json.loads(listed.stdout) if listed.returncode == 0 else []
        return found

    def workers(self) -> list[object]:
        return [row["incarnation"] for row in self.members() if row["role"] == "worker" and row["pid"]]

    def ended_members(self) -> list[dict[str, object]]:
        """Return the job's record once its members' ends are in it."""
        records: list[dict[str, object]] = json.loads(self.rover("history", "-o", "json").stdout)
        return [record for record in records if record["worker_incarnations"] and record["ps_incarnations"]]


def test_a_job_is_submitted_seen_and_cancelled(stack: RunningStack, tmp_path: Path) -> None:
    job = Tiny(stack, tmp_path)
    done = job.rover("submit", str(job.file))
    assert done.returncode == 0, done.stderr
    assert "submitted tiny" in done.stdout
    see_it_live(job)
    pause_and_resume(job)
    say_what_plans_may(job)
    assert job.rover("cancel", "tiny").stdout == "tiny: cancelled\n"
    until(lambda: job.members() == [], "the end of all members", ASK_S)
    assert "cancelled" in job.rover("jobs").stdout
    see_what_it_was(job)
    assert (tmp_path / "h.csv").read_text().splitlines()[1].startswith("tiny,")


def see_it_live(job: Tiny) -> None:
    until(lambda: {"worker", "ps"} <= {row["role"] for row in job.members() if row["pid"]}, "members", ASK_S)
    until(lambda: [row for row in job.members() if row["leads"]], "a master that leads", ASK_S)
    assert sum(row["role"] == "master" for row in job.members()) == 2
    assert all(psutil.pid_exists(int(str(row["pid"]))) for row in job.members() if row["pid"])
    job.refused("submit", str(job.file), because="a job 'tiny' exists already")
    told = job.rover("events", "tiny")
    assert "submitted by" in told.stdout
    assert "leads, term 1" in told.stdout
    assert "worker-0.1 started" in job.rover("story", "tiny/worker-0").stdout


def pause_and_resume(job: Tiny) -> None:
    assert job.rover("pause", "tiny", "--reason", "lunch").stdout == "tiny: paused\n"
    until(lambda: job.workers() == [], "the workers' leaving", ASK_S)
    assert " paused " in job.rover("jobs").stdout
    job.refused("pause", "tiny", because="paused already")
    assert job.rover("resume", "tiny").stdout == "tiny: goes on\n"
    until(lambda: job.workers() == [2], "the next life of the worker", ASK_S)


def say_what_plans_may(job: Tiny) -> None:
    listed = json.loads(job.rover("plan", "list", "tiny", "-o", "json").stdout)
    assert [(row["plan"], row["change"]) for row in listed] == [(1, "1 worker, 1 server")]
    job.refused("plan", "approve", "tiny", because="waits")
    assert job.rover("quota", "set", "ads=2:1GiB").stdout == "ads: 2 cores and 1.0 GiB from now on\n"
    quotas = json.loads(job.rover("quota", "list", "-o", "json").stdout)
    assert [(row["tenant"], row["cores"], row["memory_bytes"], row["jobs"]) for row in quotas] == [
        ("ads", 2.0, 1 << 30, 0),
        ("default", None, None, 1),
    ]
    said = job.rover("plan", "mode", "--cluster", "approve").stdout
    assert "all jobs: plans are in mode approve from now on" in said
    assert job.rover("plan", "mode", "approve").returncode == 2


def see_what_it_was(job: Tiny) -> None:
    until(job.ended_members, "what its members used", ASK_S)
    [record] = job.ended_members()
    assert (record["state"], record["asked_workers"], record["held_workers"]) == ("cancelled", 1, 1)
    assert float(str(record["worker_cpu_s"])) > 0
    assert job.rover("history", "--export", "h.csv").returncode == 0
    assert job.rover("cancel", "tiny").returncode == 3
    job.refused("export", "tiny", "m.npz", because="left no model", exit_code=2)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("submit", "absent.toml"), 2, "no job file"),
        (("submit", "job.toml", "--name", "two words"), 2, "cannot be used"),
        (("jobs", "--secret-file", "wrong"), 5, "wrong"),
        (("jobs", "--secret-file", "absent"), 2, "no secret file"),
        (("members", "nobody"), 2, "there is no job 'nobody'"),
        (("story", "99999"), 2, "no event '99999'"),
        (("witness", "nobody"), 2, "there is no job 'nobody'"),
    ],
)
def test_bad_input_gets_one_line_and_loses_nothing(
    unused: RunningStack, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    write_job(tmp_path)
    secret = tmp_path / "wrong"
    secret.write_text("not-the-secret\n")
    secret.chmod(0o600)
    done = rover(*arguments, "--dir", str(unused.home.root), cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_column_is_refused_before_anything_is_submitted(unused: RunningStack, tmp_path: Path) -> None:
    where = ("--dir", str(unused.home.root))
    done = rover("submit", str(write_job(tmp_path, columns="agee")), *where, cwd=tmp_path)
    assert done.returncode == 2
    assert "no column 'agee'; did you mean 'age'?" in done.stderr
    assert rover("jobs", "-o", "json", *where, cwd=tmp_path).stdout == "[]\n"


def test_up_ends_everything_on_ctrl_c_and_on_sigterm(tmp_path: Path) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        state = tmp_path / number.name
        command = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--dir", str(state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            until(lambda: (state / "stack.json").exists(), "a stack")  # noqa: B023
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == code
        assert processes_of(state) == []
        assert not (state / "stack.json").exists()


def test_up_that_is_killed_takes_its_services_with_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: (state / "stack.json").exists(), "a stack")
        process.kill()
        process.wait()
    try:
        until(lambda: processes_of(state) == [], "the end of the services")
    except AssertionError as late:
        raise AssertionError(f"{late}: {commands_of(processes_of(state))}") from None
    with RunningStack(state) as again:
        assert len(again.pids()) == 3


def test_up_may_be_called_again_while_a_killed_one_s_members_still_drain(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "deaf").mkdir()
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    file = write_job(tmp_path / "deaf", "deaf")
    file.write_text(file.read_text().replace("import time; time.sleep(600)", deaf))
    command = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--dir", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: (state / "stack.json").exists(), "a stack")
        assert rover("submit", str(file), "--dir", str(state)).returncode == 0
        until(lambda: running(state, "worker"), "its worker")
        process.kill()
        process.wait()
    with RunningStack(state) as again:
        assert len(again.pids()) == 3


def running(state: Path, role: str) -> list[int]:
    return [each.pid for each in list_members(state / "node") if each.member.role == role and each.pid]


@contextmanager
def in_the_foreground(state: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run `rover up` until the `with` ends; it must still run then. `more`: variables of its environment."""
    command = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--dir", str(state)]
    said = state.parent / "up.log"
    with (
        said.open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, env=os.environ | more) as process,
    ):
        try:
            until(lambda: (state / "stack.json").exists(), "a stack")
            yield process
            assert process.poll() is None, said.read_text()
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
    assert processes_of(state) == []


def test_a_service_that_crashes_is_explained(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with in_the_foreground(state):
        brain = next(pid for pid in processes_of(state) if "brain" in psutil.Process(pid).cmdline())
        os.kill(brain, signal.SIGBUS)
        said = "brain ended (SIGBUS: Fatal Python error: Bus error) and is started again"
        until(lambda: said in (tmp_path / "up.log").read_text(), "how the Brain ended")


def test_a_log_of_the_broker_that_is_moved_or_removed_is_opened_anew(tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = state / "broker" / "nats-server.log"
    with in_the_foreground(state):
        log.unlink()
        until(
            lambda: log.exists() and "re-opened" in log.read_text(), "a log in the place of the removed one"
        )
        log.rename(log.with_suffix(".old"))
        log.touch()
        until(lambda: "re-opened" in log.read_text(), "news in the new log")
        os.truncate(log, 0)
        time.sleep(2.5)  # longer than the watch's look
        assert rover("doctor", "--dir", str(state)).returncode == 0


def test_a_broker_that_answers_late_ends_nothing(tmp_path: Path) -> None:
    """Its store may take longer to read than anybody thought of: here its second start waits 20 s before it begins."""
    server = tmp_path / "server"
    mark = tmp_path / "started"
    server.write_text(
        f'#!/bin/sh\nif [ -e {mark} ]; then sleep 20; fi\ntouch {mark}\nexec {find_server()} "$@"\n'
    )
    server.chmod(0o700)
    state = tmp_path / "state"
    with in_the_foreground(state, ROVER_NATS_SERVER=str(server)):
        broker = state / "broker" / "nats-server.log"
        with broker.open(
            "a"
        ) as log:  # what it says when its disk refused a write; there is room again already
            log.write("[1] [ERR] JetStream out of space, critical write error detected\n")
        others = services_of(state)
        until(lambda: "critical" in broker.read_text() and len(starts(broker)) == 2, "the second start")
        until(lambda: rover("doctor", "--dir", str(state)).returncode == 0, "a healthy stack", ASK_S)
        assert services_of(state) == others


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Listen on a port of loopback as another program, from the moment that it can be had."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def bound() -> bool:
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

        until(bound, "the port of a broker that was killed", 0.0)
        other.listen(64)
        yield


def test_a_port_that_another_program_took_is_said_once_and_mended_when_it_is_free(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with in_the_foreground(state):
        pid = next(
            pid for pid in processes_of(state) if "nats-server.conf" in str(psutil.Process(pid).cmdline())
        )
        port = int(Home(state).read_record().url.rsplit(":", 1)[1])
        said = tmp_path / "up.log"
        os.kill(pid, signal.SIGKILL)
        with taken(port):
            until(
                lambda: f"port {port} is in use by another program" in said.read_text(),
                "why it does not start",
            )
            time.sleep(4.0)  # attempts at 0.1, 0.2, 0.4, 0.8 and 1.6 s
        until(lambda: "the broker serves again" in said.read_text(), "a broker that serves")
        until(lambda: rover("doctor", "--dir", str(state)).returncode == 0, "a healthy stack", ASK_S)
    of_the_broker = [line for line in said.read_text().splitlines() if "broker" in line.split("(")[0][7:18]]
    assert len(of_the_broker) == 3, of_the_broker


def test_too_few_files_are_said_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    up = f'"{sys.executable}" -m rover_bus.cli.entry up --dir "{tmp_path}/state"'
    command = ["sh", "-c", f"ulimit -n 24; exec {up}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "only 24 files may be open at once" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("command", "who"),
    [
        ("rover_bus.cli.serve daemon --url nats://127.0.0.1:9 --dir node", "a daemon"),
        ("rover_bus.cli.serve brain --url nats://127.0.0.1:9", "a Brain"),
        ("rover_bus.cli.entry run --plain job.toml", "a training program"),
        ("rover_bus.cli.entry run -- true", "a training program"),
    ],
)
def test_too_few_files_are_said_by_what_is_started_alone(tmp_path: Path, command: str, who: str) -> None:
    write_job(tmp_path)
    started = ["sh", "-c", f'ulimit -n 24; exec "{sys.executable}" -m {command}']
    done = subprocess.run(
        started, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    said = f"only 24 files may be open at once, and {who} needs 256: raise it (`ulimit -n 256`)"
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_whose_loss_ends_its_job_is_named_with_how_it_ended(
    stack: RunningStack, tmp_path: Path
) -> None:
    job = SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        rows=640,
        epochs=1,
        workers=1,
        servers=1,
        checkpoint="",
        top='on_server_lost = "fail"',
    )
    job.submit()
    job.until(lambda: job.facts("epoch.opened"), "a job that trains")
    (server,) = living(job.home, job.name, "ps")
    os.kill(server["pid"], signal.SIGBUS)
    job.until(lambda: job.facts("job.ended"), "the end")
    (ended,) = job.facts("job.ended")
    assert ended["reason"] == "server_lost"
    assert ended["detail"].startswith("ps-0.1 (crashed: SIGBUS: Fatal Python error: Bus error) is gone")


def test_a_worker_that_dies_before_it_joins_is_explained(stack: RunningStack, tmp_path: Path) -> None:
    file = write_job(tmp_path)
    file.write_text(
        file.read_text().replace("import time; time.sleep(600)", "import no_such_module_anywhere")
    )
    where = ("--dir", str(stack.home.root))
    assert rover("submit", str(file), *where, cwd=tmp_path).returncode == 0

    def told(kind: str) -> str:
        return rover("events", "tiny", "-k", kind, *where, cwd=tmp_path).stdout

    cause = "status 1: ModuleNotFoundError: No module named 'no_such_module_anywhere'"
    until(lambda: records_of(stack.home.root, "tiny", "job.ended"), "the end")
    assert cause in told("job.ended")
    assert cause in told("worker.failed")


def starts(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "Server is ready" in line]


def test_a_stack_in_the_background_is_ended_by_down(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "state"))
    assert rover("up", "--detach", *where, cwd=tmp_path).returncode == 0
    assert rover("up", "--detach", *where, cwd=tmp_path).returncode == 3
    assert rover("down", *where, cwd=tmp_path).returncode == 0
    until(lambda: processes_of(tmp_path) == [], "the end of the services")
    assert rover("down", *where, cwd=tmp_path).returncode == 4


# -- several machines ----------------------------------------------------------------------------------------------------


def listening(directory: Path) -> set[str]:
    """Where the processes that belong to a directory take connections."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join([*process.cmdline(), *process.environ().values()])
            if str(directory) in words and process.pid != os.getpid():
                found |= {each.laddr.ip for each in process.net_connections("tcp") if each.status == "LISTEN"}
    return found


def test_hosts_of_several_machines_are_one_stack_and_nobody_listens_where_he_need_not(tmp_path: Path) -> None:
    one = RunningStack(tmp_path / "one", here=Here("one", bind="127.0.0.2"), disposable=True)
    with one:
        assert one.url.startswith("tls://127.0.0.2:"), "beyond loopback it is encrypted"
        two = RunningStack(
            tmp_path / "two",
            broker=OtherBroker(one.url, one.secret_file),
            brain=None,
            here=Here("two", bind="127.0.0.3"),
            disposable=True,
        )
        with two:
            job = SmallJob(
                folder=tmp_path,
                home=one.home.root,
                rows=2_000,
                epochs=2,
                workers=2,
                servers=2,
                checkpoint='every = "1s"\ncopies = 1\npersist = false',
            )
            job.submit()
            heard = set[str]()

            def redundant() -> object:
                heard.update(listening(tmp_path))
                return job.facts("checkpoint.redundant")

            job.until(redundant, "a cut whose parts went from machine to machine")
            assert heard == {"127.0.0.2", "127.0.0.3"}
            job.complete()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("0.0.0.0", "name the one address"),
        ("192.0.2.1", "is no address of this machine"),
        ("here", "name an IPv4 address"),
        ("::1", "name an IPv4 address"),
    ],
)
def test_an_address_to_listen_at_is_one_that_this_machine_has(
    tmp_path: Path, address: str, says: str
) -> None:
    done = rover("up", "--bind", address, home=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_job_that_waits_for_room_is_cancelled_at_once(stack: RunningStack, tmp_path: Path) -> None:
    where = ("--dir", str(stack.home.root))
    first = write_job(tmp_path, "first")
    assert rover("submit", "job.toml", *where, cwd=tmp_path).returncode == 0
    planned = re.compile(r"^first +(starting|training|completed)", re.MULTILINE)  # a look may miss `starting`
    told = lambda: rover("jobs", *where, cwd=tmp_path).stdout  # noqa: E731
    until(lambda: planned.search(told()), "the first job has a plan", ASK_S, told)
    first.write_text(write_job(tmp_path).read_text().replace("[workers]\n", "[workers]\ncores = 500\n"))
    assert rover("submit", "job.toml", *where, cwd=tmp_path).returncode == 0
    until(
        lambda: "and the cluster has" in rover("jobs", *where, cwd=tmp_path).stdout,
        "the second one waits for room",
        ASK_S,
    )
    rover("cancel", "tiny", *where, cwd=tmp_path)
    until(
        lambda: "cancelled" in rover("jobs", *where, cwd=tmp_path).stdout, "the end of the second one", ASK_S
    )
