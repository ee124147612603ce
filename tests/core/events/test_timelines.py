"""A process that lived through a restore of its stack ends: what it remembers is erased."""

from __future__ import annotations

import asyncio

import pytest

from rover_bus.events.errors import BadMessage
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import SETTINGS, TIMELINE_KEY
from rover_bus.events.timelines import StackRestored, note_timeline, stack_timeline, unless_restored
from rover_bus.events.virtual_time import run


@pytest.mark.parametrize("restored", [True, False])
def test_work_ends_when_the_stack_that_comes_back_is_in_another_timeline(restored: bool) -> None:
    async def program() -> str:
        broker = MemoryBroker()
        bus, other = broker.connect("daemon"), broker.connect("restore")
        await note_timeline(other, 5)

        async def work() -> str:
            await asyncio.sleep(5.0)
            return "done"

        working = asyncio.create_task(unless_restored(bus, await stack_timeline(bus), work()))
        await asyncio.sleep(1.0)
        if restored:
            await note_timeline(other, 6)
        await asyncio.sleep(1.0)
        assert not working.done(), "no broker is restored without being away"
        broker.restart(0.2)
        await asyncio.sleep(1.0)
        assert working.done() is restored
        return await working

    if restored:
        with pytest.raises(StackRestored, match="restored from a backup"):
            run(program())
    else:
        assert run(program()) == "done"


def test_a_timeline_that_is_none_is_not_believed() -> None:
    async def program() -> None:
        bus = MemoryBroker().connect("daemon")
        assert await stack_timeline(bus) == 0
        await bus.put(SETTINGS, TIMELINE_KEY, b"soon")
        await stack_timeline(bus)

    with pytest.raises(BadMessage, match="no timeline"):
        run(program())
