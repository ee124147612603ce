"""How long an operator takes from what it hears to what it asks: from receipt of a desired state to the first request for a member.

Told by held.py when a member is to come, to leave or to be changed, and by the HTTP session when a request has left; read by
operator.py, which publishes it. Counted as Prometheus counts, so that the page's server can show it as a histogram.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.errors import RoverError
from rover_bus.events.profiles import REACTION_BOUNDS_S, OperatorProfile
from rover_bus.events.subjects import operator_profile
from rover_bus.node.turns import heard_s

EVERY_S = 5.0  # published


class Reactions:
    """All of one operator since it leads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(REACTION_BOUNDS_S) + 1)
        self._total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(REACTION_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    @property
    def nothing(self) -> Reaction:
        """What nothing is awaited of."""
        return Reaction(self, None)

    def begin(self) -> Reaction:
        """Return what the present turn of a daemon asks for, from the receipt of what it is taken for on."""
        return Reaction(self, heard_s())

    def profile(self, operator: str, window_s: float) -> OperatorProfile:
        """Return all that was counted in a window."""
        return OperatorProfile(
            operator=operator, window_s=window_s, reactions=list(self._counts), reacted_s=self._total_s
        )


class Reaction:
    """One that is awaited: its first request counts, whatever follows."""

    def __init__(self, reactions: Reactions, heard_s: float | None) -> None:
        """heard_s: when what is behind it was received, in seconds of the loop; None: nothing was received, and nothing counts."""
        self._reactions, self._heard_s = reactions, heard_s

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """The first request of the body is the one."""
        token = _AWAITED.set(self)
        try:
            yield
        finally:
            _AWAITED.reset(token)

    def note_sent(self) -> None:
        if self._heard_s is not None:
            self._reactions.note(asyncio.get_running_loop().time() - self._heard_s)
            self._heard_s = None


_AWAITED: ContextVar[Reaction | None] = ContextVar("awaited", default=None)


def note_sent() -> None:
    """A request of this task has left."""
    if (reaction := _AWAITED.get()) is not None:
        reaction.note_sent()


async def publish(bus: Bus, operator: str, reactions: Reactions) -> None:
    """Publish what is counted, for ever."""
    loop = asyncio.get_running_loop()
    began_s, subject = loop.time(), operator_profile(operator)
    while True:
        with suppress(RoverError):  # samples may be lost: the next one has it all
            await bus.publish(subject, encode(reactions.profile(operator, loop.time() - began_s)))
        await asyncio.sleep(EVERY_S)
