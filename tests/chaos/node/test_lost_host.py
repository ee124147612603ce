"""A host is lost with its memory: its part comes back from a copy on the other host, and every sample counts once (P13)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rover_bus.flash.places import host_root

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(900)]
ROVER = [sys.executable, "-m", "rover_bus.cli.entry"]
ROWS, EPOCHS, PATIENCE_S = 20_000, 4, 300.0
JOB = f"""
name = "ads"
[data]
train = "t.csv"
batch_size = 32
epochs = {EPOCHS}
read_latency = "25ms"  # bound by its input, so that it lasts beyond the second cut on any machine
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = 2
[servers]
count = 2
[leases]
target = "500ms"
heartbeat = "300ms"
[checkpoint]
every = "15s"  # the host is lost between two cuts: the newest one has its copy
copies = 1
path = "store"
"""


class Hosts:
    """Two stacks on one machine that share the first one's broker: two hosts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.homes = {"h1": directory / "one", "h2": directory / "two"}

    def rover(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ROVER, *arguments], capture_output=True, text=True, cwd=self.directory, check=False, timeout=120
        )

    def up(self, host: str) -> None:
        first = self.homes["h1"]
        words = ["up", "--detach", "--dir", str(self.homes[host]), "--host", host]
        if host != "h1":
            url = json.loads((first / "stack.json").read_text())["url"]
            words += ["--url", url, "--secret-file", str(first / "secret")]
        done = self.rover(*words)
        assert done.returncode == 0, done.stderr

    def lose(self, host: str) -> None:
        """SIGKILL everything of a host and take its memory."""
        home = str(self.homes[host])
        for process in [each for each in psutil.process_iter() if home in _words(each)]:
            process.send_signal(signal.SIGKILL)
        shutil.rmtree(self.memory(host))

    def memory(self, host: str) -> Path:
        return host_root(self.homes[host] / "node")

    def facts(self, kind: str) -> list[dict[str, Any]]:
        done = self.rover("events", "ads", "-k", kind, "--json", "--dir", str(self.homes["h1"]))
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    def until(self, condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, (
                f"never came: {what}; {self.rover('events', 'ads', '-n', '15', '--dir', str(self.homes['h1'])).stdout}"
            )
            time.sleep(0.5)

    def servers(self, host: str) -> list[int]:
        """Return the indexes of the servers that run on a host."""
        listed = self.rover("members", "ads", "-o", "json", "--dir", str(self.homes[host]))
        rows = json.loads(listed.stdout)
        return [row["index"] for row in rows if row["role"] == "ps" and row["pid"]]

    def last(self) -> str:
        return self.rover("events", "ads", "-n", "15", "--dir", str(self.homes["h1"])).stdout

    def down(self) -> None:
        for host in ("h2", "h1"):
            self.rover("down", "--dir", str(self.homes[host]))
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
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.down()


def submit(hosts: Hosts) -> None:
    """Bring up two hosts and submit the job."""
    rows = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(ROWS))
    (hosts.directory / "t.csv").write_text("label,user,item\n" + rows)
    (hosts.directory / "job.toml").write_text(JOB)
    hosts.up("h1")
    hosts.up("h2")
    submitted = hosts.rover("submit", "job.toml", "--dir", str(hosts.homes["h1"]))
    assert submitted.returncode == 0, submitted.stderr


def complete(hosts: Hosts) -> None:
    """See the job end with every sample applied once."""
    hosts.until(lambda: hosts.facts("job.ended"), "the end")
    (ended,) = hosts.facts("job.ended")
    assert ended["state"] == "completed", ended
    witness = hosts.rover("witness", "ads", "--json", "--dir", str(hosts.homes["h1"]))
    counted = json.loads(witness.stdout)
    assert (counted["applied"], counted["missing"], counted["duplicated"]) == (ROWS * EPOCHS, 0, 0)


def test_servers_move_off_a_host_while_training_goes_on(hosts: Hosts) -> None:
    submit(hosts)
    hosts.until(lambda: hosts.facts("plan.settled"), "everybody is there")
    assert sorted(hosts.servers("h1") + hosts.servers("h2")) == [0, 1]
    assert hosts.servers("h2")
    off = ("move", "ads", "--off", "h2", "--dir", str(hosts.homes["h1"]))
    moved = hosts.rover(*off)
    assert moved.returncode == 0, moved.stderr
    hosts.until(lambda: not hosts.servers("h2"), "no server is left there")
    assert len(hosts.servers("h1")) == 2
    assert "no server runs there" in hosts.rover(*off).stderr
    complete(hosts)
    assert not hosts.facts("ledger.rewound"), "nobody was lost, and nothing trained twice"


def test_a_server_comes_back_from_the_other_host_s_memory(hosts: Hosts) -> None:
    submit(hosts)
    hosts.until(lambda: hosts.facts("checkpoint.redundant"), "a redundant cut")
    hosts.lose("h2")
    hosts.up("h2")
    hosts.until(lambda: hosts.facts("server.restored"), "a server is restored")
    restored = hosts.facts("server.restored")[0]
    assert restored["source"] == "peer", hosts.facts("host.part_mirrored")
    complete(hosts)
    stored = ("ads", "--dir", str(hosts.homes["h1"]))
    verified = hosts.rover("checkpoint", "verify", *stored)
    assert (verified.returncode, "whole" in verified.stdout) == (0, True), verified.stderr
    restored_names = hosts.rover("checkpoint", "restore", *stored[:1], "cut.npz", *stored[1:]).stdout
    exported_names = hosts.rover("export", "ads", "model.npz", "--dir", str(hosts.homes["h1"])).stdout
    assert _names(restored_names) == _names(exported_names) != []
    hosts.until(lambda: not hosts.memory("h1").exists() and not hosts.memory("h2").exists(), "memory swept")
