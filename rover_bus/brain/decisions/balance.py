"""Parameter balance: which slots to move off a hot server.

Fed by traffic, feeds `hot_servers`. Slots carry traffic: moving the hottest ones that still fit levels the servers with few moves
[ours]. Optimus' assignment of blocks by their bytes (`algorithms.md §2` [paper]) has no place here: slots are hashed, so that they
lie evenly by bytes, and what is uneven is traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class ParameterMove(msgspec.Struct, frozen=True):
    """A slot that shall leave one server for another, with the load it carries."""

    slot: int
    source: int
    target: int
    load: float


def level_slots(
    loads: Mapping[int, float],
    owner: Mapping[int, int],
    servers: Sequence[int],
    tolerance: float = 0.1,
    most_moves: int = 64,
) -> list[ParameterMove]:
    """Move hot slots from the fullest server to the emptiest until all lie within `tolerance` of the mean.

    `loads` slot -> load (requests or bytes), `owner` slot -> server. A slot larger than the gap is left: moving it would only
    make another server hot. Ends after `most_moves`.
    """
    total = dict.fromkeys(servers, 0.0)
    held: dict[int, list[int]] = {server: [] for server in servers}
    for slot, server in owner.items():
        total[server] += loads.get(slot, 0.0)
        held[server].append(slot)
    mean = sum(total.values()) / len(servers)
    moves: list[ParameterMove] = []
    while len(moves) < most_moves:
        source = max(servers, key=lambda s: (total[s], -s))
        target = min(servers, key=lambda s: (total[s], s))
        gap = total[source] - total[target]
        if total[source] <= mean * (1 + tolerance):
            break
        movable = [slot for slot in held[source] if 0 < loads.get(slot, 0.0) < gap]
        if not movable:
            break
        slot = min(movable, key=lambda candidate: (abs(loads[candidate] - gap / 2), candidate))
        moves.append(ParameterMove(slot, source, target, loads[slot]))
        held[source].remove(slot)
        held[target].append(slot)
        total[source] -= loads[slot]
        total[target] += loads[slot]
    return moves
