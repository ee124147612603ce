"""Which format a stack writes, and whether this release may take part in it (docs/design/0070).

A release reads all formats from 1 to its own, and ignores fields that it does not know. A later format holds something else: an
event in a raised version, a record or a file that did not exist (later_forms.py). A stack goes on writing its format after an
upgrade, until `rover upgrade` raises it; from then on services of releases that cannot read it refuse to start, with the way back,
instead of passing over what they do not know. The Brain's process notes the format of a new stack; services that declare streams
look at it before they work and while they do, and so does each leader of a log, which writes it. It is raised in two steps
(docs/design/0073): first it is noted, so that nothing older starts any more, and nothing is written in it; then it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Protocol, TypeVar

import msgspec

from rover_bus import __version__
from rover_bus.events.bus import Bus
from rover_bus.events.errors import AccessDenied, BadMessage, BusError, PermanentError, WrongSequence
from rover_bus.events.streams import FORMAT_KEY, SETTINGS

T = TypeVar("T")
FORMAT = 2  # what this release writes in a new stack, and the last that it reads
FIRST_RELEASES = {1: "0.3.0", 2: "0.4.0"}  # the first that reads a format
LOOK_S = 10.0  # between two looks of a living service at the stack's format
ANSWER_S = 1.0


class NewerFormat(PermanentError):
    """What is stored was written in a format of a later release."""

    code = "newer_format"
    exit_code = 9


class WrittenFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the bucket ROVER_SETTINGS says under `format`, as JSON. `release`: the first that reads it.

    `before`: the format that is still written while this one is being raised to; 0: this one is.
    """

    format: int
    release: str
    before: int = 0

    @property
    def writes(self) -> int:
        """The format that is written now."""
        return self.before or self.format


async def noted_format(bus: Bus) -> tuple[WrittenFormat, int]:
    """Return what was said of the stack's format, and the revision of that: 0 where nothing was, then all releases read it.

    Raises NewerFormat, BadMessage, BusError.
    """
    entry = await bus.get(SETTINGS, FORMAT_KEY)
    if entry is None or entry.value is None:
        return WrittenFormat(format=1, release=FIRST_RELEASES[1]), 0
    try:
        written = msgspec.json.decode(entry.value, type=WrittenFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessage(f"the bucket {SETTINGS} holds no format under {FORMAT_KEY!r}: {error}") from None
    if written.format > FORMAT:
        raise NewerFormat(explain(written.format, "this stack", written.release))
    return written, entry.revision


async def written_format(bus: Bus) -> int:
    """Return the format that the stack writes. Raises NewerFormat, BadMessage, BusError."""
    written, _ = await noted_format(bus)
    return written.writes


class Writer(Protocol):
    """What makes bytes that are stored. `writes`: the format in which it does."""

    writes: int


async def take_format(bus: Bus, *writers: Writer) -> None:
    """Have a leader write as its stack does; as before where the bus does not say it in time. Raises NewerFormat.

    Asked before it decides for the first time: what it stores then, all members of a new job, may be the largest of all.
    """
    # A member that a former release started has no right to ask.
    with contextlib.suppress(BusError, BadMessage, AccessDenied, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            written = await written_format(bus)
        for each in writers:
            each.writes = written


async def follow_format(bus: Bus, *writers: Writer) -> None:
    """Have a leader go on to write as its stack does, for ever: a later format only once it is noted. Raises NewerFormat."""
    while True:
        await asyncio.sleep(LOOK_S)
        await take_format(bus, *writers)


async def unless_newer(bus: Bus, work: Awaitable[T]) -> T:
    """Do something on a bus as long as its stack is in a format that this release reads. Raises NewerFormat."""
    working, looking = asyncio.ensure_future(work), asyncio.create_task(_see_newer(bus))
    try:
        await asyncio.wait({working, looking}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await looking
        return await working
    finally:
        for task in (working, looking):
            task.cancel()
        await asyncio.gather(working, looking, return_exceptions=True)


async def _see_newer(bus: Bus) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await written_format(bus)
        except (BusError, BadMessage):
            continue  # what cannot be read now says nothing newer


async def note_format(bus: Bus) -> None:
    """Note the format of a stack of which nothing was said yet. Raises BusError."""
    said = WrittenFormat(format=FORMAT, release=FIRST_RELEASES[FORMAT])
    try:
        await bus.put(SETTINGS, FORMAT_KEY, msgspec.json.encode(said), expected=0)
    except WrongSequence:
        return  # it was noted before


def explain(written: int, what: str, release: str = "") -> str:
    """Say that a release came after a newer one, and the way back."""
    newer = f"release {release} or a later one" if release else "the release that wrote it"
    return (
        f"{what} is written in format {written}, and release {__version__} reads up to {FORMAT}: go on with {newer}, "
        f"or restore a backup from before the format was raised"
    )
