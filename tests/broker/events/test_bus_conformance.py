"""One suite for both adapters of the Bus: what a service sees is the same in memory and over NATS."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from live_bus import JOB_LOG, come_true, eventually

from rover_bus.events import virtual_time
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Entry, Message, Stored
from rover_bus.events.errors import (
    BusError,
    BusTimeout,
    InputError,
    NoResponders,
    NotConnected,
    StreamFull,
    WrongSequence,
)
from rover_bus.events.memory_bus import MemoryBroker
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, LOG, PROFILES, ROUTING, STREAMS, StreamSpec

SMALL = StreamSpec(name="SMALL", subjects=["small.>"], discard="new", max_bytes=20_000)
DECLARED = ([*STREAMS, SMALL], list(BUCKETS))


class World(Protocol):
    """A broker with its clients."""

    async def connect(self, name: str = "tester") -> Any: ...
    def restart(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.broker = MemoryBroker(seed=1, streams=DECLARED[0], buckets=DECLARED[1])
        self.buses: list[Any] = []

    async def connect(self, name: str = "tester") -> Any:
        self.buses.append(self.broker.connect(name))
        return self.buses[-1]

    def restart(self) -> None:
        self.broker.restart(down_s=0.05)

    async def close(self) -> None:
        for bus in self.buses:
            await bus.close()


class NatsWorld:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.buses: list[Any] = []

    async def connect(self, name: str = "tester") -> Any:
        from rover_bus.events.nats_bus import NatsBus

        bus = await NatsBus.connect(self.broker.url, secret=self.broker.secret, name=name)
        self.buses.append(bus)
        await bus.ensure(*DECLARED)
        return bus

    def restart(self) -> None:
        self.broker.restart()

    async def close(self) -> None:
        for bus in self.buses:
            await bus.close()


Body = Callable[[Any], Awaitable[None]]
BODIES: list[Body] = []


def conforms(body: Body) -> Body:
    BODIES.append(body)
    return body


@pytest.fixture
def nats_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        yield broker


def answer_with(prefix: bytes) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        assert message.respond is not None
        message.respond(prefix + message.body)

    return handler


# Core messages


@conforms
async def a_message_reaches_every_subscriber_and_one_member_of_a_queue(world: World) -> None:
    bus, other = await world.connect(), await world.connect("other")
    plain: list[Message] = []
    queued: list[Message] = []
    await other.subscribe("rover.test.*", plain.append)
    await bus.subscribe("rover.test.>", plain.append)
    for _ in range(3):
        await other.subscribe("rover.test.one", queued.append, queue="group")
    for number in range(20):
        await bus.publish("rover.test.one", b"%d" % number, {"key": "value"})
    await come_true(lambda: len(plain) == 40 and len(queued) == 20)
    assert [message.body for message in plain if message.headers["key"] == "value"].count(b"7") == 2
    assert {message.subject for message in queued} == {"rover.test.one"}


@conforms
async def messages_of_one_sender_arrive_in_order(world: World) -> None:
    bus, other = await world.connect(), await world.connect("other")
    got: list[int] = []
    await other.subscribe("rover.test.order", lambda message: got.append(int(message.body)))
    for number in range(500):
        await bus.publish("rover.test.order", b"%d" % number)
    await come_true(lambda: len(got) == 500)
    assert got == list(range(500))


@conforms
async def publishing_does_not_change_the_senders_headers(world: World) -> None:
    bus = await world.connect()
    headers = {"ce-id": "1"}
    await bus.publish("rover.profile.demo.worker.0", b"x", headers)
    await bus.append(
        FACTS, "rover.job.demo.plan.applied", b"x", headers=headers, message_id="m", expected_last=0
    )
    assert headers == {"ce-id": "1"}


@conforms
async def a_stopped_subscription_gets_nothing_more_and_may_be_stopped_again(world: World) -> None:
    bus = await world.connect()
    got: list[Message] = []
    subscription = await bus.subscribe("rover.test.stop", got.append)
    await bus.publish("rover.test.stop", b"1")
    await come_true(lambda: len(got) == 1)
    await subscription.stop()
    await subscription.stop()
    await bus.publish("rover.test.stop", b"2")
    await asyncio.sleep(0.1)
    assert len(got) == 1


@conforms
async def a_request_is_answered_by_one_server_of_the_service(world: World) -> None:
    bus = await world.connect()
    for _ in range(2):
        server = await world.connect("server")
        await server.serve("master", {"rover.rpc.demo.1.lease": answer_with(b"yes ")})
    answers = [
        (await bus.request("rover.rpc.demo.1.lease", b"%d" % number, timeout_s=5.0)).body
        for number in range(10)
    ]
    assert answers == [b"yes %d" % number for number in range(10)]


@conforms
async def an_answer_may_come_long_after_the_handler_has_returned(world: World) -> None:
    bus, server = await world.connect(), await world.connect("server")
    held: list[Message] = []
    await server.serve("master", {"rover.rpc.demo.1.lease": held.append})
    asked = [
        asyncio.ensure_future(bus.request("rover.rpc.demo.1.lease", b"%d" % number, timeout_s=10.0))
        for number in range(50)
    ]
    await come_true(lambda: len(held) == 50)
    for message in reversed(held):
        assert message.respond is not None
        message.respond(message.body)
    assert [answer.body for answer in await asyncio.gather(*asked)] == [
        b"%d" % number for number in range(50)
    ]


@conforms
async def nobody_there_is_told_at_once_and_silence_after_the_timeout(world: World) -> None:
    bus = await world.connect()
    with pytest.raises(NoResponders, match=r"rover\.rpc\.demo\.1\.lease"):
        await bus.request("rover.rpc.demo.1.lease", b"", timeout_s=600.0)
    service = await bus.serve("master", {"rover.rpc.demo.1.lease": lambda message: None})
    with pytest.raises(BusTimeout, match=r"rover\.rpc\.demo\.1\.lease"):
        await bus.request("rover.rpc.demo.1.lease", b"", timeout_s=0.1)
    await service.stop()
    with pytest.raises(NoResponders):
        await bus.request("rover.rpc.demo.1.lease", b"", timeout_s=600.0)


# Streams


@conforms
async def appends_are_chained_on_the_subject(world: World) -> None:
    bus = await world.connect()
    first = await bus.append(LOG, JOB_LOG, b"1", expected_last=0)
    await bus.append(LOG, "rover.job.other.log", b"x", expected_last=0)
    second = await bus.append(LOG, JOB_LOG, b"2", expected_last=first)
    assert second > first
    with pytest.raises(WrongSequence):
        await bus.append(LOG, JOB_LOG, b"3", expected_last=first)
    tail = await bus.last(LOG, JOB_LOG)
    assert (tail.sequence, tail.body, tail.subject) == (second, b"2", JOB_LOG)
    assert tail.time_ms > 0
    assert await bus.last(LOG, "rover.job.absent.log") is None


@conforms
async def a_repeat_of_ones_own_append_is_found_by_its_id_or_refused_by_its_chain(world: World) -> None:
    bus = await world.connect()
    first = await bus.append(LOG, JOB_LOG, b"1", message_id="batch-1", headers={"ce-id": "one"})
    assert await bus.append(LOG, JOB_LOG, b"1", message_id="batch-1") == first
    with pytest.raises(WrongSequence):  # P16: the retry of a chained append, inside the dedupe window
        await bus.append(LOG, JOB_LOG, b"1", message_id="batch-1", expected_last=0)
    tail = await bus.last(LOG, JOB_LOG)
    assert tail.sequence == first
    assert (tail.headers["ce-id"], tail.headers["Nats-Msg-Id"]) == ("one", "batch-1")


@conforms
async def reading_gives_what_is_stored_now_from_a_place_on(world: World) -> None:
    bus = await world.connect()
    sequences = [
        await bus.append(FACTS, f"rover.job.demo.plan.v{n}", b"%d" % n, headers={"n": str(n)})
        for n in range(700)
    ]
    await bus.append(FACTS, "rover.host.h.joined", b"other")
    got = [stored async for stored in bus.read(FACTS, "rover.job.demo.*.*", first=sequences[3])]
    assert [stored.sequence for stored in got] == sequences[3:]
    assert (got[0].body, got[0].headers["n"], got[0].subject) == (b"3", "3", "rover.job.demo.plan.v3")
    assert [stored async for stored in bus.read(FACTS, "rover.job.absent.*.*")] == []


@conforms
async def a_reader_may_stop_half_way(world: World) -> None:
    bus = await world.connect()
    for number in range(300):
        await bus.append(LOG, JOB_LOG, b"%d" % number)
    reading = bus.read(LOG, JOB_LOG)
    async for stored in reading:
        if stored.body == b"5":
            break
    await reading.aclose()
    assert (await bus.last(LOG, JOB_LOG)).body == b"299"


@conforms
async def followers_get_stored_and_coming_messages_in_order(world: World) -> None:
    bus, writer = await world.connect(), await world.connect("writer")
    before = [await writer.append(LOG, JOB_LOG, b"%d" % n) for n in range(5)]
    got: dict[Any, list[Stored]] = {"first": [], "new": [], "last_per_subject": [], before[3]: []}
    for start, kept in got.items():
        await bus.follow(LOG, [JOB_LOG, "rover.brain.log"], kept.append, start=start)
    after = [await writer.append(LOG, JOB_LOG, b"%d" % n) for n in range(5, 10)]
    after.append(await writer.append(LOG, "rover.brain.log", b"10"))
    await come_true(lambda: all(kept and kept[-1].body == b"10" for kept in got.values()))
    assert [stored.sequence for stored in got["first"]] == before + after
    assert [stored.sequence for stored in got["new"]] == after
    assert [stored.sequence for stored in got["last_per_subject"]] == before[-1:] + after
    assert [stored.sequence for stored in got[before[3]]] == before[3:] + after


@conforms
async def a_stopped_follower_gets_nothing_more(world: World) -> None:
    bus = await world.connect()
    got: list[Stored] = []
    follower = await bus.follow(LOG, [JOB_LOG], got.append)
    await bus.append(LOG, JOB_LOG, b"1")
    await come_true(lambda: len(got) == 1)
    await follower.stop()
    await follower.stop()
    await bus.append(LOG, JOB_LOG, b"2")
    await asyncio.sleep(0.1)
    assert len(got) == 1


@conforms
async def published_profiles_are_kept_by_their_stream(world: World) -> None:
    bus = await world.connect()
    await bus.publish("rover.profile.demo.worker.0", b"sample")

    async def kept() -> None:
        if await bus.last(PROFILES, "rover.profile.demo.worker.0") is None:
            raise BusError("not yet")

    await eventually(kept)


@conforms
async def appended_facts_reach_core_subscribers_too(world: World) -> None:
    bus = await world.connect()
    got: list[Message] = []
    await bus.subscribe("rover.job.*.*.*", got.append)
    await bus.append(FACTS, "rover.job.demo.plan.applied", b"fact")
    await come_true(lambda: [message.body for message in got] == [b"fact"])


@conforms
async def purging_removes_a_subjects_head_and_keeps_its_tail(world: World) -> None:
    bus = await world.connect()
    sequences = [await bus.append(LOG, JOB_LOG, b"%d" % n) for n in range(5)]
    other = await bus.append(LOG, "rover.job.other.log", b"x")
    await bus.purge(LOG, JOB_LOG, before=sequences[3])
    assert [stored.sequence async for stored in bus.read(LOG, JOB_LOG)] == sequences[3:]
    assert await bus.append(LOG, JOB_LOG, b"5", expected_last=sequences[4]) == other + 1
    await bus.purge(LOG, JOB_LOG)
    assert await bus.last(LOG, JOB_LOG) is None
    assert (await bus.last(LOG, "rover.job.other.log")).sequence == other


@conforms
async def a_full_stream_refuses_stores_nothing_and_takes_again_after_a_purge(world: World) -> None:
    bus = await world.connect()
    stored = 0

    async def fill() -> None:
        nonlocal stored
        while stored < 100:
            await bus.append("SMALL", "small.one", bytes(1000))
            stored += 1

    with pytest.raises(StreamFull):
        await fill()
    assert 10 < stored < 30
    assert len([kept async for kept in bus.read("SMALL", "small.one")]) == stored
    await bus.purge("SMALL", "small.one")
    assert await bus.append("SMALL", "small.one", bytes(1000)) == stored + 1


@conforms
async def a_stream_that_is_not_there_is_told_with_what_to_do(world: World) -> None:
    bus = await world.connect()
    with pytest.raises(BusError, match="ensure"):
        await bus.last("ABSENT", "a")
    with pytest.raises(BusError, match="ensure"):
        await bus.follow("ABSENT", ["a"], lambda stored: None)
    with pytest.raises(BusError):
        await bus.append(LOG, "elsewhere.one", b"")


# Buckets


@conforms
async def a_key_is_written_only_over_what_was_seen(world: World) -> None:
    bus = await world.connect()
    assert await bus.get(ROUTING, "demo") is None
    first = await bus.put(ROUTING, "demo", b"1", expected=0)
    with pytest.raises(WrongSequence):
        await bus.put(ROUTING, "demo", b"2", expected=0)
    second = await bus.put(ROUTING, "demo", b"2", expected=first)
    assert second > first
    with pytest.raises(WrongSequence):
        await bus.delete(ROUTING, "demo", expected=first)
    assert await bus.get(ROUTING, "demo") == Entry("demo", b"2", second)
    await bus.delete(ROUTING, "demo", expected=second)
    assert await bus.get(ROUTING, "demo") is None
    with pytest.raises(WrongSequence):
        await bus.put(ROUTING, "demo", b"3", expected=second)
    third = await bus.put(ROUTING, "demo", b"3", expected=0)
    assert third > second
    assert await bus.put(ROUTING, "demo", b"4") > third


@conforms
async def a_key_lives_while_it_is_renewed_and_its_end_is_watched(world: World) -> None:
    bus, watcher = await world.connect(), await world.connect("watcher")
    seen: list[Entry] = []
    await watcher.watch(LEADERS, "*", seen.append)
    revision = await bus.put(LEADERS, "demo", b"term 1", expected=0, ttl_s=1.0)
    for _ in range(5):
        await asyncio.sleep(0.4)
        revision = await bus.put(LEADERS, "demo", b"term 1", expected=revision, ttl_s=1.0)
    await come_true(lambda: bool(seen) and seen[-1].value is None)
    assert [entry.value for entry in seen] == [b"term 1"] * 6 + [None]
    assert await bus.get(LEADERS, "demo") is None
    assert await bus.put(LEADERS, "demo", b"term 2", expected=0, ttl_s=1.0) > revision


@conforms
async def a_time_to_live_below_a_second_is_refused(world: World) -> None:
    bus = await world.connect()
    with pytest.raises(InputError, match="1 s"):
        await bus.put(LEADERS, "demo", b"x", ttl_s=0.2)


@conforms
async def a_watch_shows_what_is_there_and_then_every_change(world: World) -> None:
    bus = await world.connect()
    await bus.put(ROUTING, "old", b"0")
    await bus.delete(ROUTING, "old")
    await bus.put(ROUTING, "demo", b"1")
    seen: list[tuple[str, bytes | None]] = []
    watch = await bus.watch(ROUTING, "*", lambda entry: seen.append((entry.key, entry.value)))
    assert seen == [("demo", b"1")]
    # One at a time: a watch that had to attach again in between would show only the newest of each key, as it may.
    await bus.put(ROUTING, "demo", b"2")
    await come_true(lambda: seen[1:] == [("demo", b"2")])
    await bus.put(ROUTING, "more", b"3")
    await come_true(lambda: seen[2:] == [("more", b"3")])
    await bus.delete(ROUTING, "demo")
    await come_true(lambda: seen[3:] == [("demo", None)])
    await watch.stop()
    await watch.stop()
    await bus.put(ROUTING, "demo", b"4")
    await asyncio.sleep(0.1)
    assert len(seen) == 4


# The broker goes and comes


@conforms
async def everything_works_again_after_the_broker_was_killed(world: World) -> None:
    bus, server = await world.connect(), await world.connect("server")
    states: list[str] = []
    bus.on_connection(states.append)
    facts: list[Stored] = []
    heard: list[Message] = []
    leaders: list[tuple[str, bytes | None]] = []
    await bus.follow(FACTS, ["rover.job.demo.*.*"], facts.append)
    await bus.subscribe("rover.test.heard", heard.append)
    await server.serve("master", {"rover.rpc.demo.1.lease": answer_with(b"")})
    await bus.put(LEADERS, "demo", b"term 1", ttl_s=60.0)
    await bus.put(ROUTING, "demo", b"table")
    await bus.watch(LEADERS, "*", lambda entry: leaders.append((entry.key, entry.value)))
    first = await bus.append(LOG, JOB_LOG, b"1")
    sent = [await bus.append(FACTS, "rover.job.demo.plan.applied", b"before")]
    await come_true(lambda: len(facts) == 1)

    world.restart()
    await come_true(lambda: "disconnected" in states and states[-1] == "connected")

    assert await eventually(lambda: bus.append(LOG, JOB_LOG, b"2", expected_last=first)) == first + 1
    for _ in range(3):
        sent.append(await eventually(lambda: bus.append(FACTS, "rover.job.demo.plan.applied", b"after")))
    await come_true(lambda: len(facts) == 4)
    assert [stored.sequence for stored in facts] == sent
    assert (await eventually(lambda: bus.request("rover.rpc.demo.1.lease", b"x", timeout_s=1.0))).body == b"x"
    assert (await bus.get(ROUTING, "demo")).value == b"table"
    await come_true(lambda: leaders[-1] == ("demo", None))  # memory buckets start empty
    assert await bus.get(LEADERS, "demo") is None
    await bus.put(LEADERS, "demo", b"term 2", expected=0, ttl_s=1.0)
    await come_true(lambda: leaders[-2:] == [("demo", b"term 2"), ("demo", None)])
    await server.publish("rover.test.heard", b"x")
    await come_true(lambda: len(heard) == 1)
    assert states == ["disconnected", "connected"]


@conforms
async def requests_in_flight_fail_at_once_when_the_broker_goes(world: World) -> None:
    bus = await world.connect()
    await bus.serve("master", {"rover.rpc.demo.1.lease": lambda message: None})
    asked = [
        asyncio.ensure_future(bus.request("rover.rpc.demo.1.lease", b"", timeout_s=600.0)) for _ in range(5)
    ]
    await asyncio.sleep(0.1)
    world.restart()
    for outcome in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(outcome, NotConnected)
    await come_true(lambda: bool(bus.connected))


@conforms
async def a_follower_misses_nothing_over_three_restarts_under_load(world: World) -> None:
    bus, writer = await world.connect(), await world.connect("writer")
    got: list[int] = []
    await bus.follow(LOG, [JOB_LOG], lambda stored: got.append(stored.sequence), start="first")
    acked: list[int] = []
    for _ in range(3):
        for _ in range(40):
            acked.append(await eventually(lambda: writer.append(LOG, JOB_LOG, b"x")))
        world.restart()
    acked.append(await eventually(lambda: writer.append(LOG, JOB_LOG, b"x")))
    await come_true(lambda: bool(got) and got[-1] == acked[-1])
    assert got == sorted(set(got))
    assert set(acked) <= set(got)


@conforms
async def a_closed_bus_refuses_and_may_be_closed_again(world: World) -> None:
    bus = await world.connect()
    states: list[str] = []
    bus.on_connection(states.append)
    await bus.subscribe("rover.test.closed", lambda message: None)
    await bus.close()
    await bus.close()
    assert not bus.connected
    assert states == ["closed"]
    with pytest.raises(NotConnected):
        await bus.publish("rover.test.closed", b"")


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_in_memory(body: Body) -> None:
    async def play() -> None:
        world = MemoryWorld()
        try:
            await body(world)
        finally:
            await world.close()

    virtual_time.run(play())


@pytest.mark.broker
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_over_nats(body: Body, nats_broker: EmbeddedBroker) -> None:
    async def play() -> None:
        world = NatsWorld(nats_broker)
        try:
            await asyncio.wait_for(body(world), 60.0)
        finally:
            await world.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    asyncio.run(play())
