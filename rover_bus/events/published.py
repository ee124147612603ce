"""What left a log before we led: found from the place that the log itself remembers, not by reading every fact (protocol P18).

Used by shell.py at a take-over. The log's newest batch names the last fact that had left; a few more may have left since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rover_bus.events.batch import Published
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.consumed import ALL
from rover_bus.events.envelope import read_envelope
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import Fact, Position
from rover_bus.events.looks import first_stored
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS

PositionOf = Callable[[Fact], Position | None]


async def newest_published(
    bus: Bus, filters: Sequence[str], known: Published, position_of: PositionOf
) -> tuple[Published, str, bool]:
    """Return the newest fact of a log that FACTS holds, its subject, and whether the one that the log remembers is there.

    Where a power cut took it with the tail of FACTS, all that is left under `filters` is read.
    `position_of` tells the facts of this log from those of others. Waits for the bus.
    """
    newest, subject, confirmed = await _read(bus, filters, known, known.sequence, position_of)
    if confirmed or not known.term:
        return newest, subject, True
    if await _was_removed(bus, known):
        return (*max((newest, subject), (known, ""), key=lambda found: found[0].place), True)
    newest, subject, _ = await _read(bus, filters, known, 1, position_of)
    return newest, subject, False


async def _was_removed(bus: Bus, known: Published) -> bool:
    """Whether a fact is gone by a purge (its job was forgotten): its number is free, later ones are not, as after a power cut."""
    while True:
        try:
            next_stored = await first_stored(bus, FACTS, ALL, known.sequence)
            return next_stored is not None and next_stored.sequence > known.sequence
        except BusError:
            await asyncio.sleep(0.05)


async def _read(
    bus: Bus, filters: Sequence[str], known: Published, first: int, position_of: PositionOf
) -> tuple[Published, str, bool]:
    while True:
        newest, newest_subject, seen = Published(), "", False
        try:
            for subject in filters:
                async for stored in bus.read(FACTS, subject, first=max(first, 1)):
                    published = _place(stored, position_of)
                    if published is None:
                        continue
                    seen = seen or published.place == known.place
                    if published.place >= newest.place:
                        newest, newest_subject = published, stored.subject
            return newest, newest_subject, seen
        except BusError:
            await asyncio.sleep(0.05)


def _place(stored: Stored, position_of: PositionOf) -> Published | None:
    try:
        position = position_of(read_fact(stored))
    except RoverError:
        return None
    return (
        None
        if position is None
        else Published(read_envelope(stored.headers).term, *position, stored.sequence)
    )
