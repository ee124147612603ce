"""Python's collector of cycles in a process with a large state: kept off what has lasted.

Used by `serve` for the Brain: at 4,000 jobs a full collection takes a quarter of a second, and no fact is observed meanwhile. What
is young is collected as ever; what has lasted a minute is set aside (`gc.freeze`), and freed by its last reference like all that
is in no cycle. Cycles that die later wait for the next full collection, once an hour.
"""

from __future__ import annotations

import asyncio
import gc

EVERY_S, FULL_EVERY = 60.0, 60


def set_aside(full: bool) -> None:
    """Collect what is young, or everything, and keep the collector off the rest."""
    if full:
        gc.unfreeze()
    gc.collect(2 if full else 1)
    gc.freeze()


async def collect_seldom() -> None:
    """Set aside what has lasted, for ever."""
    turn = 0
    while True:
        set_aside(full=turn % FULL_EVERY == 0)
        turn += 1
        await asyncio.sleep(EVERY_S)
