"""Calls that are repeated until the bus answers. Used by shell.py, for what nothing of a service can go on without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rover_bus.events.errors import BusError
from rover_bus.events.leadership import Deposed

AGAIN_S = 0.05
T = TypeVar("T")


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the bus answers it. Raises what else it raises; Deposed too, which repeating does not mend."""
    while True:
        try:
            return await call()
        except Deposed:
            raise
        except BusError:
            await asyncio.sleep(AGAIN_S)
