"""Python's collector of cycles: kept off what has lasted, in a process with a large state, and off all of it at a process's end.

Used by `serve` for the Brain, and by operating.py: at 4,000 jobs, or 2,000 pods, a full collection takes a quarter of a second, and
no fact is observed meanwhile. What is young is collected as ever; what has lasted a while is set aside (`gc.freeze`), and freed by
its last reference like all that is in no cycle. Cycles that die later wait for the next full collection, once an hour. No other
collection is full: Python's own would begin in the middle of a round, after so many objects as a Brain of 4,000 jobs makes in it.

Used by `rover` and by every service at the end: Python would look for cycles in all that was ever imported, just before the kernel
takes the memory back. That is a fifth of the processor time of a short command, and a quarter of that of a server's start and end.
Nor is anything collected while they load their modules, which last: what was loaded is set aside at once.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S, FULL_EVERY_S = 60.0, 3600.0
NEVER = 1 << 30  # collections of what is half old, before a full one


def set_aside(full: bool) -> None:
    """Collect what is young, or everything, and keep the collector off the rest."""
    if full:
        gc.unfreeze()
    gc.collect(2 if full else 1)
    gc.freeze()


def end_uncollected() -> None:
    """Have this process end without a search for cycles. What is in none is freed, closed and flushed as ever."""
    atexit.register(gc.freeze)


async def collect_seldom(first_s: float = 0.0, every_s: float = EVERY_S) -> None:
    """Set aside what has lasted, for ever. first_s: within which all is made that will last: nothing is collected before."""
    import asyncio  # here: commands end by this module too, and few of them have a loop

    with left_alone():
        await asyncio.sleep(first_s)
    turn = 0
    try:
        with none_full():
            while True:
                set_aside(full=turn * every_s % FULL_EVERY_S == 0)
                turn += 1
                await asyncio.sleep(every_s)
    finally:
        gc.unfreeze()


@contextmanager
def none_full() -> Iterator[None]:
    """Begin no full collection in the body but by `set_aside`."""
    young, half_old, old = gc.get_threshold()
    gc.set_threshold(young, half_old, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, half_old, old)


@contextmanager
def loading() -> Iterator[None]:
    """Collect nothing in the body, which imports modules, and keep the collector off all that they made."""
    with left_alone():
        yield
        gc.freeze()


@contextmanager
def left_alone() -> Iterator[None]:
    """Collect nothing in the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
