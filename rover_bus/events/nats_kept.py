"""What a caller of the Bus holds of what it wants to hear: its subscriptions, or one reader, until it stops them.

Made by nats_bus.py, which restores them on every new connection; apart, because they decide nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rover_bus.events.nats_client import Interest
from rover_bus.events.nats_follow import NatsFollower

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus


class KeptInterests:
    """Core subscriptions of one caller."""

    def __init__(self, bus: NatsBus, interests: list[Interest]) -> None:
        self._bus, self._interests = bus, interests

    async def stop(self) -> None:
        await self._bus.drop(self._interests)


class KeptReader:
    """A follower or a watch of one caller."""

    def __init__(self, bus: NatsBus, reader: NatsFollower) -> None:
        self._bus, self._reader = bus, reader

    async def stop(self) -> None:
        await self._bus.drop_reader(self._reader)
