"""A broker that goes and comes: what a service sees is the same in memory and over NATS."""

import asyncio

import pytest
from bus_worlds import Suite, World, answer_with
from live_bus import JOB_LOG, come_true, eventually

from rover_bus.events.bus import Message, Stored
from rover_bus.events.errors import (
    NotConnected,
)
from rover_bus.events.streams import FACTS, LEADERS, LOG, ROUTING

suite = Suite()


@suite.body
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


@suite.body
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


@suite.body
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


@suite.body
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


test_in_memory, test_over_nats = suite.tests()
