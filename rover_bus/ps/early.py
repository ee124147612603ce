"""How much a first server takes in while it holds what others are to take over, and what it says beyond (docs/design/0046).

Used by `core`, at each routing and where a request finds no room. A server that takes in all tables of a job would be killed where
only a part of them was to be its own: a table is refused as a whole, a push as a whole, before anything changes. The worker asks
again until slots have left.
"""

from __future__ import annotations

from collections.abc import Callable

from rover_bus.events.errors import NotEnoughMemory
from rover_bus.events.routing import RoutingTable
from rover_bus.ps.messages import ROOM_TO_COME, RefusedMessage
from rover_bus.ps.tables import TableSet

SHARE = 0.5  # of its limit, and of what is free, for rows: indexes and the process itself need some too
SHARE_WITH_CUTS = (
    0.2  # two parts are staged, each with room for half as many rows again: four times the rows in all
)
AGAIN_S = 0.1


def bound(tables: TableSet, now: RoutingTable, limit_bytes: int, free_bytes: Callable[[], int]) -> None:
    """Bound the rows by what a new routing says, whatever was said before, in an earlier generation too.

    `limit_bytes`: of rows at any time; `free_bytes`: left by the host; 0: unknown.
    """
    share = SHARE_WITH_CUTS if tables.follows_changes else SHARE
    if now.early_bytes is not None:
        allowed = [each for each in (limit_bytes, int(share * now.early_bytes)) if each]
        tables.bound(min(allowed, default=0), int(share * free_bytes()))
    else:
        tables.bound(limit_bytes)


def no_room(error: MemoryError | NotEnoughMemory, routing: RoutingTable | None) -> RefusedMessage:
    """Return the refusal of a request that found no room: to be repeated while slots are about to leave."""
    text = "the server is out of memory for this request: use smaller batches or more servers"
    text = str(error) if isinstance(error, NotEnoughMemory) else text
    if routing is None or routing.early_bytes is None:
        return RefusedMessage(code=NotEnoughMemory.code, message=text)
    text = f"other servers are to take slots over; until then there is no room: {text}"
    return RefusedMessage(code=ROOM_TO_COME, message=text, retry_s=AGAIN_S)
