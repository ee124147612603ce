"""The clock of the simulations: it jumps, it is exact, and it says who waits for whom."""

import asyncio
import time

import pytest

from rover_bus.events.virtual_time import Deadlock, OutsideRefused, run


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
