"""Hot parameter servers: move hot slots, add cores, add a server, fewer workers; in this order.

Fed by windows of load a server, feeds requests to move slots and plans (S12: with one server hot and the others idle, none is
scaled up). The order is `algorithms.md §6` [ours]. Which slots move where is the master's to level (`master/slots.py`): it has the
routing, and the load of each slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits

HOT = 0.85  # busy share above which requests queue
SKEWED = 1.3  # the hottest server over the mean
WINDOWS = 2


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One server's window: share of time it was busy (0..1 a core)."""

    server: int
    busy: float


class HotRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy: a new allocation, and why."""

    reason: Reason
    allocation: Allocation


def decide_hot_servers(
    windows: Sequence[Sequence[ServerLoad]],
    held: Allocation,
    limits: Limits,
    most_server_cores: float = float("inf"),
) -> HotRemedy | None:
    """Return the first allocation that helps; None while the last two windows are not hot, or where one server alone is, so that
    slots move first (`find_hot_server`). Loads by server index. `most_server_cores`: that one server may have.
    """
    if not _all_hot(windows[-WINDOWS:]) or find_hot_server(windows) is not None:
        return None
    for reason, wanted in _growths(held):
        within = wanted.cores <= limits.cores and wanted.memory_bytes <= limits.memory_bytes
        within &= wanted.server_cores <= max(most_server_cores, held.server_cores)
        pinned = wanted.servers != held.servers and (
            limits.servers > 0 or wanted.servers > limits.max_servers
        )
        if within and not pinned:
            return HotRemedy(reason=reason, allocation=wanted)
    if held.workers > limits.least_workers and not limits.workers:
        fewer = held.replace(workers=max(held.workers * 3 // 4, limits.least_workers))
        return HotRemedy(reason=Reason.HOT_SERVER_FEWER_WORKERS, allocation=fewer)
    return None


def find_hot_server(windows: Sequence[Sequence[ServerLoad]]) -> int | None:
    """The server that is hot while the others are not, for two windows; None otherwise. Its hot slots are to move (S12)."""
    recent = windows[-WINDOWS:]
    if not _all_hot(recent) or not all(_is_skewed(window) for window in recent):
        return None
    hottest = {max(window, key=lambda load: load.busy).server for window in recent}
    return hottest.pop() if len(hottest) == 1 else None


def _all_hot(recent: Sequence[Sequence[ServerLoad]]) -> bool:
    return len(recent) == WINDOWS and all(
        max((load.busy for load in window), default=0.0) >= HOT for window in recent
    )


def _is_skewed(window: Sequence[ServerLoad]) -> bool:
    mean = sum(load.busy for load in window) / len(window)
    return len(window) > 1 and max(load.busy for load in window) > SKEWED * mean


def _growths(held: Allocation) -> list[tuple[Reason, Allocation]]:
    return [
        (Reason.HOT_SERVER_ADD_CORES, held.replace(server_cores=held.server_cores * 2)),
        (Reason.HOT_SERVER_ADD_SERVER, held.replace(servers=held.servers + 1)),
    ]
