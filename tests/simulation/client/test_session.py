"""Sessions against a real master on the bus in memory, in virtual time: the scenarios of issue 4 as a worker lives them."""

from __future__ import annotations

import asyncio
from typing import Any

Play = Any
World = Any


async def two_workers(world: World) -> Any:
    await world.begin()
    world.worker("w0", 0)
    world.worker("w1", 1)
    return await world.ended()


def test_two_workers_train_every_batch_of_every_epoch_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        end = await two_workers(world)
        assert end.state == "completed", end
        assert end.summary["samples_committed"] == 2100
        assert world.every_batch_was_applied()
        assert set(world.applied.values()) == {1}
        assert all(len(done) > 50 for done in world.trained.values())

    play(scenario)


def test_a_silent_worker_is_lost_although_its_successor_asks_to_join_meanwhile(play: Play) -> None:
    """A join for the next life of a place is no sign of life of the present one."""

    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        world.worker("old", 0)
        await asyncio.sleep(3.0)
        world.kill("old")
        world.worker("new", 0, 2)
        assert (await world.ended(60.0)).state == "completed"
        assert world.every_batch_was_applied()

    play(scenario)
