"""A server's life on the bus under a real master, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rover_bus.events import subjects, virtual_time
from rover_bus.events.codec import decode, encode
from rover_bus.events.facts import JobEnded, JobStopRequested, JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import FACTS
from rover_bus.master.service import build_master
from rover_bus.ps.core import ServerCore
from rover_bus.ps.service import ServerLife

WRITING_S = 60.0


class Tables:
    """The thread that owns the tables: one thing after the other, and writing a part takes a minute."""

    def __init__(self):
        self.turn = asyncio.Lock()
        self.written = 0

    async def run(self, function):
        async with self.turn:
            before = self.written
            result = function()
            if self.written > before:
                await asyncio.sleep(WRITING_S)
            return result

    def write(self, core, path):
        self.written += 1
        return 1


async def end_of(bus):
    while True:
        stored = await bus.last(FACTS, subjects.job_facts("j", "job.ended"))
        if stored is not None:
            return decode(stored.body, JobEnded)
        await asyncio.sleep(0.5)


async def stop_a_job_with_a_large_model():
    """Return how the job ended, and how often its server wrote its part."""
    broker = MemoryBroker(seed=1)
    bus, loop, tables = broker.connect("people"), asyncio.get_running_loop(), Tables()
    spec = JobSpec(name="j", program=["train"], data=DataSpec(train="x"), servers=RoleSpec(count=1))
    shell, _ = build_master(
        broker.connect("master-0"), "j", holder="master-0", clock=loop.time, wall_ms=lambda: 0
    )
    life = ServerLife(
        broker.connect("ps-0"),
        "j",
        Member("ps", 0, 1),
        ServerCore(0, 1),
        tables.run,
        tables.write,
        nonce="n",
        addresses=["simulated:0"],
        directory=Path("parts"),
    )
    tasks = [asyncio.create_task(shell.run()), asyncio.create_task(life.live())]
    try:
        for fact in (
            JobSubmitted(job="j", spec=spec, uid="0123456789abcdef"),
            PlanProposed(job="j", plan=1, workers=0, servers=1, hosts=["h"]),
            JobStopRequested(job="j", mode="drain"),
        ):
            await bus.append(FACTS, subjects.job_fact("j", fact.kind()), encode(fact))
            await asyncio.sleep(5.0)
        return await asyncio.wait_for(end_of(bus), 10 * WRITING_S), tables.written
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.timeout(20)
def test_a_server_that_writes_a_large_part_is_busy_and_not_lost():
    ended, written = virtual_time.run(stop_a_job_with_a_large_model())
    assert (ended.state, ended.reason) == ("stopped", "asked")
    assert len(ended.summary["parts"]) == 1
    assert written == 1
