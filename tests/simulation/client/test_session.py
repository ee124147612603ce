"""Sessions against a real master on the bus in memory, in virtual time: the scenarios of issue 4 as a worker lives them."""

from __future__ import annotations

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
