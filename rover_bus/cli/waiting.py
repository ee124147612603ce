"""Waiting for what a program learns on the side, from facts and from processes. Used by the acts of the demo and by its strikes.

Apart because it knows nothing of them: no clock but the loop's, no patience but what it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOK_S = 0.05


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, however long."""
    while not holds():  # noqa: ASYNC110 - what others tell is waited for
        await asyncio.sleep(LOOK_S)


async def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until it holds, so long at the most; whether it came to hold."""
    try:
        await asyncio.wait_for(until(holds), seconds)
    except TimeoutError:
        return False
    return True
