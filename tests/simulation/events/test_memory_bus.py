"""The weather of the in-memory bus: it comes from the seed, every fault can happen, and each one looks as it does outside."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rover_bus.events.bus import MESSAGE_ID, Entry, Message, Stored
from rover_bus.events.errors import BusError, BusTimeout, NoResponders, NotConnected, WrongSequence
from rover_bus.events.memory_bus import CALM, Faults, MemoryBroker
from rover_bus.events.streams import FACTS, LEADERS, LOG, ROUTING
from rover_bus.events.virtual_time import run

JOB_LOG = "rover.job.demo.log"
LEASE = "rover.rpc.demo.1.lease"
STORMY = Faults(
    delay_s=(0.001, 0.02),
    ack_delay_s=(0.0, 0.01),
    drop=0.05,
    duplicate=0.05,
    reorder=0.1,
    append_lost=0.05,
    ack_lost=0.05,
    detect_s=0.5,
)


def echo(message: Message) -> None:
    assert message.respond is not None
    message.respond(message.body)


async def stormy_history(seed: int) -> list[str]:
    """Requests, appends, renewals, a partition, a crash and a restart; returns everything that anybody saw."""
    broker = MemoryBroker(seed, STORMY)
    told: list[str] = []
    loop = asyncio.get_running_loop()

    def tell(what: str) -> None:
        told.append(f"{loop.time():.9f} {what}")

    server, client, reader = (broker.connect(name) for name in ("server", "client", "reader"))
    await server.serve("master", {LEASE: echo})
    await reader.follow(
        LOG, [JOB_LOG], lambda stored: tell(f"stored {stored.sequence} {stored.body!r}"), start="first"
    )
    await reader.watch(LEADERS, "*", lambda entry: tell(f"entry {entry.revision} {entry.value!r}"))
    reader.on_connection(lambda state: tell(f"reader {state}"))

    async def attempt(what: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            tell(f"{what} {await call()}")
        except BusError as error:
            tell(f"{what} {error.code}")

    async def ask() -> bytes:
        return (await client.request(LEASE, b"x", timeout_s=0.3)).body

    for number in range(60):
        await attempt(f"ask {number}", ask)
        await attempt(
            f"append {number}", lambda n=number: client.append(LOG, JOB_LOG, b"%d" % n, timeout_s=0.3)
        )
        await attempt(f"lead {number}", lambda: client.put(LEADERS, "demo", b"x", ttl_s=1.0))
        if number == 20:
            broker.partition("reader")
        elif number == 30:
            broker.heal("reader")
        elif number == 40:
            broker.kill("server")
        elif number == 50:
            broker.restart(down_s=0.2)
    broker.faults = CALM
    await asyncio.sleep(5.0)
    for bus in (server, client, reader):
        await bus.close()
    return told


def digest(seed: int) -> str:
    return hashlib.sha256("\n".join(run(stormy_history(seed))).encode()).hexdigest()


def test_one_seed_is_one_history_and_another_seed_another() -> None:
    assert digest(7) == digest(7)
    assert digest(7) != digest(8)


def test_the_history_does_not_depend_on_the_hash_seed() -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_memory_bus as t; print(t.digest(7))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_follower_in_a_storm_sees_each_stored_message_once_and_in_order(seed: int) -> None:
    print(f"seed {seed}")
    told = run(stormy_history(seed))
    stored = [int(line.split()[2]) for line in told if line.split()[1] == "stored"]
    acked = [
        int(line.split()[3]) for line in told if line.split()[1] == "append" and line.split()[3].isdecimal()
    ]
    assert stored == list(range(1, stored[-1] + 1))
    assert set(acked) <= set(stored)
    assert len(stored) > len(acked)  # some were stored and their ack lost


def test_every_weather_shows_itself_in_some_seed() -> None:
    outcomes = {
        line.split(maxsplit=3)[3]
        for seed in range(5)
        for line in run(stormy_history(seed))
        if " ask " in line
    }
    assert outcomes >= {"b'x'", "bus_timeout", "no_responders"}


def weather(faults: Faults, count: int = 200) -> list[int]:
    """What arrives of `count` numbered messages under some faults."""

    async def program() -> list[int]:
        broker = MemoryBroker(3, faults)
        sender, receiver = broker.connect("sender"), broker.connect("receiver")
        got: list[int] = []
        await receiver.subscribe("rover.test", lambda message: got.append(int(message.body)))
        for number in range(count):
            await sender.publish("rover.test", b"%d" % number)
        await asyncio.sleep(10.0)
        return got

    return run(program())


def test_delays_alone_keep_the_order_of_a_connection() -> None:
    assert weather(Faults(delay_s=(0.0, 1.0))) == list(range(200))


def test_drops_lose_duplicates_double_and_reorderings_swap() -> None:
    assert 100 < len(weather(Faults(drop=0.2))) < 200
    assert len(weather(Faults(duplicate=0.2))) > 200
    swapped = weather(Faults(reorder=0.2, delay_s=(0.001, 0.002)))
    assert sorted(swapped) == list(range(200))
    assert swapped != list(range(200))


def test_a_timed_out_append_is_stored_or_not_and_its_tail_tells() -> None:
    async def program(faults: Faults) -> tuple[bool, int]:
        broker = MemoryBroker(0, faults)
        bus = broker.connect("writer")
        with pytest.raises(BusTimeout):
            await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "m"}, expected_last=0, timeout_s=1.0)
        broker.faults = CALM
        stored = await bus.last(LOG, JOB_LOG) is not None
        if stored:
            with pytest.raises(WrongSequence):
                await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "m"}, expected_last=0)
        else:
            await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "m"}, expected_last=0)
        return stored, len([message async for message in bus.read(LOG, JOB_LOG)])

    assert run(program(Faults(ack_lost=1.0))) == (True, 1)
    assert run(program(Faults(append_lost=1.0))) == (False, 1)


def test_a_partition_is_silence_first_and_a_lost_connection_then() -> None:
    async def program() -> None:
        broker = MemoryBroker(0, Faults(detect_s=2.0))
        server, client = broker.connect("server"), broker.connect("client")
        await server.serve("master", {LEASE: echo})
        states: list[str] = []
        server.on_connection(states.append)
        broker.partition("server")
        with pytest.raises(BusTimeout):  # nobody knows yet
            await client.request(LEASE, b"x", timeout_s=1.0)
        await asyncio.sleep(1.5)
        with pytest.raises(NoResponders):  # the broker has noticed
            await client.request(LEASE, b"x", timeout_s=1.0)
        with pytest.raises(NotConnected):
            await server.publish("rover.test", b"")
        broker.heal("server")
        await asyncio.sleep(0.2)
        assert (await client.request(LEASE, b"x", timeout_s=1.0)).body == b"x"
        assert states == ["disconnected", "connected"]

    run(program())


def test_a_partition_that_nobody_noticed_loses_no_stored_message() -> None:
    async def program() -> list[int]:
        broker = MemoryBroker(0)
        reader, writer = broker.connect("reader"), broker.connect("writer")
        got: list[int] = []
        await reader.follow(FACTS, ["rover.job.*.*.*"], lambda stored: got.append(stored.sequence))
        for number in range(30):
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"x")
            if number == 10:
                broker.partition("reader")
            elif number == 20:
                broker.heal("reader")
        await asyncio.sleep(1.0)
        return got

    assert run(program()) == list(range(1, 31))


def test_nothing_of_a_killed_process_runs_on() -> None:
    async def program() -> None:
        broker = MemoryBroker(0, Faults(delay_s=(0.01, 0.02)))
        victim, other = broker.connect("victim"), broker.connect("other")
        heard: list[Message] = []
        await victim.subscribe("rover.test", heard.append)
        await victim.serve("master", {LEASE: lambda message: None})
        waiting = asyncio.ensure_future(victim.request(LEASE, b"", timeout_s=60.0))
        await other.publish("rover.test", b"on the way")
        broker.kill("victim")
        await asyncio.sleep(1.0)
        assert heard == []
        assert waiting.cancelled()
        with pytest.raises(NoResponders):
            await other.request(LEASE, b"", timeout_s=1.0)
        with pytest.raises(asyncio.CancelledError):
            await victim.publish("rover.test", b"from beyond")
        reborn = broker.connect("victim")
        await reborn.serve("master", {LEASE: echo})
        assert (await other.request(LEASE, b"x", timeout_s=1.0)).body == b"x"

    run(program())


def test_a_restart_empties_memory_and_keeps_files() -> None:
    async def program() -> None:
        broker = MemoryBroker(0)
        bus = broker.connect("service")
        entries: list[Entry] = []
        await bus.put(LEADERS, "demo", b"leader", ttl_s=60.0)
        await bus.put(ROUTING, "demo", b"table")
        await bus.append(LOG, JOB_LOG, b"1")
        await bus.watch(LEADERS, "demo", entries.append)
        broker.restart(down_s=1.0)
        with pytest.raises(NotConnected):
            await bus.get(LEADERS, "demo")
        await asyncio.sleep(2.0)
        assert await bus.get(LEADERS, "demo") is None
        assert await bus.get(ROUTING, "demo") is not None
        assert await bus.last(LOG, JOB_LOG) is not None
        assert [entry.value for entry in entries] == [b"leader", None]
        assert (
            await bus.put(LEADERS, "demo", b"again", expected=0) == 1
        )  # revisions restart with their bucket (P15)

    run(program())


@pytest.mark.parametrize("sync", ["default", "always"])
def test_a_power_cut_takes_the_unsynced_tail_and_only_that(sync: str) -> None:
    async def program(seed: int) -> tuple[int, list[int]]:
        broker = MemoryBroker(seed, sync=sync)  # type: ignore[arg-type]
        bus = broker.connect("service")
        got: list[Stored] = []
        await bus.follow(LOG, [JOB_LOG], got.append)
        for _ in range(50):
            await bus.append(LOG, JOB_LOG, b"before")
        await asyncio.sleep(121.0)
        await bus.append(LOG, JOB_LOG, b"synced")
        for _ in range(50):
            await bus.append(LOG, JOB_LOG, b"lost?")
        broker.power_cut()
        await asyncio.sleep(1.0)
        tail = await bus.last(LOG, JOB_LOG)
        assert tail is not None
        await bus.append(LOG, JOB_LOG, b"after", expected_last=tail.sequence)
        await asyncio.sleep(1.0)
        assert got[-1].body == b"after"  # the follower steps back with the log
        return tail.sequence, [stored.sequence for stored in got]

    tails = {run(program(seed))[0] for seed in range(10)}
    assert tails <= set(range(51, 102))
    assert (tails == {101}) == (sync == "always")


def test_a_broken_handler_ends_the_simulation() -> None:
    async def program() -> None:
        broker = MemoryBroker(0)
        bus = broker.connect("service")
        await bus.subscribe("rover.test", lambda message: [][0])
        await bus.publish("rover.test", b"")
        await asyncio.sleep(1.0)

    with pytest.raises(IndexError):
        run(program())


@pytest.mark.parametrize("kind", ["follow", "watch"])
def test_what_was_begun_without_an_answer_delivers_nothing(kind: str) -> None:
    """Its caller repeats it, and would stop the second only."""

    async def program() -> list[object]:
        broker = MemoryBroker(1, CALM)
        reader, writer = broker.connect("reader"), broker.connect("writer")
        told: list[object] = []

        async def begin() -> None:
            if kind == "follow":
                await reader.follow(LOG, [JOB_LOG], told.append, start="first")
            else:
                await reader.watch(LEADERS, "*", told.append)

        answered = reader._wait

        async def lost(*asked: object) -> object:
            await answered(*asked)  # type: ignore[arg-type]
            raise BusTimeout("no answer: whether it happened is unknown, repeat it")

        reader._wait = lost  # type: ignore[method-assign, assignment]
        with pytest.raises(BusTimeout):
            await begin()
        reader._wait = answered  # type: ignore[method-assign]
        await begin()
        await writer.append(LOG, JOB_LOG, b"1")
        await writer.put(LEADERS, "demo", b"x")
        await asyncio.sleep(1.0)
        return told

    assert len(run(program())) == 1
