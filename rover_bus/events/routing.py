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
    """Slot -> server. `owners` is run-length: [server index, first slot, end slot, ...]; compare as (generation, epoch).

    `early_bytes`: not None while the first servers hold what others are to take over (docs/design/0046): what finds no room with
    them waits. The memory limit of each, 0 for none.
    """

    timeline: int
    generation: int
    epoch: int
    owners: list[tuple[int, int, int]]
    servers: list[ServerAddress]
    early_bytes: int | None = None
