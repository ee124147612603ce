"""A stack that outgrows its one broker: its backup fills a cluster of three that runs, and a cluster's fills one broker."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from broker_cluster import cluster_of_three, urls_of
from outside import rover
from patience import until

from rover_bus.auth.key_folder import part_of
from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.own_broker import A_BROKER, start_broker
from rover_bus.cli.stack import RunningStack
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.snapshots import list_streams
from rover_bus.events.streams import FACTS, LOG
from rover_bus.events.timelines import stack_timeline

pytestmark = pytest.mark.broker
FACT = subjects.job_fact("demo", "plan.applied")
TENANTS = ("default", "ads")
NO_ANSWER = 4  # a command's exit code (docs/cli.md)
T = TypeVar("T")


def asked(vault: Vault, url: str, tenant: str, ask: Callable[[NatsBus], Awaitable[T]]) -> T:
    async def run() -> T:
        bus = await NatsBus.connect(url, secret=vault.owner_credentials(tenant), timeout_s=10)
        try:
            return await ask(bus)
        finally:
            await bus.close()

    return asyncio.run(run())


def facts_of(vault: Vault, url: str, tenant: str) -> list[tuple[int, bytes]]:
    async def read(bus: NatsBus) -> list[tuple[int, bytes]]:
        return [(each.sequence, each.body) async for each in bus.read(FACTS, FACT)]

    return asked(vault, url, tenant, read)


def servers_of(vault: Vault, url: str, stream: str) -> int:
    async def read(bus: NatsBus) -> int:
        config = (await bus.api(f"STREAM.INFO.{stream}", None, f"look at {stream}")).config
        return int(config["num_replicas"])

    return asked(vault, url, "default", read)


def streams_of(vault: Vault, url: str) -> list[str]:
    return [each for tenant in TENANTS for each in asked(vault, url, tenant, list_streams)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `auth` of a stack of two tenants, its `backup`, and what its facts were."""
    folder = tmp_path_factory.mktemp("one")
    home = folder / "state"

    async def store(bus: NatsBus) -> None:
        for number in range(300):
            await bus.append(FACTS, FACT, b"%d" % number * 2000)

    with RunningStack(home) as stack:
        assert rover("auth", "add", "ads", home=home).returncode == 0
        for tenant in TENANTS:
            asked(Vault(home / "auth"), stack.url, tenant, store)
        done = rover("backup", str(folder / "backup"), home=home)
        assert done.returncode == 0, done.stderr
    shutil.copytree(home / "auth", folder / "auth")
    return folder


@contextmanager
def empty_cluster(saved: Path, home: Path) -> Iterator[tuple[list[EmbeddedBroker], Vault, str]]:
    """Three servers that hold nothing, with the keys of the stack, whose copy lies in `home`."""
    Home(home).create()
    shutil.copytree(saved / "auth", Home(home).auth)
    vault = Vault(Home(home).auth)
    with cluster_of_three(home, vault) as servers:
        yield servers, vault, urls_of(servers)


def test_one_brokers_backup_fills_a_cluster_and_the_clusters_fills_one_broker(
    saved: Path, tmp_path: Path
) -> None:
    home, again = tmp_path / "state", tmp_path / "again"
    with empty_cluster(saved, home) as (servers, vault, url):
        done = rover("restore", str(saved / "backup"), "--url", url, home=home)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"the broker at {url} is as it was at ")
        written = {tenant: facts_of(vault, url, tenant) for tenant in TENANTS}
        assert [len(each) for each in written.values()] == [300, 300]
        assert [servers_of(vault, url, stream) for stream in (FACTS, LOG)] == [3, 3]
        timeline = asked(vault, url, "default", stack_timeline)
        assert timeline > 0
        done = rover("restore", str(saved / "backup"), "--url", url, home=home)
        assert (done.returncode, "already" in done.stderr) == (2, True), done.stderr
        assert asked(vault, url, "default", stack_timeline) == timeline
        servers[0].kill()
        until(lambda: read_or_nothing(vault, url) == written["default"], "what the other two have")
        before = keys_of_a_brain(
            vault, tmp_path / "before", lambda name: "ads" not in name and name != "tenants"
        )
        done = backed_up(str(tmp_path / "half"), "--url", url, "--keys", before, home=tmp_path / "taken")
        assert (done.returncode, "do not open tenant ads" in done.stderr) == (2, True), done.stderr
        keys = keys_of_a_brain(vault, tmp_path / "now")
        done = backed_up(str(tmp_path / "of-cluster"), "--url", url, "--keys", keys, home=tmp_path / "taken")
        assert done.returncode == 0, done.stderr
    Home(again).create()
    shutil.copytree(saved / "auth", Home(again).auth)
    assert rover("restore", str(tmp_path / "of-cluster"), home=again).returncode == 0
    with start_broker(Home(again), vault, A_BROKER, "127.0.0.1") as alone:
        assert {tenant: facts_of(vault, alone.url, tenant) for tenant in TENANTS} == written
        assert servers_of(vault, alone.url, FACTS) == 1


def backed_up(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Return how a backup ended, repeated while the servers that are left choose a leader of each stream."""
    while (done := rover("backup", *words, home=home)).returncode == NO_ANSWER:
        assert "repeat it" in done.stderr, done.stderr
    return done


def keys_of_a_brain(vault: Vault, folder: Path, has: Callable[[str], bool] = lambda _: True) -> str:
    """Return a folder as a Brain's pod has it. has: the files of it; one from before a tenant was made has none of that one's."""
    keys = folder / "keys"
    keys.mkdir(parents=True)
    for name, text in part_of(vault, "brain").items():
        if has(name):
            (keys / name).write_text(text)
    return str(keys)


def test_the_keys_of_a_brains_pod_open_all_that_a_release_stores(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with RunningStack(home) as stack:
        keys = keys_of_a_brain(Vault(Home(home).auth), tmp_path)
        words = ("--url", stack.url, "--keys", keys, "--dir", str(tmp_path / "taken"))
        done = rover("backup", str(tmp_path / "saved"), *words)
        assert done.returncode == 0, done.stderr
        done = rover("restore", str(tmp_path / "saved"), *words)
        assert done.returncode == 2
        assert "connected to the broker" in done.stderr
    assert (tmp_path / "saved" / "ROVER_LOG").is_dir()


def read_or_nothing(vault: Vault, url: str) -> list[tuple[int, bytes]]:
    """Return the facts, or none while the cluster elects another leader."""
    try:
        return facts_of(vault, url, "default")
    except BusError:
        return []


def test_a_broker_in_use_is_refused_and_half_a_backup_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    home, damaged = tmp_path / "state", tmp_path / "damaged"
    shutil.copytree(saved / "backup", damaged)
    facts = damaged / "ROVER_FACTS" / "stream.tar.s2"
    facts.write_bytes(facts.read_bytes()[: facts.stat().st_size // 2])
    refusals: list[tuple[int, str]] = []

    def refused(backup: Path, url: str) -> None:
        done = rover("restore", str(backup), "--url", url, home=home)
        [line] = [each for each in done.stderr.splitlines() if each]
        refusals.append((done.returncode, line))

    with empty_cluster(saved, home) as (_, vault, url):

        async def beside_another(bus: NatsBus) -> None:
            del bus  # it is connected
            await asyncio.to_thread(refused, saved / "backup", url)

        asked(vault, url, "ads", beside_another)
        refused(damaged, url)
        assert streams_of(vault, url) == []
        done = rover("restore", str(saved / "backup"), "--url", url, home=home)
        assert done.returncode == 0, done.stderr
    shutil.rmtree(Home(home).auth)
    refused(saved / "backup", "nats://127.0.0.1:1")
    assert [code for code, _ in refusals] == [2, 4, 2], refusals
    assert "rover (127.0.0.1) is connected" in refusals[0][1]
    assert "ROVER_FACTS" in refusals[1][1]
    assert "has no keys that open every account" in refusals[2][1]
