"""How far the followers of a stream are, and what was purged: so that nothing is purged that a living follower has not read.

Each follower reports its position (a value in a memory bucket that expires unless it is renewed); retention.py asks for the lowest
before it purges a subject, and leaves a mark there. A follower that was away compares its position with these marks: what it missed
it can only read as a state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from rover_bus import __version__
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError
from rover_bus.events.formats import FORMAT
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import POSITIONS, PURGED
from rover_bus.events.subjects import matches

REPORT_S = 15.0
POSITION_TTL_S = 60.0
EVERY = ">"  # every follower's key
log = get_logger("rover.positions")


class FollowerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored under `subjects` up to stream sequence `position` has been read, and needs no second reading.

    `release`, `format`: the follower's, and the last format that it reads (formats.py); "" and 1 of one that says neither.
    """

    stream: str
    subjects: list[str]
    position: int
    release: str = ""
    format: int = 1


def of_job(job: str, name: str = ">") -> str:
    """Return the key of a follower that reads facts of one job, or of hosts for one job; without a name: of all of them."""
    return f"job.{job}.{name}"


def of_all(name: str = ">") -> str:
    """Return the key of a follower that reads facts of every job: the Brain, a daemon."""
    return f"all.{name}"


async def report(bus: Bus, key: str, position: FollowerPosition) -> None:
    """Say once how far a follower is, and which formats it reads. Raises BusError."""
    said = msgspec.structs.replace(position, release=__version__, format=FORMAT)
    await bus.put(POSITIONS, key, msgspec.json.encode(said), ttl_s=POSITION_TTL_S)


async def report_for_ever(bus: Bus, key: str, position: Callable[[], FollowerPosition]) -> None:
    """Report again and again how far a follower is: one that is silent for POSITION_TTL_S does not count."""
    while True:
        with contextlib.suppress(BusError):
            await report(bus, key, position())
        await asyncio.sleep(REPORT_S)


async def of_followers(bus: Bus, patterns: list[str]) -> list[FollowerPosition]:
    """Return the positions of the living followers under these keys. Raises BusError."""
    found: list[FollowerPosition] = []
    for pattern in patterns:
        for entry in (await bus.entries(POSITIONS, pattern)).values():
            try:
                found.append(msgspec.json.decode(entry.value or b"", type=FollowerPosition))
            except (msgspec.DecodeError, ValueError) as error:
                log.warning(
                    "the position of a follower cannot be read: it is passed over",
                    pattern=pattern,
                    why=str(error),
                )
    return found


def floor(followers: list[FollowerPosition], stream: str, subject: str) -> int | None:
    """Return the lowest position of those that follow a subject, None where none does: nothing above it may be purged."""
    return min(
        (
            each.position
            for each in followers
            if each.stream == stream and any(matches(pattern, subject) for pattern in each.subjects)
        ),
        default=None,
    )


async def mark_purged(bus: Bus, subject: str, before: int) -> None:
    """Remember that facts on a subject below a sequence are gone. Written before they go. Raises BusError."""
    await bus.put(PURGED, subject, str(before).encode())


async def purged_beyond(bus: Bus, subjects: list[str], position: int) -> list[str]:
    """Return the subjects of FACTS under which something behind `position` was purged. Raises BusError."""
    found: set[str] = set()
    for pattern in subjects:
        for subject, entry in (await bus.entries(PURGED, pattern)).items():
            value = entry.value or b""
            if value.isdigit() and int(value) > position + 1:
                found.add(subject)
    return sorted(found)
