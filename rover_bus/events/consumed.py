"""What a power cut takes of the facts that a service has heard: are they still there, and whose are their numbers now (P17, P21)?

Used by the shell, and by daemons that follow facts. A broker that lost a tail gives its numbers to other facts. Whoever knew the
tail must notice, and must not take the new ones for known.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import takewhile
from typing import NamedTuple, cast

from rover_bus.events.bus import Bus, Stored
from rover_bus.events.streams import FACTS

ALL = ">"


class Heard(NamedTuple):
    """The last fact that somebody heard; no subject: none yet."""

    sequence: int = 0
    subject: str = ""
    time_ms: int = 0


async def newest_since(bus: Bus, heard: Heard) -> tuple[bool, int]:
    """Say whether a fact that was heard is still there, and the number of the newest on its subject. Raises BusError."""
    newest = await bus.last(FACTS, heard.subject)
    if newest is None:
        return False, 0
    same = (newest.sequence, newest.time_ms) == (heard.sequence, heard.time_ms)
    return newest.sequence > heard.sequence or same, newest.sequence


async def consumed_of_what_is_there(bus: Bus, inputs: Mapping[str, int], since_ms: int) -> dict[str, int]:
    """Return what a log says was consumed, without facts whose numbers other facts bear now. Raises BusError.

    `since_ms`: when the broker stored the first batch that says so. A fact with such a number that was stored later is another one.
    """
    known = inputs.get(FACTS, 0)

    def is_new(stored: Stored) -> bool:
        return stored.sequence <= known and stored.time_ms > since_ms

    newest = await bus.last(FACTS, ALL)
    there = min(known, newest.sequence if newest is not None else 0)
    if there:
        reading = cast(AsyncGenerator[Stored, None], bus.read(FACTS, ALL, first=there))
        async with aclosing(reading):
            first = await anext(reading, None)
        if first is not None and is_new(first):
            facts = [stored async for stored in bus.read(FACTS, ALL)]
            there = max((old.sequence for old in takewhile(lambda fact: not is_new(fact), facts)), default=0)
    return {**inputs, FACTS: there}
