"""The format of a stack: noted once, and refused by a release that comes after a later one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rover_bus.events import formats
from rover_bus.events.codec import encode, format_of
from rover_bus.events.errors import BadMessage
from rover_bus.events.formats import (
    FIRST_RELEASES,
    FORMAT,
    LOOK_S,
    NewerFormat,
    note_format,
    unless_newer,
    written_format,
)
from rover_bus.events.log import LogBatch
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import FORMAT_KEY, SETTINGS
from rover_bus.events.virtual_time import run


def test_a_stack_keeps_the_format_that_its_first_brain_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def program() -> None:
        bus = MemoryBroker().connect("brain")
        assert await written_format(bus) == 1, "what nothing is said of, all releases read"
        await note_format(bus)
        assert await written_format(bus) == FORMAT
        monkeypatch.setattr(formats, "FORMAT", FORMAT + 1)
        monkeypatch.setitem(FIRST_RELEASES, FORMAT + 1, "9.0.0")
        await note_format(bus)
        assert await written_format(bus) == FORMAT, "an upgrade goes on writing what others read"

    run(program())


def test_a_release_that_comes_after_a_later_one_is_refused_with_the_way_back() -> None:
    async def program() -> None:
        bus = MemoryBroker().connect("brain")
        await bus.put(SETTINGS, FORMAT_KEY, b'{"format": 7, "release": "9.1.0", "more": 1}')
        with pytest.raises(
            NewerFormat, match=r"format 7.* up to 2: go on with release 9.1.0 or a later one"
        ) as refused:
            await written_format(bus)
        assert refused.value.exit_code == 9
        await bus.put(SETTINGS, FORMAT_KEY, b"seven")
        with pytest.raises(BadMessage, match="no format"):
            await written_format(bus)

    run(program())


def test_each_format_names_the_first_release_that_reads_it() -> None:
    assert sorted(FIRST_RELEASES) == list(range(1, FORMAT + 1))


def test_a_batch_says_its_format_to_a_reader_that_knows_nothing_else_of_it() -> None:
    batch = LogBatch(job="j", timeline=1, term=1, holder="m", number=0, records=[], format=3)
    assert format_of(encode(batch)) == 3
    assert format_of(encode({"format": 3, "records": [{"type": "of.tomorrow.v1"}]})) == 3
    for unread in (b"", b"\xc1", msgspec.msgpack.encode({"format": "3"})):
        assert format_of(unread) == 0


def test_a_stack_that_is_being_raised_writes_the_former_format_and_lets_nothing_older_in() -> None:
    async def program() -> None:
        bus = MemoryBroker().connect("brain")
        await bus.put(SETTINGS, FORMAT_KEY, b'{"format": 2, "release": "0.4.0", "before": 1}')
        assert await written_format(bus) == 1
        await bus.put(SETTINGS, FORMAT_KEY, b'{"format": 7, "release": "9.1.0", "before": 1}')
        with pytest.raises(NewerFormat):
            await written_format(bus)

    run(program())


def test_a_service_ends_when_its_stack_is_raised_beyond_what_it_reads() -> None:
    async def program() -> None:
        bus = MemoryBroker().connect("brain")
        await note_format(bus)
        working = asyncio.ensure_future(unless_newer(bus, asyncio.sleep(10 * LOOK_S, "done")))
        await asyncio.sleep(2 * LOOK_S)
        assert not working.done()
        await bus.put(SETTINGS, FORMAT_KEY, b'{"format": 7, "release": "9.1.0"}')
        with pytest.raises(NewerFormat, match=r"release 9\.1\.0"):
            await working
        await bus.put(SETTINGS, FORMAT_KEY, b'{"format": 2, "release": "0.4.0"}')
        assert await unless_newer(bus, asyncio.sleep(10 * LOOK_S, "done")) == "done"

    run(program())
