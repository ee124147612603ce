"""Which format a stack writes, and whether this release may take part in it (docs/design/0070).

A release reads all formats from 1 to its own, and ignores fields that it does not know. A later format holds something else: an
event in a raised version, a record or a file that did not exist. A stack goes on writing its format after an upgrade, until it is
raised; from then on services of releases that cannot read it refuse to start, with the way back, instead of passing over what they
do not know. The Brain's process notes the format of a new stack; every service that declares streams looks at it before it works.
"""

from __future__ import annotations

import msgspec

from rover_bus import __version__
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BadMessage, PermanentError, WrongSequence
from rover_bus.events.streams import FORMAT_KEY, SETTINGS

FORMAT = 1  # what this release writes in a new stack, and the last that it reads
FIRST_RELEASES = {1: "0.3.0"}  # the first that reads a format


class NewerFormat(PermanentError):
    """What is stored was written in a format of a later release."""

    code = "newer_format"
    exit_code = 9


class WrittenFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket ROVER_SETTINGS says under `format`, as JSON. `release`: the first that reads it."""

    format: int
    release: str


async def written_format(bus: Bus) -> int:
    """Return the format that the stack writes; of one that nothing was said of yet, this release's own.

    Raises NewerFormat, BadMessage, BusError.
    """
    entry = await bus.get(SETTINGS, FORMAT_KEY)
    if entry is None or entry.value is None:
        return FORMAT
    try:
        written = msgspec.json.decode(entry.value, type=WrittenFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessage(f"the bucket {SETTINGS} holds no format under {FORMAT_KEY!r}: {error}") from None
    if written.format > FORMAT:
        raise NewerFormat(explain(written.format, "this stack", written.release))
    return written.format


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
