"""The timeline of a stack: a random id that a restore from a backup draws again (protocol P21, docs/design/0071).

A log that is restored is older than the world. What bears another timeline is stale; a process of the control account that lived
through a restore remembers what is erased, so it ends, and the one that is started in its place begins from what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.errors import BadMessage, BusError, PermanentError
from rover_bus.events.streams import SETTINGS, TIMELINE_KEY

T = TypeVar("T")
AGAIN_S = 0.5


class StackRestored(PermanentError):
    """The stack was restored from a backup while this process was away from it."""

    code = "restored"
    exit_code = 4


async def stack_timeline(bus: Bus) -> int:
    """Return the stack's timeline: 0 until it is restored for the first time. Raises BadMessage, BusError."""
    entry = await bus.get(SETTINGS, TIMELINE_KEY)
    if entry is None or not entry.value:
        return 0
    if not entry.value.isdigit() or len(entry.value) > 20:
        raise BadMessage(f"the bucket {SETTINGS} holds no timeline under {TIMELINE_KEY!r}")
    return int(entry.value)


async def note_timeline(bus: Bus, timeline: int) -> None:
    """Say that a new timeline begins. Raises BusError."""
    await bus.put(SETTINGS, TIMELINE_KEY, str(timeline).encode())


async def unless_restored(bus: Bus, began: int, work: Awaitable[T]) -> T:
    """Do something on a bus, unless its stack is restored from a backup meanwhile. Raises StackRestored then.

    began: the timeline at the start. It is looked at whenever the connection is back: no broker is restored without being away.
    """
    back = asyncio.Event()

    def note(state: ConnectionState) -> None:
        if state == "connected":
            back.set()

    bus.on_connection(note)
    working = asyncio.ensure_future(work)
    restored = asyncio.create_task(_see_restored(bus, began, back))
    try:
        await asyncio.wait({working, restored}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        await restored
        raise StackRestored(
            "the stack was restored from a backup: this process begins again from what is stored"
        )
    finally:
        for task in (working, restored):
            task.cancel()
        await asyncio.gather(working, restored, return_exceptions=True)


async def _see_restored(bus: Bus, began: int, back: asyncio.Event) -> None:
    while True:
        await back.wait()
        back.clear()
        try:
            if await stack_timeline(bus) != began:
                return
        except BusError:
            await asyncio.sleep(AGAIN_S)
            back.set()
