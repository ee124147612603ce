"""What a power cut takes of the facts that a service observed: are they still there, and whose are their numbers now (P17, P21)?

Used by the shell, and by daemons that follow facts. A broker that lost a tail gives its numbers to other facts. A service that knew
the tail must notice, and must not take the new ones for known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rover_bus.events.bus import Bus
from rover_bus.events.looks import first_stored
from rover_bus.events.streams import FACTS

ALL = ">"


class LastObserved(NamedTuple):
    """The last fact that a service observed; no subject: none yet."""

    sequence: int = 0
    subject: str = ""
    time_ms: int = 0


async def newest_since(bus: Bus, last: LastObserved) -> tuple[bool, int]:
    """Say whether a fact that was observed is still there, and the number of the newest on its subject. Raises BusError."""
    newest = await bus.last(FACTS, last.subject)
    if newest is None:
        return False, 0
    same = (newest.sequence, newest.time_ms) == (last.sequence, last.time_ms)
    return newest.sequence > last.sequence or same, newest.sequence


async def consumed_of_what_is_there(bus: Bus, inputs: Mapping[str, int], since_ms: int) -> dict[str, int]:
    """Return what a log says was consumed, without facts whose numbers other facts bear now. Raises BusError.

    `since_ms`: when the broker stored the first batch that says so. A fact with such a number that was stored later is another one.
    """
    known = inputs.get(FACTS, 0)

    newest = await bus.last(FACTS, ALL)
    there = min(known, newest.sequence if newest is not None else 0)
    low, high = 1, there + 1  # the first fact that was stored later is sought: times grow with numbers
    if there and not await _is_new(bus, there, known, since_ms):
        return {**inputs, FACTS: there}
    while low < high:
        middle = (low + high) // 2
        if await _is_new(bus, middle, known, since_ms):
            high = middle
        else:
            low = middle + 1
    return {**inputs, FACTS: max(low - 1, 0)}


async def where_facts_begin(bus: Bus, subject: str) -> int:
    """Return where the first fact under `subject` is: what hosts said before it concerns others. Without one: what comes next.

    Raises BusError.
    """
    first = await first_stored(bus, FACTS, subject)
    if first is not None:
        return first.sequence
    newest = await bus.last(FACTS, ALL)
    return 1 if newest is None else newest.sequence + 1


async def _is_new(bus: Bus, sequence: int, known: int, since_ms: int) -> bool:
    """Whether the first fact that is stored from here on bears a number that is known, and is another one all the same."""
    stored = await first_stored(bus, FACTS, ALL, sequence)
    return stored is not None and stored.sequence <= known and stored.time_ms > since_ms
