"""A fact that its author stands by: as long as the author is there, the broker has it (protocol P21).

Used where a job is handed in and waited for (cli/submission.py, simulation/history.py). A broker that syncs lazily may forget in a
power cut what it acknowledged. Its author is often the only process that still knows, and sees the cut as a lost connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.errors import BusError
from rover_bus.events.streams import FACTS

PAUSE_S = 0.1


async def stand_by(bus: Bus, subject: str, say: Callable[[], Awaitable[object]]) -> None:
    """After every lost connection look whether a fact is still on `subject`; `say` it again when it is not. Never ends.

    `say` must be safe to repeat: the same id, and expected to be the first on its subject. Raises what it raises, beside BusError.
    """
    returned = asyncio.Event()

    def note(state: ConnectionState) -> None:
        if state == "connected":
            returned.set()

    bus.on_connection(note)
    while True:
        await returned.wait()
        returned.clear()
        try:
            if await bus.last(FACTS, subject) is None:
                await say()
        except BusError:
            returned.set()
            await asyncio.sleep(PAUSE_S)
