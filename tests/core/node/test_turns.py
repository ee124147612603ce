"""When the facts of a turn were received: what is done in the turn can say how long after them it is done."""

from __future__ import annotations

import asyncio

from rover_bus.node.turns import Turns, heard_s


def test_a_turn_knows_when_its_first_fact_was_received_and_the_next_one_does_not() -> None:
    known: list[float | None] = []

    def decide() -> None:
        known.append(heard_s())

    async def main() -> None:
        turns = Turns(decide)
        turns.soon(1.0)  # before there is anything to decide on
        turns.begin()
        await asyncio.sleep(0)
        turns.soon()
        turns.soon(2.0)
        turns.soon(3.0)
        await asyncio.sleep(0)
        turns.soon()
        await asyncio.sleep(0)
        turns.end()

    asyncio.run(main())
    assert known == [None, 2.0, None]
    assert heard_s() is None
