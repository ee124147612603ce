"""Streams: what a service sees is the same in memory and over NATS."""

import asyncio
from typing import Any

import pytest
from bus_worlds import Suite, World
from live_bus import JOB_LOG, come_true, eventually

from rover_bus.events.bus import MESSAGE_ID, Message, Stored
from rover_bus.events.errors import (
    BusError,
    InputError,
    StreamFull,
    WrongSequence,
)
from rover_bus.events.streams import FACTS, LOG, PROFILES

suite = Suite()


@suite.body
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


@suite.body
async def a_repeat_of_ones_own_append_is_found_by_its_id_or_refused_by_its_chain(world: World) -> None:
    bus = await world.connect()
    first = await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "batch-1", "ce-id": "one"})
    assert await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "batch-1"}) == first
    with pytest.raises(WrongSequence):  # P16: the retry of a chained append, inside the dedupe window
        await bus.append(LOG, JOB_LOG, b"1", headers={MESSAGE_ID: "batch-1"}, expected_last=0)
    tail = await bus.last(LOG, JOB_LOG)
    assert tail.sequence == first
    assert (tail.headers["ce-id"], tail.headers[MESSAGE_ID]) == ("one", "batch-1")


@suite.body
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


@suite.body
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


@suite.body
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


@suite.body
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


@suite.body
async def published_profiles_are_kept_by_their_stream(world: World) -> None:
    bus = await world.connect()
    await bus.publish("rover.profile.demo.worker.0", b"sample")

    async def kept() -> None:
        if await bus.last(PROFILES, "rover.profile.demo.worker.0") is None:
            raise BusError("not yet")

    await eventually(kept)


@suite.body
async def appended_facts_reach_core_subscribers_too(world: World) -> None:
    bus = await world.connect()
    got: list[Message] = []
    await bus.subscribe("rover.job.*.*.*", got.append)
    await bus.append(FACTS, "rover.job.demo.plan.applied", b"fact")
    await come_true(lambda: [message.body for message in got] == [b"fact"])


@suite.body
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


@suite.body
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


@suite.body
async def a_stream_that_is_not_there_is_told_with_what_to_do(world: World) -> None:
    bus = await world.connect()
    with pytest.raises(BusError, match="ensure"):
        await bus.last("ABSENT", "a")
    with pytest.raises(BusError, match="ensure"):
        await bus.follow("ABSENT", ["a"], lambda stored: None)
    with pytest.raises(BusError):
        await bus.append(LOG, "elsewhere.one", b"")


@suite.body
async def messages_are_counted_by_subject_and_from_a_place_on(world: World) -> None:
    bus = await world.connect()
    sequences = [await bus.append(FACTS, f"rover.job.demo.plan.v{n % 3}", b"x") for n in range(30)]
    await bus.append(FACTS, "rover.host.h.joined", b"x")
    assert await bus.count(FACTS, "rover.job.demo.plan.v0") == 10
    assert await bus.count(FACTS, "rover.job.demo.*.*", first=sequences[20]) == 10
    assert await bus.count(FACTS, "rover.job.demo.plan.v1", first=sequences[-1] + 1) == 0
    assert await bus.count(FACTS, "rover.job.absent.*.*") == 0
    assert await bus.subjects(FACTS, "rover.job.demo.*.*") == {
        f"rover.job.demo.plan.v{n}": 10 for n in range(3)
    }
    assert await bus.subjects(FACTS, "rover.job.absent.*.*") == {}
    await bus.purge(FACTS, "rover.job.demo.plan.v0", before=sequences[27])
    assert await bus.subjects(FACTS, "rover.job.demo.plan.v0") == {"rover.job.demo.plan.v0": 1}


@suite.body
async def what_is_larger_than_the_broker_takes_is_refused_at_once_and_the_connection_stays(
    world: World,
) -> None:
    bus = await world.connect()
    states: list[str] = []
    bus.on_connection(states.append)
    body = bytes(
        bus.max_payload_bytes - 100
    )  # with its headers it is too large: the broker would end the connection
    headers = {"ce-id": "x" * 200}
    for _ in range(2):
        with pytest.raises(InputError):
            await bus.append(FACTS, "rover.job.demo.plan.v1", body, headers=headers)
        with pytest.raises(InputError):
            await bus.publish("rover.profile.demo.worker.0", body, headers)
    assert await bus.append(FACTS, "rover.job.demo.plan.v1", body[:-1000], headers=headers) > 0
    assert states == []


test_in_memory, test_over_nats = suite.tests()
