"""Moves of slots to and from this server: one task for each that comes here, driven by the master's orders (design/0013).

Fed by `service` with what heartbeats bring; feeds the core through `run`, sources through `ask`. A shell: all decisions are in
`transfer` and `moving`. It keeps the record of how long slots were away at their hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rover_bus.events.logs import get_logger
from rover_bus.events.requests import MoveOrder, MoveStatus, ServerAddress
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import LinkLost
from rover_bus.ps.frame import Buffer
from rover_bus.ps.memory import populate
from rover_bus.ps.transfer import Ask, Effect, Rest, RunOnTables, Transfer, TransferAnswer, TransferPace

log = get_logger("rover.ps.moves")

SWEEP_PAUSE_S = 0.01  # between two pieces of tidying up
Run = Callable[[Callable[[], Any]], Awaitable[Any]]
AskPeer = Callable[[ServerAddress, list[Buffer]], Awaitable[tuple[Buffer, Buffer]]]


async def no_peer(server: ServerAddress, _frame: list[Buffer]) -> tuple[Buffer, Buffer]:
    """Servers that cannot reach one another: every move fails, by the master's patience."""
    raise LinkLost(f"server {server.index} cannot be reached from here")


class Moves:
    """`ask` carries a frame to another server and its reply back (raises LinkLost); `wake` makes the next heartbeat due now.

    `run_patiently`: as `run`, at a moment when it keeps no worker waiting.
    """

    def __init__(
        self,
        core: ServerCore,
        run: Run,
        ask: AskPeer,
        wake: Callable[[], None],
        run_patiently: Run | None = None,
    ) -> None:
        self._core, self._run, self._ask, self._wake = core, run, ask, wake
        self._run_patiently = run_patiently or run
        self._coming: dict[int, tuple[Transfer, asyncio.Task[None]]] = {}
        self._froze_s: dict[int, float] = {}
        self._paced: dict[
            int, tuple[float, int]
        ] = {}  # by move: when the last answer was taken in, after how many pushes
        self._warming: dict[int, asyncio.Future[None]] = {}  # by move: memory for the next rows
        self._served_s = 0.0  # when the newest routing was followed
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether orders are to be asked for often."""
        return bool(self._coming)

    @property
    def urgent(self) -> bool:
        """Whether a source takes no pushes until the master has heard of it."""
        return any(transfer.status.phase == "ready" for transfer, _ in self._coming.values())

    def statuses(self) -> list[MoveStatus]:
        """What the master is told of every move to here."""
        return [transfer.status for transfer, _ in self._coming.values()]

    def routed(self) -> None:
        """A routing is followed from now on."""
        self._served_s = _now()

    async def obey(self, orders: list[MoveOrder], run: Run) -> None:
        """Do what is listed, and end what is not. `run`: on the tables' thread, in the generation of the orders."""
        if not (orders or self._coming or self._core.takes_part):
            return
        await run(lambda: self._core.follow_moves(orders))
        listed = {order.move for order in orders}
        for move in [move for move in self._coming if move not in listed]:
            transfer, task = self._coming.pop(move)
            task.cancel()
            await self._conclude(transfer)
        state = self._core.state
        for order in orders:
            ours = (order.target.index, order.target.incarnation) == (state.index, state.incarnation)
            if ours and order.move not in self._coming:
                transfer = Transfer(order, self._core)
                self._coming[order.move] = transfer, asyncio.create_task(self._carry(transfer))
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())

    async def _carry(self, transfer: Transfer) -> None:
        steps = transfer.steps()
        result: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = steps.throw(error) if error else steps.send(result)
            except StopIteration:
                break
            try:
                result, error = await self._perform(transfer, effect), None
            except Exception as raised:  # noqa: BLE001 - the generator knows what its effects may raise, and raises the rest itself
                error = raised
        self._wake()

    async def _perform(self, transfer: Transfer, effect: Effect) -> Any:
        match effect:
            case RunOnTables(function, patient):
                run = self._run_patiently if patient else self._run
                if (warming := self._warming.pop(transfer.order.move, None)) is not None:
                    await warming
                result, cold = await run(lambda: (function(), self._core.cold()))
                if cold:
                    self._warming[transfer.order.move] = asyncio.create_task(
                        asyncio.to_thread(populate, cold)
                    )
                return result
            case Rest(seconds):
                return await asyncio.sleep(seconds)
            case TransferPace(seconds):
                return await self._keep_pace(transfer.order.move, seconds)
            case Ask(server, frame, last):
                if last:
                    self._froze_s.setdefault(transfer.order.move, _now())
                asked_s = _now()
                header, body = await self._ask(server, frame)
                return TransferAnswer(header, body, _now() - asked_s)

    async def _keep_pace(self, move: int, seconds: float) -> None:
        """Wait until `seconds` after the last time. No worker trains while no push comes."""
        last_s, pushes = self._paced.get(move, (float("-inf"), 0))
        if self._core.version != pushes:
            await asyncio.sleep(max(last_s + seconds - _now(), 0.0))
        self._paced[move] = _now(), self._core.version

    async def _conclude(self, transfer: Transfer) -> None:
        """A move is over: when the slots are ours now, note how long they were away and tell their source."""
        move = transfer.order.move
        froze_s = self._froze_s.pop(move, None)
        self._paced.pop(move, None)
        self._warming.pop(move, None)
        if froze_s is None or not transfer.is_over:
            return
        away_s = self._served_s - froze_s
        await self._run(lambda: self._note(away_s))
        try:
            ask = transfer.conclusion()
            await self._ask(ask.server, ask.frame)
        except LinkLost as lost:
            log.info("the source did not receive the notice of a hand-over", move=move, reason=str(lost))

    def _note(self, away_s: float) -> None:
        self._core.count("hand_overs")
        self._core.count("hand_over_s_sum", away_s)
        self._core.counters["hand_over_s_max"] = max(away_s, self._core.counters.get("hand_over_s_max", 0))

    async def _sweep(self) -> None:
        while await self._run_patiently(self._core.sweep):  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(SWEEP_PAUSE_S)

    def close(self) -> None:
        """End every task."""
        for _, task in self._coming.values():
            task.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
