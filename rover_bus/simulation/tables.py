"""The thread that owns a simulated server's tables, one thing after the other; and the part that it writes at the end.

Feeds members.py. What a server's life asks of its tables waits for its turn, as live: a new generation may begin before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rover_bus.ps.core import ServerCore

LONGEST_TURN_S = 0.05
LONGEST_WRITING_S = 3.0  # longer than silence is borne: a server that writes is busy, and not lost


@dataclass(frozen=True)
class WitnessPart:
    """What a server wrote of the witness. `origin`: timeline, generation, routing epoch, servers; equal in a whole model."""

    origin: tuple[int, int, int, int]
    counts: dict[int, int]  # position -> count


class SimulatedTables:
    """`parts`: where what is written goes, by path; `chance` says how long a turn takes."""

    def __init__(self, core: ServerCore, parts: dict[str, WitnessPart], chance: random.Random) -> None:
        self.core, self._parts, self._chance = core, parts, chance
        self._turn = asyncio.Lock()
        self._busy_s = 0.0  # that the present turn still takes

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in its turn; what it did stands before its caller hears of it."""
        async with self._turn:
            self._busy_s = self._chance.choice((0.0, 0.0, self._chance.uniform(0.0, LONGEST_TURN_S)))
            result = function()
            if self._busy_s:
                await asyncio.sleep(self._busy_s)
            return result

    def write(self, core: ServerCore, path: Path) -> int:
        """Write a part; return its size, which is the number of its samples. It takes its time."""
        self._busy_s = self._chance.uniform(0.0, LONGEST_WRITING_S)
        state, tables = core.state, core.tables
        counts: dict[int, int] = {}
        if tables is not None and any(table.name == "witness" for table in tables.catalogue.tables()):
            store = tables.store(("witness",))
            ids, places = store.listing("witness")
            values = store.rows.take(places)[:, 0]
            counts = {int(position): int(value) for position, value in zip(ids, values, strict=True)}
        routing = state.routing
        shape = (routing.epoch, len(routing.servers)) if routing is not None else (0, 0)
        self._parts[str(path)] = WitnessPart((state.timeline, state.generation, *shape), counts)
        return len(counts)
