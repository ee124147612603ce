"""Looks that end: the first message of a stream from a place on, the newest fact of a kind, the present values of a bucket.

Apart because a read that is left early must be closed, and a watch that is not wanted any more must be stopped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

from rover_bus.events.bus import Bus, Entry, Stored, Subscription
from rover_bus.events.errors import BadMessage
from rover_bus.events.fact import Fact
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS

OneFact = TypeVar("OneFact", bound=Fact)


async def first_stored(bus: Bus, stream: str, subject: str, first: int = 1) -> Stored | None:
    """Return the first message on a subject (wildcards allowed) from stream sequence `first` on, None when there is none.

    Raises BusError.
    """
    async with aclosing(open_read(bus, stream, subject, first)) as reading:
        return await anext(reading, None)


async def last_fact(bus: Bus, subject: str, kind: type[OneFact]) -> OneFact | None:
    """Return the newest fact of a kind on a subject that can be believed, None where there is none. Raises BusError.

    What was stored there by another hand hides none of before: then all that lies on the subject is read.
    """
    stored = await bus.last(FACTS, subject)
    fact = _believed(stored, kind) if stored is not None else None
    if stored is not None and fact is None:
        async for each in bus.read(FACTS, subject):
            fact = _believed(each, kind) or fact
    return fact


def _believed(stored: Stored, kind: type[OneFact]) -> OneFact | None:
    try:
        fact = read_fact(stored)
    except BadMessage:
        return None
    return fact if isinstance(fact, kind) else None


def open_read(bus: Bus, stream: str, subject: str, first: int) -> AsyncGenerator[Stored, None]:
    """Return a read that may be left before its end: wrap it in `aclosing`. Both adapters write theirs as generators."""
    return cast(AsyncGenerator[Stored, None], bus.read(stream, subject, first=max(first, 1)))


async def watched_entries(
    watch: Callable[[str, str, Callable[[Entry], None]], Awaitable[Subscription]], bucket: str, pattern: str
) -> dict[str, Entry]:
    """Return the entries of a bucket now, by key: a watch hands them over before it stands. Raises BusError."""
    found: dict[str, Entry] = {}

    def take(entry: Entry) -> None:
        if entry.value is None:
            found.pop(entry.key, None)
        else:
            found[entry.key] = entry

    await (await watch(bucket, pattern, take)).stop()
    return found
