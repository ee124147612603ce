"""The clock of the simulations: it jumps, it is exact, and it says who waits for whom."""

import asyncio
import random
import time
from typing import Any

import pytest

from rover_bus.events.virtual_time import Deadlock, OutsideRefused, VirtualTimeLoop, run


def test_an_hour_of_sleep_ends_at_exactly_an_hour_and_costs_no_hour() -> None:
    async def program() -> float:
        for _ in range(3600):
            await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(program()) == 3600.0
    assert time.monotonic() - began < 600


def test_sleepers_wake_in_order_of_their_time_not_of_their_start() -> None:
    woken: list[float] = []

    async def sleeper(duration_s: float) -> None:
        await asyncio.sleep(duration_s)
        woken.append(duration_s)

    async def program() -> None:
        await asyncio.gather(*(sleeper(duration_s) for duration_s in (3.0, 1.0, 2.0)))

    run(program())
    assert woken == [1.0, 2.0, 3.0]


def test_a_wait_for_what_cannot_come_is_an_error_that_names_the_waiting_task() -> None:
    async def lonely() -> None:
        await asyncio.Event().wait()

    async def program() -> None:
        await asyncio.create_task(lonely(), name="lonely")

    with pytest.raises(Deadlock, match="lonely"):
        run(program())


def test_a_broken_callback_ends_the_run_with_its_own_error() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_later(1.0, lambda: [][0])
        await asyncio.sleep(10.0)

    with pytest.raises(IndexError):
        run(program())


def test_a_thread_is_refused_because_no_seed_decides_it() -> None:
    with pytest.raises(OutsideRefused):
        run(asyncio.to_thread(print))


def test_timeouts_fire_in_virtual_time() -> None:
    async def program() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(500.0), 30.0)
        return asyncio.get_running_loop().time()

    assert run(program()) == 30.0


class StockLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, made to jump by a selector that moves its clock: what ours is to call, and in which order."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now, self._selector, self._clock_resolution = 0.0, self, 1e-9

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())
        return []

    def _process_events(self, event_list: list[Any]) -> None: ...


def called_by(loop: asyncio.BaseEventLoop, seed: int) -> list[tuple[int, float]]:
    """Live a program drawn from a seed: calls that make others, at equal times too, and take some back. Returns all, in order."""
    draw, called, made = random.Random(seed), list[tuple[int, float]](), dict[int, Any]()

    def call(number: int) -> None:
        called.append((number, loop.time()))
        for _ in range(draw.choice((0, 1, 1, 2))):
            if len(made) < 1000:
                make()
        if draw.random() < 0.4:
            made[draw.randrange(len(made))].cancel()
        if draw.random() < 0.05:
            raise RuntimeError("a broken callback")

    def make() -> None:
        number = len(made)
        soon = draw.random() < 0.3
        made[number] = (
            loop.call_soon(call, number)
            if soon
            else loop.call_later(draw.choice((0.0, 0.5, 0.5, 1.0, 3.0, draw.random())), call, number)
        )

    async def program() -> None:
        for _ in range(300):
            make()
        await asyncio.sleep(1e6)

    loop.set_exception_handler(lambda _, told: called.append((-1, loop.time())))
    try:
        loop.run_until_complete(program())
    finally:
        loop.close()
    return called


@pytest.mark.parametrize("seed", range(20))
def test_what_is_called_and_in_which_order_is_what_asyncio_would_call(seed: int) -> None:
    ours = called_by(VirtualTimeLoop(), seed)
    assert len(ours) > 100
    assert ours == called_by(StockLoop(), seed)


def test_a_loop_that_is_closed_takes_no_calls() -> None:
    loop = VirtualTimeLoop()
    loop.close()
    for call in (loop.call_soon, loop.call_soon_threadsafe):
        with pytest.raises(RuntimeError, match="closed"):
            call(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1.0, print)
