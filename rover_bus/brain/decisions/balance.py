"""Parameter balance: which server holds which dense array or slot (Optimus' PAA), and which slots to move off a hot server.

Fed by sizes and traffic, feeds routing. PAA: parameters below 1 % of the average go to the server with fewest requests,
those up to the average to the best fit, larger ones are sliced (`algorithms.md §2` [paper]). Slots carry traffic: moving the
hottest ones that still fit levels the servers with few moves [ours].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

_TINY_SHARE = 0.01


class ParameterPiece(msgspec.Struct, frozen=True):
    """A parameter block, or a slice [start, end) of its bytes, on a server."""

    block: int
    server: int
    start: int
    end: int


class ParameterMove(msgspec.Struct, frozen=True):
    """A slot that shall leave one server for another, with the load it carries."""

    slot: int
    source: int
    target: int
    load: float


def assign_parameters(sizes: Sequence[int], servers: int) -> list[ParameterPiece]:
    """Assign blocks of `sizes` bytes to servers by PAA; deterministic, larger blocks first. Every byte has one place."""
    average = max(sum(sizes) / servers, 1.0)
    filled, requests = [0] * servers, [0] * servers
    pieces: list[ParameterPiece] = []

    def put(block: int, server: int, start: int, end: int) -> None:
        pieces.append(ParameterPiece(block, server, start, end))
        filled[server] += end - start
        requests[server] += 1

    for block in sorted(range(len(sizes)), key=lambda b: (-sizes[b], b)):
        size = sizes[block]
        if size < _TINY_SHARE * average:
            put(block, min(range(servers), key=lambda s: (requests[s], filled[s], s)), 0, size)
        elif size <= average:
            put(block, _best_fit(filled, size, average), 0, size)
        else:
            start = 0
            while start < size:
                server = min(range(servers), key=lambda s: (filled[s], s))
                end = min(start + max(int(average - filled[server]), int(average / servers), 1), size)
                put(block, server, start, end)
                start = end
    return pieces


def _best_fit(filled: Sequence[int], size: int, average: float) -> int:
    """The fullest server on which it still fits the average; where it fits none, the emptiest."""
    fitting = [s for s in range(len(filled)) if filled[s] + size <= average]
    if fitting:
        return max(fitting, key=lambda s: (filled[s], -s))
    return min(range(len(filled)), key=lambda s: (filled[s], s))


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
