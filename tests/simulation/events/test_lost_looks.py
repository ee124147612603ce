"""What a member asks of the bus may be lost: the answer of a master, and the look at who leads as well (P19)."""

from __future__ import annotations

import asyncio

import pytest


@pytest.mark.parametrize("cut_at_s", [0.0, 0.4, 0.52])
def test_a_member_cut_off_for_a_moment_is_received_again_long_before_three_heartbeats_have_passed(
    stage, cut_at_s
):
    """The way breaks for 0.3 s; whatever was on it then, the request or the look for the leader, is sent again."""

    async def scenario(it):
        loop = asyncio.get_running_loop()
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.broker.partition("m0")
        asking, began_s = asyncio.create_task(worker.beat()), loop.time()
        await asyncio.sleep(cut_at_s)
        it.broker.partition(worker.name)
        it.broker.heal("m0")
        await asyncio.sleep(0.3)
        it.broker.heal(worker.name)
        await asking
        return loop.time() - began_s

    assert stage(scenario) < 3.0 - 1.0
