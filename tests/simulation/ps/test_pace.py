"""A copy of moving slots keeps its pace while workers train, and hurries while no_peer does."""

from __future__ import annotations

import asyncio

from rover_bus.events import virtual_time
from rover_bus.ps.core import ServerCore
from rover_bus.ps.moves import Moves, no_peer


async def at_once(function):
    return function()


async def pace_of(pushes: int) -> float:
    """Return the seconds that ten answers take, each to be followed by half a second; `pushes` come between two of them."""
    core = ServerCore(0, 1)
    moves = Moves(core, at_once, no_peer, lambda: None)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(10):
        await moves._keep_pace(1, 0.5)
        await asyncio.sleep(0.1)  # what copying takes
        core.version += pushes
    return loop.time() - began_s


def test_answers_are_as_far_apart_as_asked_while_workers_train():
    assert round(virtual_time.run(pace_of(pushes=3)), 3) == 9 * 0.5 + 0.1


def test_nothing_is_waited_for_while_no_peer_trains():
    assert round(virtual_time.run(pace_of(pushes=0)), 3) == 10 * 0.1
