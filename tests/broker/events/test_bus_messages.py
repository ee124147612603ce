"""Messages and requests: what a service sees is the same in memory and over NATS."""

import asyncio

import pytest
from bus_worlds import Suite, World, answer_with
from live_bus import come_true

from rover_bus.events.bus import MESSAGE_ID, Message
from rover_bus.events.errors import (
    BusTimeout,
    NoResponders,
)
from rover_bus.events.streams import FACTS

suite = Suite()


@suite.body
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


@suite.body
async def messages_of_one_sender_arrive_in_order(world: World) -> None:
    bus, other = await world.connect(), await world.connect("other")
    got: list[int] = []
    await other.subscribe("rover.test.order", lambda message: got.append(int(message.body)))
    for number in range(500):
        await bus.publish("rover.test.order", b"%d" % number)
    await come_true(lambda: len(got) == 500)
    assert got == list(range(500))


@suite.body
async def publishing_does_not_change_the_senders_headers(world: World) -> None:
    bus = await world.connect()
    headers = {"ce-id": "1", MESSAGE_ID: "m"}
    await bus.publish("rover.profile.demo.worker.0", b"x", headers)
    await bus.append(FACTS, "rover.job.demo.plan.applied", b"x", headers=headers, expected_last=0)
    assert headers == {"ce-id": "1", MESSAGE_ID: "m"}


@suite.body
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


@suite.body
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


@suite.body
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


@suite.body
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


test_in_memory, test_over_nats = suite.tests()
