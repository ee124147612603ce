"""Both adapters of the Bus as one suite sees them: a world with a broker in memory, or over a real nats-server.

A file of bodies decorates each with `suite.body`, and ends with `test_in_memory, test_over_nats = suite.tests()`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from rover_bus.events import virtual_time
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message
from rover_bus.events.memory_bus import MemoryBroker
from rover_bus.events.streams import BUCKETS, STREAMS, StreamSpec

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


class Suite:
    """Bodies that both adapters must conform to."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []

    def body(self, body: Body) -> Body:
        self.bodies.append(body)
        return body

    def tests(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the two tests of a file, each for every body."""
        named = pytest.mark.parametrize("body", self.bodies, ids=lambda body: body.__name__)

        @named
        def test_in_memory(body: Body) -> None:
            play_in_memory(body)

        @pytest.mark.broker
        @named
        def test_over_nats(body: Body, broker: EmbeddedBroker) -> None:
            play_over_nats(body, broker)

        return test_in_memory, test_over_nats


def play_in_memory(body: Body) -> None:
    async def play() -> None:
        world = MemoryWorld()
        try:
            await body(world)
        finally:
            await world.close()

    virtual_time.run(play())


def play_over_nats(body: Body, broker: EmbeddedBroker) -> None:
    async def play() -> None:
        world = NatsWorld(broker)
        try:
            await asyncio.wait_for(body(world), 60.0)
        finally:
            await world.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    asyncio.run(play())


def answer_with(prefix: bytes) -> Callable[[Message], None]:
    def handler(message: Message) -> None:
        assert message.respond is not None
        message.respond(prefix + message.body)

    return handler
