"""The same servers and the same workers on a simulated network that delays, drops and doubles messages.

For deterministic simulations of a whole job: worker-to-server traffic is in them (protocol P2 to P5). Real cores, real frames, real
exchange; only sockets, time and chance are replaced, and both of the latter are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Unpack

import numpy.typing as npt

from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import (
    Effect,
    Exchange,
    LinkLost,
    OperationDone,
    Receive,
    Refresh,
    Reset,
    Send,
    Steps,
    advance,
)
from rover_bus.ps.frame import Buffer, unpack
from rover_bus.ps.spec import Table
from rover_bus.ps.store import Acknowledged, BatchKey, Exported, Pulled, PushOptions

Call = Callable[[ServerAddress, bytes], Awaitable[bytes]]
AsyncRefresher = Callable[[RoutingTable, float], Awaitable[RoutingTable]]


class Chance(Protocol):
    """What is needed of random.Random."""

    def random(self) -> float: ...


class SimulatedServers:
    """Server cores behind a lossy network. `drop`, `double`: chances a message; `delay_s`: the longest one-way delay.

    A doubled request is delivered a second time, whole, behind any number of later ones: a zombie's push.
    """

    def __init__(
        self,
        chance: Chance,
        sleep: Callable[[float], Awaitable[None]],
        *,
        drop: float = 0.0,
        double: float = 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.cores: dict[
            int, ServerCore
        ] = {}  # by index; take one out to kill it, put another in to restart it
        self._chance, self._sleep = chance, sleep
        self._drop, self._double, self._delay_s = drop, double, delay_s
        self._late: list[tuple[ServerAddress, bytes]] = []

    async def call(self, server: ServerAddress, request: bytes) -> bytes:
        """Carry a request there and its reply back. Raises LinkLost; whether the request arrived is then unknown."""
        await self._travel(server)
        if self._late and self._chance.random() < 0.5:
            self._deliver(*self._late.pop(int(self._chance.random() * len(self._late))))
        if self._chance.random() < self._double:
            self._late.append((server, request))
        reply = self._deliver(server, request)
        await self._travel(server)
        return reply

    async def ask(self, server: ServerAddress, frame: list[Buffer]) -> tuple[Buffer, Buffer]:
        """Carry a frame from one server to another, and its reply back. Raises LinkLost."""
        return unpack(bytearray(await self.call(server, b"".join(frame))))

    async def _travel(self, server: ServerAddress) -> None:
        await self._sleep(self._chance.random() * self._delay_s)
        if self._chance.random() < self._drop:
            raise LinkLost(f"a message to or from server {server.index} was lost")

    def _deliver(self, server: ServerAddress, request: bytes) -> bytes:
        core = self.cores.get(server.index)
        if core is None:
            raise LinkLost(f"server {server.index} is dead")
        header, body = unpack(bytearray(request))
        return b"".join(core.answer(header, body))


class SimulatedParameters:
    """`store.Parameters` with `async` methods over any `call`. Frames that were sent are carried when their reply is awaited."""

    def __init__(
        self,
        routing: RoutingTable,
        call: Call,
        refresh: AsyncRefresher,
        *,
        in_flight: int = 1,
        patience_s: float = 30.0,
    ) -> None:
        self._exchange = Exchange(routing, in_flight=in_flight, patience_s=patience_s)
        self._call, self._refresh = call, refresh
        self._sent: list[tuple[ServerAddress, deque[bytes]]] = []

    async def declare(self, *tables: Table) -> None:
        await self._run(self._exchange.declare(*tables))

    async def pull(self, ids: Mapping[str, npt.NDArray[Any]]) -> Pulled:
        item = await self._run(self._exchange.ask(ids))
        pulled: Pulled = await self._run(self._exchange.collect(item))
        return pulled

    async def push(
        self, batch: BatchKey, gradients: Mapping[str, npt.NDArray[Any]], **options: Unpack[PushOptions]
    ) -> None:
        await self._run(self._exchange.push(batch, gradients, **options))

    def acknowledged(self) -> list[Acknowledged]:
        return self._exchange.acknowledged()

    async def flush(self) -> None:
        await self._run(self._exchange.flush())

    async def read(self, table: str, ids: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = await self._run(self._exchange.read(table, ids))
        return values

    async def export(self) -> dict[str, Exported]:
        tables: dict[str, Exported] = await self._run(self._exchange.export())
        return tables

    async def _run(self, steps: Steps) -> Any:
        result: Any = None
        lost: LinkLost | None = None
        while not isinstance(effect := advance(steps, result, lost), OperationDone):
            try:
                result, lost = await self._perform(effect), None
            except LinkLost as error:
                lost = error
        return effect.value

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(position, frame):
                self._sent[position][1].append(b"".join(frame))
            case Receive(position):
                server, frames = self._sent[position]
                return unpack(bytearray(await self._call(server, frames.popleft())))
            case Reset(routing):
                self._sent = [(server, deque()) for server in routing.servers]
            case Refresh(after, wait_s):
                return await self._refresh(after, wait_s)
        return None
