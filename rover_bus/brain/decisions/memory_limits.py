"""Memory: limits that follow the forecast, and relief before the kill: one incident a server until it is over.

Fed by growth models, limits and reaction times, feeds plans. Order of relief: re-balance slots, larger server, more servers,
codec; a named refusal when nothing is left (S10, S11, S25). The public code reacts only after the kill (`algorithms.md §3`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.models.memory import Growth

# Above the upper bound: what a process needs for a moment beyond its tables.
MARGIN = 1.05
# A feature may be launched at any moment: growth to come is planned this much faster than it is.
BLIND_SHARE, BLIND_FACTOR = 0.75, 1.5  # before there is a forecast
SURGE = 3.0
# A cold start: users who ask for too little ask for about half, and those who ask for too much need an eighth of it at once.


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """One server: its growth, its limit, how fast samples come, how many are left, and how long relief takes."""

    growth: Growth
    limit_bytes: float
    samples_per_s: float
    remaining_samples: float
    reaction_s: float = 120.0
    incident: str = ""  # the open incident's id, empty when there is none


class Relief(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be done: a new limit for this server, or another remedy; `seconds_left` until the upper bound meets the limit."""

    server: int
    incident: str
    reason: Reason
    limit_bytes: int
    seconds_left: float


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What relief may use: the largest server, free memory of the cluster or quota, and which remedies exist."""

    largest_server_bytes: float
    free_bytes: float
    other_servers_free_bytes: float = 0.0
    slots_move: bool = False
    servers_added: bool = False
    rows_compress: bool = False


def needed_limit(state: MemoryState, horizon_s: float) -> int:
    """Bytes that a server's limit must have to live through a horizon: the upper bound, growth taken `SURGE` times as fast."""
    ahead = min(horizon_s * state.samples_per_s, state.remaining_samples)
    now = state.growth.samples
    bound = max(
        state.growth.forecast(now + ahead).upper_bytes,
        state.growth.forecast(now + min(ahead * SURGE, state.remaining_samples)).expected_bytes,
    )
    return int(bound * MARGIN)


def limit_before_forecast(used_bytes: float, limit_bytes: float) -> float:
    """The limit of a server of which too little is known to forecast: half as much again as it uses, once it uses most of it."""
    return (
        max(limit_bytes, used_bytes * BLIND_FACTOR) if used_bytes > BLIND_SHARE * limit_bytes else limit_bytes
    )


def decide_relief(states: Mapping[int, MemoryState], means: Means, new_incident: str) -> list[Relief]:
    """Relief for every server whose limit does not outlive the reaction twice; most urgent first, free memory shared.

    `new_incident` is a fresh id made by the caller; a server with an open incident keeps its id.
    """
    reliefs: list[Relief] = []
    free = means.free_bytes
    urgent = sorted((_seconds_left(state), server) for server, state in states.items())
    for seconds_left, server in urgent:
        state = states[server]
        if needed_limit(state, 2 * state.reaction_s) <= state.limit_bytes:
            continue
        wanted = needed_limit(state, 6 * state.reaction_s)
        reason = _remedy(state, wanted, means, free)
        larger = reason is Reason.OOM_LARGER_SERVER
        free -= wanted - state.limit_bytes if larger else 0.0
        limit = wanted if larger else int(state.limit_bytes)
        incident = state.incident or f"{new_incident}-{server}"
        reliefs.append(
            Relief(
                server=server, incident=incident, reason=reason, limit_bytes=limit, seconds_left=seconds_left
            )
        )
    return reliefs


def relieved(allocation: Allocation, relief: Relief) -> Allocation:
    """The allocation after a relief: a larger limit for the servers, or one server more."""
    if relief.reason is Reason.OOM_LARGER_SERVER:
        return allocation.replace(server_memory_bytes=max(relief.limit_bytes, allocation.server_memory_bytes))
    if relief.reason is Reason.OOM_MORE_SERVERS:
        return allocation.replace(servers=allocation.servers + 1)
    return allocation


def _seconds_left(state: MemoryState) -> float:
    return state.growth.seconds_to_limit(state.limit_bytes, state.samples_per_s)


def _remedy(state: MemoryState, wanted: float, means: Means, free: float) -> Reason:
    missing = wanted - state.limit_bytes
    if means.slots_move and means.other_servers_free_bytes >= 2 * missing:
        return Reason.OOM_REBALANCE_SLOTS
    if wanted <= means.largest_server_bytes and missing <= free:
        return Reason.OOM_LARGER_SERVER
    if means.servers_added and state.limit_bytes <= free:
        return Reason.OOM_MORE_SERVERS
    return Reason.OOM_COMPRESS_ROWS if means.rows_compress else Reason.OOM_NO_ROOM
