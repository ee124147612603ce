"""A host is lost with its memory: its part comes back from a copy on the other host, and every sample counts once (P13)."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from outside import rover
from small_job import NAME, SmallJob

from rover_bus.flash.places import host_root

pytestmark = [pytest.mark.chaos, pytest.mark.broker]
CHECKPOINT = """
every = "15s"  # the host is lost between two cuts: the newest one has its copy
copies = 1
path = "store"
"""


class Hosts:
    """Two stacks on one machine that share the first one's broker, each brought up with `rover up`: two hosts, and their job."""

    def __init__(self, directory: Path) -> None:
        self.homes = {"h1": directory / "one", "h2": directory / "two"}
        self.job = SmallJob(
            folder=directory,
            home=self.homes["h1"],
            rows=20_000,
            epochs=2,
            workers=2,
            servers=2,
            leases='heartbeat = "300ms"',
            checkpoint=CHECKPOINT,
        )

    def up(self, host: str) -> None:
        first = self.homes["h1"]
        words = ["up", "--detach", "--host", host]
        if host != "h1":
            url = json.loads((first / "stack.json").read_text())["url"]
            words += ["--url", url, "--secret-file", str(first / "auth/creds/operator.creds")]
        done = rover(*words, home=self.homes[host])
        assert done.returncode == 0, done.stderr

    def lose(self, host: str) -> None:
        """SIGKILL everything of a host and take its memory."""
        home = str(self.homes[host])
        for process in [each for each in psutil.process_iter() if home in _words(each)]:
            process.send_signal(signal.SIGKILL)
        shutil.rmtree(self.memory(host), ignore_errors=True)  # where nothing was staged there is none

    def memory(self, host: str) -> Path:
        return host_root(self.homes[host] / "node")

    def servers(self, host: str) -> list[int]:
        """Return the indexes of the servers that run on a host."""
        return self._running(host, "ps")

    def masters(self, host: str) -> list[int]:
        """Return the indexes of the masters that run on a host."""
        return self._running(host, "master")

    def _running(self, host: str, role: str) -> list[int]:
        listed = rover("members", NAME, "-o", "json", home=self.homes[host])
        rows = json.loads(listed.stdout)
        mine = [row for row in rows if row["host"] == host]  # the others run elsewhere
        return sorted(row["index"] for row in mine if row["role"] == role and row["pid"])

    def down(self) -> None:
        for host in ("h2", "h1"):
            rover("down", home=self.homes[host])
            shutil.rmtree(self.memory(host), ignore_errors=True)


def _words(process: psutil.Process) -> str:
    """The command line and the environment of a process, as far as they can be seen."""
    try:
        return " ".join([*process.cmdline(), *process.environ().values()])
    except psutil.Error:
        return ""


def _names(listing: str) -> list[str]:
    return sorted(line.split()[0] for line in listing.splitlines())


@pytest.fixture
def bare_hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts without a job."""
    made = Hosts(tmp_path)
    try:
        made.up("h1")
        made.up("h2")
        yield made
    finally:
        made.down()


@pytest.fixture
def hosts(bare_hosts: Hosts) -> Hosts:
    """Two hosts, and a job that begins on them."""
    bare_hosts.job.submit()
    return bare_hosts


def test_servers_move_off_a_host_while_training_goes_on(hosts: Hosts) -> None:
    job = hosts.job
    job.until(lambda: job.facts("plan.settled"), "everybody is there")
    assert sorted(hosts.servers("h1") + hosts.servers("h2")) == [0, 1]
    assert hosts.servers("h2")
    moved = job.rover("move", NAME, "--off", "h2")
    assert moved.returncode == 0, moved.stderr
    job.until(lambda: not hosts.servers("h2"), "no server is left there")
    assert len(hosts.servers("h1")) == 2
    assert "no server runs there" in job.rover("move", NAME, "--off", "h2").stderr
    job.complete()
    assert not job.facts("ledger.rewound"), "nobody was lost, and nothing trained twice"


def test_a_server_comes_back_from_the_other_host_s_memory(hosts: Hosts) -> None:
    job = hosts.job
    job.until(lambda: job.facts("checkpoint.redundant"), "a redundant cut")
    assert (len(hosts.masters("h1")), len(hosts.masters("h2"))) == (1, 1)
    hosts.lose("h2")
    job.until(lambda: hosts.masters("h1") == [0, 1], "leader and standby on the host that is left")
    hosts.up("h2")
    job.until(lambda: len(hosts.masters("h2")) == 1, "one of them on the host that is back")
    job.until(lambda: len(hosts.masters("h1")) == 1, "and not on both")
    job.until(lambda: job.facts("server.restored"), "a server is restored")
    restored = job.facts("server.restored")[0]
    assert restored["source"] == "peer", job.facts("host.part_mirrored")
    job.complete()
    verified = job.rover("checkpoint", "verify", NAME)
    assert (verified.returncode, "whole" in verified.stdout) == (0, True), verified.stderr
    restored_names = job.rover("checkpoint", "restore", NAME, "cut.npz").stdout
    exported_names = job.rover("export", NAME, "model.npz").stdout
    assert _names(restored_names) == _names(exported_names) != []
    job.until(lambda: not hosts.memory("h1").exists() and not hosts.memory("h2").exists(), "memory swept")


def test_another_job_shrinks_for_what_a_lost_host_took_and_gets_its_size_back(
    bare_hosts: Hosts, tmp_path: Path
) -> None:
    hosts = bare_hosts
    registered = hosts.job.rover("events", "-k", "host.registered", "--json").stdout.splitlines()
    cores = min(json.loads(line)["body"]["capacity"]["cores"] for line in registered) / 5
    ours, theirs = (_limited(tmp_path / name, hosts, name, cores) for name in ("ours", "theirs"))
    ours.priority, ours.workers, theirs.workers = 5, 2, 3  # seven fifths of one host, on two
    for job in (ours, theirs):
        job.submit()
        job.until(lambda job=job: job.facts("plan.settled"), "everybody is there")
    hosts.lose("h2")
    theirs.until(lambda: _sizes(theirs)[-1] == (1, "shrink_after_loss"), "it fits beside the other")
    hosts.up("h2")
    theirs.until(lambda: _sizes(theirs)[-1] == (3, "room_again"), "it is as it was")
    assert [workers for workers, _ in _sizes(theirs)] == [3, 1, 3]
    assert [workers for workers, _ in _sizes(ours)] == [2], "who comes first keeps what he has"
    for job in (ours, theirs):
        assert job.rover("cancel", job.name).returncode == 0


def _limited(folder: Path, hosts: Hosts, name: str, cores: float) -> SmallJob:
    """A job whose members have each a part of a host's cores."""
    folder.mkdir()
    return SmallJob(
        folder=folder,
        home=hosts.homes["h1"],
        rows=20_000,
        epochs=2,
        workers=1,
        servers=1,
        leases='heartbeat = "300ms"',
        checkpoint="",
        top='on_server_lost = "restart"',  # all of it may lie on the host that is lost
        name=name,
        cores=round(cores, 3),
    )


def _sizes(job: SmallJob) -> list[tuple[int, str]]:
    """The workers of each plan that was carried out, and why."""
    return [(fact["workers"], fact["constant"]) for fact in job.facts("plan.applied")]
