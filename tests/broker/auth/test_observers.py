"""Those who only look: all of the Bus that reads, without a consumer, since whoever makes one says where it delivers.

The observer in the control account's streams and in a tenant's, and a viewer of that tenant, each on a real broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import make_tenants, of_registrar
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import MESSAGE_ID, Bus, Entry, Stored
from rover_bus.events.errors import AccessDenied, BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.nats_wire import DIRECT_BATCH
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, LOG, PRESENCE, SETTINGS, STREAMS

pytestmark = pytest.mark.broker
TENANT = "ads"
OTHERS, ITS_OWN = subjects.job_fact("other", "job.opened"), subjects.job_fact("demo", "job.opened")
MANY = 2 * DIRECT_BATCH + 7
PATIENCE_S = 20.0


class Looking(NamedTuple):
    """Who looks (at whose account), and the owner of that account, who may do anything there."""

    bus: Bus
    owner: Bus


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.write_credentials("h1")
    made.note_tenants([TENANT])
    return made


@pytest.fixture
def broker(tmp_path: Path, vault: Vault) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as started:
        yield started


@asynccontextmanager
async def looking(broker: EmbeddedBroker, vault: Vault, who: str) -> AsyncIterator[Looking]:
    async with (
        of_registrar(broker.url, vault.owner_credentials()) as owner,
        of_registrar(broker.url, vault.system_credentials()) as system,
    ):
        await owner.ensure(STREAMS, BUCKETS)
        await make_tenants(owner, system, vault)
        secret = (
            vault.person_credentials("viewer", TENANT)
            if who == "viewer"
            else vault.credentials_file("observer").read_text()
        )
        bus = await NatsBus.connect(broker.url, secret=secret)
        try:
            if who == "observer":
                yield Looking(bus, owner)
            else:
                yield Looking(bus.of(TENANT), owner.of(TENANT))
        finally:
            await bus.close()


EVERYONE = pytest.mark.parametrize("who", ["observer", "observer of a tenant", "viewer"])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def consumers(owner: Bus, stream: str) -> list[str]:
    assert isinstance(owner, NatsStorage)
    answer = await owner.ask(f"{owner.root}$JS.API.CONSUMER.NAMES.{stream}", b"", 5.0)
    return (
        [] if b'"consumers":[]' in answer.data or b'"consumers":null' in answer.data else [str(answer.data)]
    )


@EVERYONE
def test_what_only_looks_reads_counts_and_follows_all_in_order_and_makes_nothing(
    broker: EmbeddedBroker, vault: Vault, who: str
) -> None:
    async def run() -> None:
        async with looking(broker, vault, who) as (bus, owner):
            for number in range(MANY):
                await owner.append(FACTS, OTHERS if number % 3 == 0 else ITS_OWN, b"%d" % number)
            every = [b"%d" % number for number in range(MANY)]
            mine = [body for number, body in enumerate(every) if number % 3]
            assert [each.body async for each in bus.read(FACTS, "rover.job.*.*.*")] == every
            assert [each.body async for each in bus.read(FACTS, ITS_OWN)] == mine
            assert [each.body async for each in bus.read(FACTS, ITS_OWN, first=MANY - 1)] == mine[-2:]
            assert [each async for each in bus.read(FACTS, subjects.job_fact("none", "job.opened"))] == []
            assert await bus.count(FACTS, ITS_OWN) == len(mine)
            assert await bus.count(FACTS, ITS_OWN, first=MANY + 1) == 0
            assert await bus.subjects(FACTS, "rover.job.*.*.*") == {
                OTHERS: MANY - len(mine),
                ITS_OWN: len(mine),
            }
            last = await bus.last(FACTS, ITS_OWN)
            assert last is not None
            assert last.body == mine[-1]
            heard: dict[str, list[bytes]] = {"first": [], "new": [], "two": []}
            for name, filters, start in (
                ("first", [ITS_OWN], "first"),
                ("new", ["rover.job.*.*.*"], "new"),
                ("two", [OTHERS, subjects.host_fact("h1", "left")], MANY - 1),
            ):
                await bus.follow(
                    FACTS,
                    filters,
                    lambda stored, name=name: heard[name].append(stored.body),  # type: ignore[misc]
                    start=start,  # type: ignore[arg-type]
                )
            assert heard["first"] == mine
            for subject in (ITS_OWN, OTHERS):
                await owner.append(FACTS, subject, b"later")
            await until(
                lambda: (
                    len(heard["new"]) == 2 and len(heard["first"]) > len(mine) and b"later" in heard["two"]
                )
            )
            expected = [body for number, body in enumerate(every) if number % 3 == 0 and number >= MANY - 2]
            assert heard == {"first": [*mine, b"later"], "new": [b"later"] * 2, "two": [*expected, b"later"]}
            assert isinstance(bus, NatsStorage)
            assert await bus.growth(FACTS, 60.0) > 0
            assert await consumers(owner, FACTS) == []

    asyncio.run(run())


@EVERYONE
def test_what_only_looks_watches_a_bucket_to_the_end_of_what_is_in_it(
    broker: EmbeddedBroker, vault: Vault, who: str
) -> None:
    async def run() -> None:
        async with looking(broker, vault, who) as (bus, owner):
            for job in ("one", "two", "three"):
                await owner.put(LEADERS, job, job.encode())
            seen: dict[str, bytes | None] = {}

            def take(entry: Entry) -> None:
                seen[entry.key] = entry.value

            await bus.watch(LEADERS, "*", take)
            assert seen == {"one": b"one", "two": b"two", "three": b"three"}
            await owner.put(LEADERS, "two", b"again", ttl_s=1)
            await owner.delete(LEADERS, "three")
            await until(lambda: seen["two"] == b"again" and seen["three"] is None)
            await until(lambda: seen["two"] is None)  # its time to live was over
            assert set(await bus.entries(LEADERS, "*")) == {"one"}
            assert await bus.get(LEADERS, "two") is None
            assert await consumers(owner, f"KV_{LEADERS}") == []

    asyncio.run(run())


@EVERYONE
def test_what_only_looks_sees_hosts_and_settings_of_the_cluster(
    broker: EmbeddedBroker, vault: Vault, who: str
) -> None:
    async def run() -> None:
        async with looking(broker, vault, who) as (bus, owner):
            control = owner.of("default") if who == "observer" else None
            async with of_registrar(broker.url, vault.owner_credentials()) as any_owner:
                for host in ("h1", "h2", "h3"):
                    await (control or any_owner).put(PRESENCE, host, host.encode())
                await any_owner.put(SETTINGS, "cluster", b"{}")
            assert {key: each.value for key, each in (await bus.entries(PRESENCE, "*")).items()} == {
                "h1": b"h1",
                "h2": b"h2",
                "h3": b"h3",
            }
            entry = await bus.get(SETTINGS, "cluster")
            assert entry is not None
            assert entry.value == b"{}"

    asyncio.run(run())


def test_a_follower_that_only_looks_goes_on_after_a_restart_of_the_broker(
    broker: EmbeddedBroker, vault: Vault
) -> None:
    async def run() -> None:
        async with looking(broker, vault, "observer") as (bus, owner):
            heard: list[Stored] = []
            await owner.append(FACTS, ITS_OWN, b"1")
            await bus.follow(FACTS, [ITS_OWN], heard.append, start="first")
            broker.kill()
            broker.start()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await owner.append(FACTS, ITS_OWN, b"2", headers={MESSAGE_ID: "2"})
                        break
                    except BusError:  # its connection may not know yet that the broker was away
                        await asyncio.sleep(0.05)
            await until(lambda: len(heard) >= 2)
            assert [each.body for each in heard] == [b"1", b"2"]

    asyncio.run(run())


@EVERYONE
def test_what_only_looks_can_make_no_consumer_and_store_nothing(
    broker: EmbeddedBroker, vault: Vault, who: str
) -> None:
    async def run() -> None:
        async with looking(broker, vault, who) as (bus, _owner):
            assert isinstance(bus, NatsStorage)
            with pytest.raises(AccessDenied):
                await bus.api(f"CONSUMER.CREATE.{LOG}", {"stream_name": LOG, "config": {}}, "make one")
            with pytest.raises(AccessDenied):
                await bus.append(FACTS, ITS_OWN, b"forged")
            with pytest.raises(AccessDenied):
                await bus.purge(FACTS, ">")

    asyncio.run(run())
