"""Which server holds which slots, and where it listens: the routing of a generation (protocol P2, P5).

In the routing bucket, in `routing.changed` and in answers of masters and servers; apart because facts and requests both name it.
"""

from __future__ import annotations

import msgspec

SlotRange = tuple[int, int]  # [first, end)


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a parameter server listens, best first: `unix:<path>` on the same host, `tcp:<address>:<port>`."""

    index: int
    incarnation: int
    addresses: list[str]


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Slot -> server. `owners` is run-length: [server index, first slot, end slot, ...]; compare as (generation, epoch)."""

    timeline: int
    generation: int
    epoch: int
    owners: list[tuple[int, int, int]]
    servers: list[ServerAddress]
