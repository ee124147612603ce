"""A Bus on a real broker, a proxy between them that breaks things, waits that end, and a look whether all works again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from patience import PATIENCE_S

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message, Stored
from rover_bus.events.errors import BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS

JOB_LOG = "rover.job.demo.log"
LEASE = "rover.rpc.demo.1.lease"


async def connect(broker: EmbeddedBroker, **options: Any) -> NatsBus:
    bus = await NatsBus.connect(**{"url": broker.url, "secret": broker.secret, **options})
    try:
        await bus.ensure(STREAMS, BUCKETS)
    except BusError:
        await bus.close()
        raise
    return bus


async def come_true(claim: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until a claim holds; time is only the bound that keeps a broken test from hanging."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not claim():
        held = inspect.getclosurevars(claim).nonlocals
        assert loop.time() < deadline, f"never came true: {inspect.getsource(claim).strip()} with {held}"
        await asyncio.sleep(0.01)


async def eventually(call: Callable[[], Awaitable[Any]], within_s: float = PATIENCE_S) -> Any:
    """Repeat a call through a broker's absence, as every service does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        try:
            return await call()
        except BusError:
            assert loop.time() < deadline
            await asyncio.sleep(0.02)


class Proxy:
    """Stands between a client and the broker: can cut, delay, swallow, and speak in the broker's name."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.delay_s = 0.0
        self.dropped = b""  # the first chunk from the broker that holds this is swallowed
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pipe(source, sink, sink is writer)))

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, inward: bool) -> None:
        try:
            while chunk := await source.read(65536):
                if inward and self.dropped and self.dropped in chunk:
                    self.dropped = b""
                else:
                    await asyncio.sleep(self.delay_s)
                    sink.write(chunk)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def say(self, line: bytes) -> None:
        self._writers[-2].write(line + b"\r\n")

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


@asynccontextmanager
async def through_proxy(broker: EmbeddedBroker) -> Any:
    proxy = Proxy(broker.port)
    await proxy.start()
    bus = await connect(broker, url=f"nats://127.0.0.1:{proxy.port}")
    try:
        yield proxy, bus
    finally:
        await bus.close()
        await proxy.stop()


async def serves_again(bus: NatsBus, heard: list[Message], facts: list[Stored]) -> None:
    """The connection is whole: subscriptions, followers and appends work."""
    await come_true(lambda: bus.connected)
    before = len(heard)
    await eventually(lambda: bus.append(FACTS, "rover.job.demo.plan.applied", b"again"))
    await come_true(lambda: len(heard) > before)
    await come_true(lambda: bool(facts) and facts[-1].body == b"again")


async def listen(bus: NatsBus) -> tuple[list[Message], list[Stored], list[str]]:
    heard: list[Message] = []
    facts: list[Stored] = []
    states: list[str] = []
    await bus.subscribe("rover.job.*.*.*", heard.append)
    await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append)
    bus.on_connection(states.append)
    return heard, facts, states
