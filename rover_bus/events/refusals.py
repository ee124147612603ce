"""Whether a broker refuses our credentials for good: revoked, or expired. Then a process ends with one line, and dials no more.

Fed by nats_bus.py with what becomes of each dial; feeds services and commands, which end with the exit code of missing rights.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from rover_bus.events.errors import AccessDenied

T = TypeVar("T")
REFUSED_S = 10.0  # of refusals alone: then credentials are believed to be worth nothing any more


class Refusable(Protocol):
    """A connection by credentials."""

    async def turned_away(self) -> AccessDenied:
        """Wait until the broker has refused them for good."""


class BrokerRefusal:
    """That a broker refuses our credentials, and whether for good: not just while it starts and is not told of all users yet."""

    def __init__(self) -> None:
        self.error: AccessDenied | None = None
        self._since_s = 0.0
        self._final = asyncio.Event()

    def note(self, error: AccessDenied | None) -> None:
        """Take in what became of one more dial. None: it was no refusal."""
        now_s = time.monotonic()
        if error is None or self.error is None:
            self._since_s = now_s
        self.error = error
        if error is not None and now_s - self._since_s >= REFUSED_S:
            self._final.set()

    async def last(self) -> AccessDenied:
        """Wait until refusals have lasted for `REFUSED_S`; return the last one."""
        await self._final.wait()
        assert self.error is not None
        return self.error


async def unless_turned_away(bus: Refusable, work: Awaitable[T]) -> T:
    """Do something on a bus, unless its broker refuses these credentials for good meanwhile. Raises AccessDenied then."""
    working = asyncio.ensure_future(work)
    refused = asyncio.create_task(bus.turned_away())
    try:
        await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise refused.result()
    finally:
        for task in (working, refused):
            task.cancel()
        await asyncio.gather(working, refused, return_exceptions=True)
