"""A job trains over a broker of three machines: a server is killed or cut off, links are slow and lose packets, disks are lost."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from machines import JobOnMachines, Stacks, run_on
from namespaces import Network, network, why_not
from patience import until

from rover_bus.auth.vault import Vault

LACKS = why_not()
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(bool(LACKS), reason=LACKS or "all is there")]
SERVERS = ("a", "b", "c")
PORT, CLUSTER_PORT = 4222, 6222
HEALED_S = 30.0
PARTED_S = 60.0  # routes are given up after 9 s, an election takes as long, and members may be started again
PATIENT = ["--set", "leadership.master_ttl=15s"]  # an election of the broker takes seconds
APPEND = """
import asyncio, sys
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS
async def run():
    bus = await NatsBus.connect(sys.argv[1], secret=open(sys.argv[2]).read(), timeout_s=5)
    try:
        print("stored", await bus.append(FACTS, "rover.job.cutoff.job.pause_requested", b"", timeout_s=8))
    finally:
        await bus.close()
asyncio.run(run())
"""


class ClusterOfThree:
    """A broker on three machines with copies of one `auth`, the stack on a fourth, a host that joins on a fifth, and a job."""

    def __init__(self, net: Network, folder: Path, ends: ExitStack) -> None:
        self.net, self.on, self._folder = net, net.machines, folder
        self.stacks = Stacks(folder, ends)
        first = Vault(self.stacks.home("a").auth)
        self.stacks.home("a").create()
        first.make_keys()
        first.write_credentials("one")
        for name in SERVERS[1:]:
            self.stacks.home(name).create()
            shutil.copytree(first.root, self.stacks.home(name).auth)
        for name in SERVERS:
            self._start_server(name)
        self.url = ",".join(self.url_of(name) for name in SERVERS)
        self.operator = str(first.credentials_file("operator"))
        self.home = self.stacks.home("one").root
        self.start_hosts()
        self.job = JobOnMachines(
            machine=self.on["one"],
            folder=folder,
            home=self.home,
            rows=0,
            epochs=2,
            workers=2,
            servers=2,
            checkpoint=f'every = "1s"\npath = "{folder / "store"}"',
        )

    def url_of(self, server: str) -> str:
        return f"tls://{self.on[server].address}:{PORT}"

    def _start_server(self, name: str) -> None:
        address = self.on[name].address
        words = ["broker", "--bind", address, "--server-name", name, "--cluster-port", str(CLUSTER_PORT)]
        for other in SERVERS:
            if other != name:
                words += ["--route", f"{self.on[other].address}:{CLUSTER_PORT}"]
        log = self._folder / f"{name}.log"
        self.stacks.start(self.on[name], name, *words, serves=lambda: "broker   tls://" in log.read_text())

    def start_hosts(self) -> None:
        words = ["--url", self.url, "--secret-file", self.operator, *PATIENT]
        self.stacks.start(
            self.on["one"], "one", "up", "--host", "one", "--bind", self.on["one"].address, *words
        )
        self._join("two")

    def erase(self) -> None:
        """Lose all machines at once, and the disks of all three servers; the servers are there again, and hold nothing."""
        for name in ("one", "two", *SERVERS):
            self.stacks.lose(name)
        for name in SERVERS:
            shutil.rmtree(self.stacks.home(name).broker / "store")
        for name in SERVERS:
            self._start_server(name)

    def said(self, *words: str) -> str:
        """Return what a command says that is given on the first server's machine, with its keys."""
        done = run_on(self.on["a"], self.stacks.home("a").root, *words, cwd=self._folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _join(self, name: str) -> None:
        file = self._folder / f"{name}.token"
        done = run_on(self.on["one"], self.home, "auth", "token", "--out", str(file), cwd=self._folder)
        assert done.returncode == 0, done.stderr
        words = ["--token-file", str(file), "--name", name, *PATIENT]
        self.stacks.start(self.on[name], name, "join", *words)

    def server(self, name: str) -> psutil.Process:
        """Return the process of a machine's nats-server."""
        [found] = [
            each
            for each in psutil.Process(self.stacks.processes[name].pid).children(recursive=True)
            if each.name() == "nats-server"
        ]
        return found

    def begin(self, rows: int) -> None:
        """Submit the job. `rows`: so many that it trains until it has been disturbed."""
        self.job.rows = rows
        self.job.submit()
        self.until_it_goes_on("a first checkpoint", 0)

    def ready(self) -> int:
        return len(self.job.facts("checkpoint.ready"))

    def until_it_goes_on(self, what: str, before: int, most_s: float = math.inf) -> None:
        """Wait until a checkpoint that was not there before is stored; that takes less than `most_s`, or what came is shown."""
        began_s = time.monotonic()
        self.job.until(lambda: self.ready() > before, what)
        took_s = time.monotonic() - began_s
        assert took_s < most_s, (
            f"{what}: {took_s:.1f} s; {self.job.rover('events', self.job.name, '-n', '150').stdout}"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfThree]:
    with network(*SERVERS, "one", "two") as net, ExitStack() as ends:
        yield ClusterOfThree(net, tmp_path, ends)


def test_a_killed_and_a_cut_off_server_cost_no_commit_and_the_minority_stores_nothing(
    cluster: ClusterOfThree,
) -> None:
    cluster.begin(100_000)
    before = cluster.ready()
    cluster.server("a").kill()  # its supervisor starts it again
    cluster.until_it_goes_on("training after a server was killed", before + 1, HEALED_S)
    assert append_at(cluster, "b").returncode == 0
    cluster.net.cut("b")
    before = cluster.ready()
    refused = append_at(cluster, "b")
    assert refused.returncode != 0, refused.stdout
    assert "stored" not in refused.stdout
    cluster.until_it_goes_on("training while a server is cut off", before + 1, HEALED_S)
    cluster.net.mend("b")
    began_s = time.monotonic()
    until(lambda: append_at(cluster, "b").returncode == 0, "the server that was cut off")
    assert time.monotonic() - began_s < HEALED_S
    cluster.job.complete()


def test_a_server_that_reaches_its_clients_and_no_other_server_is_left(cluster: ClusterOfThree) -> None:
    """It answers their pings and stores nothing: a third of all connections would wait for it for as long as that lasts."""
    cluster.begin(100_000)
    for name in SERVERS:
        with cluster.net.parted(name, [other for other in SERVERS if other != name]):
            before = cluster.ready()
            cluster.until_it_goes_on(f"training while {name} is parted from the others", before + 6, PARTED_S)
            began_s = time.monotonic()
            until(partial(has_no_client, cluster, name), f"{name}, which its clients are to leave")
            assert time.monotonic() - began_s < PARTED_S
            assert append_at(cluster, name).returncode != 0
        until(partial(is_stored_at, cluster, name), f"{name}, which was parted")
    cluster.job.complete()


def has_no_client(cluster: ClusterOfThree, server: str) -> bool:
    """Whether nothing is connected with a server, as its machine's kernel knows it."""
    connections = Path(f"/proc/{cluster.server(server).pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in connections]
    return not any(own.endswith(f":{PORT:04X}") and state == "01" for _, own, _, state, *_ in fields)


def is_stored_at(cluster: ClusterOfThree, server: str) -> bool:
    return append_at(cluster, server).returncode == 0


def test_a_job_trains_where_all_links_of_the_broker_are_slow_and_lose_packets(
    cluster: ClusterOfThree,
) -> None:
    """Each way takes 50 ms, and one packet of a hundred is lost, between servers and towards everything else."""
    cluster.begin(15_000)
    with ExitStack() as worse:
        before = cluster.ready()
        for name in SERVERS:
            worse.enter_context(cluster.net.worse(name, 0.05, 0.01))
        assert round_trip_s(cluster) > 0.1
        cluster.until_it_goes_on("training over slow links", before + 2, 2 * HEALED_S)
        cluster.job.complete()


def test_three_erased_stores_are_filled_from_a_backup_and_the_job_goes_on(
    cluster: ClusterOfThree, tmp_path: Path
) -> None:
    cluster.begin(30_000)
    cluster.said("backup", str(tmp_path / "saved"), "--url", cluster.url)
    backed_up = max(each["cut"] for each in cluster.job.facts("checkpoint.ready"))
    cluster.until_it_goes_on("checkpoints after the backup", cluster.ready() + 1)
    cluster.erase()
    said = cluster.said("restore", str(tmp_path / "saved"), "--url", cluster.url)
    assert f"goes on with {cluster.job.name}" in said
    cluster.start_hosts()
    cluster.job.until(lambda: cluster.job.facts("ledger.rewound"), "the way back")
    [back] = cluster.job.facts("ledger.rewound")
    assert "restored from a backup" in back["reason"]
    assert back["cut"] > backed_up, "the newest that is stored, of which the backup does not know"
    cluster.job.complete()


def round_trip_s(cluster: ClusterOfThree) -> float:
    """Return what a connection from the first machine to the first server takes to be made."""
    address = cluster.on[SERVERS[0]].address
    program = f"import socket; socket.create_connection(({address!r}, {PORT}), 20).close()"
    command = [
        *cluster.on["one"].within,
        sys.executable,
        "-c",
        f"import time; a = time.monotonic(); {program}; print(time.monotonic() - a)",
    ]
    return float(subprocess.check_output(command, timeout=60))


def append_at(cluster: ClusterOfThree, name: str) -> subprocess.CompletedProcess[str]:
    """Have one server store something, asked on its own machine."""
    command = [sys.executable, "-c", APPEND, cluster.url_of(name), cluster.operator]
    return subprocess.run(
        [*cluster.on[name].within, *command], capture_output=True, text=True, check=False, timeout=60
    )
