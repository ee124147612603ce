"""Which server holds which slots: reading a routing table, comparing two, making the first.

The table itself is `events.requests.RoutingTable`: the master logs and publishes it, servers and workers follow it. Fed by
`service` (servers) and by a routing provider (workers); used by `admission` and `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.ps.hashing import SLOTS


def version(table: RoutingTable) -> tuple[int, int]:
    """Return what routing tables of one timeline compare by (protocol P8)."""
    return (table.generation, table.epoch)


def is_newer(table: RoutingTable, than: RoutingTable | None) -> bool:
    """Whether a table replaces another. One of another timeline always does: it came from the master that leads now.

    A log that lost its tail in a power cut uses numbers again (P21): of two tables of one version the later incarnations win.
    """
    if than is None or table.timeline != than.timeline:
        return True
    return (*version(table), _incarnations(table)) > (*version(than), _incarnations(than))


def _incarnations(table: RoutingTable) -> list[int]:
    return [
        incarnation for _, incarnation in sorted((each.index, each.incarnation) for each in table.servers)
    ]


def owner_of_slots(table: RoutingTable) -> npt.NDArray[np.int64]:
    """Return, for each slot, the position in `table.servers` of its owner. Raises BadMessage unless each slot has one."""
    position = {server.index: at for at, server in enumerate(table.servers)}
    owned, owners, sizes = 0, list[int](), list[int]()
    for index, first, end in sorted(table.owners, key=itemgetter(1)):
        if index not in position or first < owned or not first < end <= SLOTS:
            raise BadMessage(
                f"routing table {version(table)}: server {index} cannot own the slots [{first}, {end})"
            )
        if first > owned:
            break
        owners.append(position[index])
        sizes.append(end - first)
        owned = end
    if owned < SLOTS:
        raise BadMessage(f"routing table {version(table)} leaves slot {owned} without an owner")
    return np.repeat(np.array(owners, np.int64), sizes)


def owned_slots(table: RoutingTable, index: int) -> npt.NDArray[np.int64]:
    """Return the slots of one server, ascending."""
    ranges = [np.arange(first, end) for owner, first, end in table.owners if owner == index]
    return np.sort(np.concatenate(ranges)) if ranges else np.empty(0, np.int64)


def divide_slots(
    servers: Sequence[ServerAddress], timeline: int = 0, generation: int = 0, epoch: int = 0
) -> RoutingTable:
    """Return the first routing table of a generation: slots in equal, consecutive ranges."""
    bounds = [SLOTS * at // len(servers) for at in range(len(servers) + 1)]
    owners = [(server.index, bounds[at], bounds[at + 1]) for at, server in enumerate(servers)]
    return RoutingTable(
        timeline=timeline, generation=generation, epoch=epoch, owners=owners, servers=list(servers)
    )
