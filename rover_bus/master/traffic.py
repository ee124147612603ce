"""What servers said last of their size, their traffic and the moves to them. Never logged: a successor hears it again (P19).

Fed with their heartbeats; asked by `rollout` how much a move carries and which slots are hot.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_bus.events.requests import HeartbeatRequest, SlotTraffic
from rover_bus.master import slots


class Telemetry:
    """What servers said last of their size and traffic: decides how much a move carries, and which slots are hot. Never logged."""

    def __init__(self) -> None:
        self.row_bytes: dict[int, float] = {}
        self.traffic: dict[int, SlotTraffic] = {}
        self.progress: dict[int, tuple[str, int]] = {}

    def observe(self, request: HeartbeatRequest) -> None:
        """Take in a server's heartbeat."""
        index = request.member.index
        whole = request.statistics.get("memory_bytes", 0.0)
        self.row_bytes[index] = request.statistics.get("row_bytes", whole)  # indexes stay where they are
        if request.traffic is not None:
            self.traffic[index] = request.traffic
        for status in request.moves:
            self.progress[status.move] = (status.phase, status.bytes)

    def loads(self, by_slot: list[int]) -> Mapping[int, float]:
        """Return keys a second by slot; slots that no server named share what is left of its traffic."""
        loads: dict[int, float] = {}
        for index, traffic in self.traffic.items():
            mine = [slot for slot in range(slots.SLOTS) if by_slot[slot] == index]
            named = {slot: rate for slot, rate in traffic.hottest if by_slot[slot] == index}
            rest = max(0.0, traffic.keys_per_s - sum(named.values())) / max(1, len(mine) - len(named))
            loads |= {slot: named.get(slot, rest) for slot in mine}
        return loads
