"""When a decider of this room is asked: once a turn, when it said, and never on half a history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rover_bus.events import virtual_time
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.node.turns import Following, Turns


def asked_at(history: Callable[[Turns], Coroutine[Any, Any, None]], *wakes: float | None) -> list[float]:
    """Return when the decider was asked, who each time names the next of `wakes`."""

    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        asked: list[float] = []
        begin_s = loop.time()

        def decide() -> float | None:
            asked.append(loop.time() - begin_s)
            named = wakes[len(asked) - 1] if len(asked) <= len(wakes) else None
            return None if named is None else begin_s + named

        await history(Turns(decide))
        return asked

    return virtual_time.run(run())


def test_all_that_arrives_in_one_turn_is_decided_on_once() -> None:
    async def history(turns: Turns) -> None:
        turns.begin()
        turns.soon()
        turns.soon()
        await asyncio.sleep(1.0)
        turns.soon()
        await asyncio.sleep(1.0)

    assert asked_at(history) == [0.0, 1.0]


def test_nothing_is_asked_before_the_beginning_nor_after_the_end() -> None:
    async def history(turns: Turns) -> None:
        turns.soon()
        await asyncio.sleep(1.0)
        turns.begin()
        await asyncio.sleep(1.0)
        turns.soon()
        turns.end()
        turns.soon()
        await asyncio.sleep(9.0)

    assert asked_at(history, 5.0) == [1.0]


def test_who_names_a_second_is_asked_then_unless_something_came_before() -> None:
    async def history(turns: Turns) -> None:
        turns.begin()
        await asyncio.sleep(3.0)
        turns.soon()
        await asyncio.sleep(9.0)

    assert asked_at(history, 2.0, 8.0, 5.0) == [0.0, 2.0, 3.0, 5.0]


def test_a_follower_has_caught_up_when_the_newest_of_all_subjects_has_reached_it() -> None:
    async def run() -> tuple[list[bytes], bool, list[bytes]]:
        broker = MemoryBroker(1)
        broker.ensure(STREAMS, BUCKETS)
        bus = broker.connect("test")
        for number in range(4):
            await bus.append(
                FACTS,
                f"rover.job.j{number % 2}.job.opened",
                b"%d" % number,
                headers={MESSAGE_ID: str(number)},
            )
        heard: list[Stored] = []
        following = Following(bus, ["rover.job.*.job.opened"], heard.append, lambda: None, "h.test")
        await following.begin()
        before = sorted(stored.body for stored in heard)
        await bus.append(FACTS, "rover.job.j9.job.opened", b"9", headers={MESSAGE_ID: "9"})
        await asyncio.sleep(1.0)
        await following.stop()
        return before, following.caught_up, [stored.body for stored in heard[len(before) :]]

    assert virtual_time.run(run()) == ([b"2", b"3"], True, [b"9"])
