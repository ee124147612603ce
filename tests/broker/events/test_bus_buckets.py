"""Buckets: what a service sees is the same in memory and over NATS."""

import asyncio

import pytest
from bus_worlds import Suite, World
from live_bus import come_true

from rover_bus.events.bus import Entry
from rover_bus.events.errors import (
    InputError,
    WrongSequence,
)
from rover_bus.events.streams import LEADERS, ROUTING

suite = Suite()


@suite.body
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


@suite.body
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


@suite.body
async def a_time_to_live_below_a_second_is_refused(world: World) -> None:
    bus = await world.connect()
    with pytest.raises(InputError, match="1 s"):
        await bus.put(LEADERS, "demo", b"x", ttl_s=0.2)


@suite.body
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


test_in_memory, test_over_nats = suite.tests()
