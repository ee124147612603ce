"""A broker cluster of three real servers on loopback: one is killed, what was stored is there, and it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from broker_cluster import cluster_of_three, free_ports, urls_of

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.own_broker import OwnBroker, start_broker
from rover_bus.cli.replicas import raise_replicas
from rover_bus.events.broker import ROUTE_PING_S, ROUTE_PINGS, EmbeddedBroker
from rover_bus.events.bus import MESSAGE_ID, Entry
from rover_bus.events.errors import BusError, InputError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Ways
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, STREAMS
from rover_bus.events.subjects import job_fact

pytestmark = pytest.mark.broker
PATIENCE_S = 60.0
FACT = job_fact("demo", "job.opened")
SERVED, IN_A_ROW = "rover.job.demo.lease", 12
GIVEN_UP_S = 3 * ROUTE_PING_S * (ROUTE_PINGS + 1)
TRIES = 4  # each begins with any of three


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.write_credentials("h1")
    return made


@pytest.fixture
def servers(tmp_path: Path, vault: Vault) -> Iterator[list[EmbeddedBroker]]:
    with cluster_of_three(tmp_path, vault) as made:
        yield made


async def insist(call: Callable[[], Awaitable[object]]) -> object:
    """Call until the cluster has elected what it needs."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except BusError:
                await asyncio.sleep(0.1)


def test_a_server_is_killed_and_nothing_is_lost_or_doubled(
    servers: list[EmbeddedBroker], vault: Vault
) -> None:
    async def run() -> None:
        urls = urls_of(servers)
        bus = await NatsBus.connect(urls, secret=vault.owner_credentials(), timeout_s=10)
        try:
            assert bus.replicas == 3
            await insist(lambda: bus.ensure(STREAMS, BUCKETS))
            assert await bus.differences(STREAMS, BUCKETS) == []
            heard: list[bytes] = []
            await bus.follow(FACTS, [FACT], lambda stored: heard.append(stored.body), start="first")

            async def store(number: int) -> None:
                await insist(
                    lambda: bus.append(FACTS, FACT, b"%d" % number, headers={MESSAGE_ID: f"m{number}"})
                )

            for number in range(20):
                await store(number)
            await insist(lambda: bus.put(LEADERS, "demo", b"leads"))
            killed = next(each for each in servers if str(each.port) == port_of(bus))
            killed.kill()
            for number in range(20, 40):
                await store(number)
            expected = [b"%d" % number for number in range(40)]

            async def stored() -> list[bytes]:
                return [each.body async for each in bus.read(FACTS, FACT)]

            assert await insist(stored) == expected
            async with asyncio.timeout(PATIENCE_S):
                while len(heard) < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert heard == expected
            entry = await insist(lambda: bus.get(LEADERS, "demo"))
            assert isinstance(entry, Entry)
            assert entry.value == b"leads", "a bucket in memory is on the other servers"
            killed.start()
            await store(40)
        finally:
            await bus.close()

    asyncio.run(run())


def test_streams_that_one_server_kept_are_raised_to_three_and_outlive_it(
    servers: list[EmbeddedBroker], vault: Vault
) -> None:
    async def run() -> None:
        urls = urls_of(servers)
        few = await NatsBus.connect(
            urls, secret=vault.owner_credentials(), timeout_s=10, ways=Ways(replicas=1)
        )
        owner = await NatsBus.connect(urls, secret=vault.owner_credentials(), timeout_s=10)
        try:
            await insist(lambda: few.ensure(STREAMS, BUCKETS))
            for number in range(20):
                await few.append(FACTS, FACT, b"%d" % number)
            assert len(await owner.differences(STREAMS, BUCKETS)) == len(STREAMS) + len(BUCKETS)
            async with asyncio.timeout(PATIENCE_S):
                while await raise_replicas(owner, (), 3):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            assert await owner.differences(STREAMS, BUCKETS) == []
            async with asyncio.timeout(PATIENCE_S):
                while not (leader := await caught_up(owner)):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            next(each for number, each in enumerate(servers) if f"s{number}" == leader).kill()
            expected = [b"%d" % number for number in range(20)]

            async def stored() -> list[bytes]:
                return [each.body async for each in owner.read(FACTS, FACT)]

            assert await insist(stored) == expected
        finally:
            await few.close()
            await owner.close()

    asyncio.run(run())


async def caught_up(bus: NatsBus) -> str:
    """Return the server that leads the facts once the two others have all of them; "" before."""
    answer = json.loads((await bus.ask(f"$JS.API.STREAM.INFO.{FACTS}", b"", 5.0)).data)
    cluster = answer.get("cluster", {})
    replicas = cluster.get("replicas") or []
    return cluster.get("leader", "") if [each["current"] for each in replicas] == [True, True] else ""


def test_a_store_of_one_broker_is_no_server_of_a_cluster_and_none_of_it_is_touched(
    tmp_path: Path, vault: Vault
) -> None:
    """nats-server would start with it, and know none of its streams."""
    home = Home(tmp_path)
    ports = free_ports(2)
    place = OwnBroker(server_name="s0", cluster_port=ports[0], routes=[f"127.0.0.1:{ports[1]}"])

    async def stored(url: str) -> list[bytes]:
        bus = await NatsBus.connect(url, secret=vault.owner_credentials())
        try:
            await bus.ensure(STREAMS, BUCKETS)
            await bus.append(FACTS, FACT, b"kept")
            return [each.body async for each in bus.read(FACTS, FACT)]
        finally:
            await bus.close()

    with start_broker(home, vault, OwnBroker(), "127.0.0.1") as alone:
        assert asyncio.run(stored(alone.url)) == [b"kept"]
    with pytest.raises(InputError, match="ran alone"):
        start_broker(home, vault, place, "127.0.0.1")
    with start_broker(home, vault, OwnBroker(), "127.0.0.1") as alone:
        assert asyncio.run(stored(alone.url)) == [b"kept", b"kept"]
    other = Home(tmp_path / "other")
    other.create()
    start_broker(other, vault, place, "127.0.0.1").stop()
    start_broker(other, vault, place, "127.0.0.1").stop()
    with pytest.raises(InputError, match="one server of a cluster"):
        start_broker(other, vault, OwnBroker(), "127.0.0.1")


def test_requests_reach_a_service_that_left_a_server_which_hangs(
    servers: list[EmbeddedBroker], vault: Vault
) -> None:
    """The others keep the hanging server's interest in what was served there, and would send it each second request."""
    own = vault.owner_credentials()
    first, hanging, third = servers

    async def run() -> None:
        async with AsyncExitStack() as open_buses:

            async def connected(server: EmbeddedBroker) -> NatsBus:
                bus = await NatsBus.connect(server.url, secret=own, timeout_s=10)
                open_buses.push_async_callback(bus.close)
                return bus

            asking, left, serving = [await connected(each) for each in (first, hanging, third)]
            for bus in (left, serving):
                await bus.serve("demo", {SERVED: lambda asked: asked.respond(b"done")})
            await insist(lambda: asking.request(SERVED, b"", timeout_s=1.0))
            assert hanging.pid is not None
            os.kill(hanging.pid, signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                answered = 0
                while answered < IN_A_ROW:
                    try:
                        await asking.request(SERVED, b"", timeout_s=0.2)
                        answered += 1
                    except BusError:
                        answered = 0
                assert time.monotonic() - began_s < GIVEN_UP_S
            finally:
                os.kill(hanging.pid, signal.SIGCONT)

    asyncio.run(run())


@pytest.mark.parametrize("hangs", ["before it answers", "before it accepts"])
def test_each_connection_finds_the_server_that_answers_among_those_that_do_not(
    servers: list[EmbeddedBroker], vault: Vault, hangs: str
) -> None:
    """A machine that is gone answers nothing at all: whichever is tried first, a command connects."""

    async def connect(urls: list[str]) -> None:
        bus = await NatsBus.connect(",".join(urls), secret=vault.owner_credentials(), timeout_s=4)
        await bus.close()

    async def run() -> None:
        with ExitStack() as held:
            silent = [held.enter_context(socket.socket()) for _ in range(2)]
            for each in silent:
                each.bind(("127.0.0.1", 0))
                each.listen(0)
                if hangs == "before it accepts":
                    for _ in range(4):  # a queue that is full: what would connect is not answered
                        full = held.enter_context(socket.socket())
                        full.setblocking(False)
                        full.connect_ex(each.getsockname())
            urls = [f"tls://127.0.0.1:{each.getsockname()[1]}" for each in silent]
            for _ in range(TRIES):
                await connect([*urls, servers[0].url])

    asyncio.run(run())


def port_of(bus: NatsBus) -> str:
    client = bus._client
    assert client is not None
    return str(client._server_info["port"])
