"""A server's life on the bus under a real master, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rover_bus.events import subjects, virtual_time
from rover_bus.events.codec import decode, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import JobEnded, JobStopRequested, JobSubmitted, PlanProposed, RolloutOpened
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.requests import JoinRequest
from rover_bus.events.streams import FACTS
from rover_bus.master.service import build_master
from rover_bus.ps.core import ServerCore
from rover_bus.ps.service import PartStorage, ServerRun, TableThread

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


class Beats:
    """A connection that counts the heartbeats it carries, and when; `late_s`: so long an answer is on its way."""

    def __init__(self, bus):
        self._bus = bus
        self.count, self.late_s = 0, 0.0
        self.sent_s = []

    def __getattr__(self, name):
        return getattr(self._bus, name)

    async def request(self, subject, body, **how):
        if not subject.endswith(".heartbeat"):
            return await self._bus.request(subject, body, **how)
        self.count += 1
        self.sent_s.append(asyncio.get_running_loop().time())
        answer = await self._bus.request(subject, body, **how)
        await asyncio.sleep(self.late_s)
        return answer


async def publish(bus, fact):
    await bus.append(FACTS, subjects.job_fact("j", fact.kind()), encode(fact))
    await asyncio.sleep(5.0)


@asynccontextmanager
async def job_with_a_server(core, tables):
    """A job that was submitted and planned, one master, one server; yields people's connection and the server's."""
    broker = MemoryBroker(seed=1)
    bus, beats, loop = broker.connect("people"), Beats(broker.connect("ps-0")), asyncio.get_running_loop()
    spec = JobSpec(name="j", program=["train"], data=DataSpec(train="x"), servers=RoleSpec(count=1))
    shell, _ = build_master(
        broker.connect("master-0"), "j", process=ServiceProcess("master-0", loop.time, lambda: 0)
    )
    hello = JoinRequest(member=Member("ps", 0, 1), nonce="n", addresses=["simulated:0"])
    storage = PartStorage(Path("parts"), tables.write)
    life = ServerRun(beats, "j", hello, TableThread(core, tables.run), storage)
    tasks = [asyncio.create_task(shell.run()), asyncio.create_task(life.live())]
    try:
        await publish(bus, JobSubmitted(job="j", spec=spec, uid="0123456789abcdef"))
        await publish(bus, PlanProposed(job="j", plan=1, workers=0, servers=1, hosts=["h"]))
        yield bus, beats
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stop_a_job_with_a_large_model():
    """Return how the job ended, and how often its server wrote its part."""
    tables = Tables()
    async with job_with_a_server(ServerCore(0, 1), tables) as (bus, _):
        await publish(bus, JobStopRequested(job="j", mode="drain"))
        return await asyncio.wait_for(end_of(bus), 10 * WRITING_S), tables.written


@pytest.mark.timeout(20)
def test_a_server_that_writes_a_large_part_is_busy_and_not_lost():
    ended, written = virtual_time.run(stop_a_job_with_a_large_model())
    assert (ended.state, ended.reason) == ("stopped", "asked")
    assert len(ended.summary["parts"]) == 1
    assert written == 1


async def beats_of_a_minute(pushing):
    """Return how often a server beats while workers push, or do not."""
    core = ServerCore(0, 1)
    async with job_with_a_server(core, Tables()) as (_, beats):
        before = beats.count
        for _ in range(600):
            core.counters["pushes"] = core.counters.get("pushes", 0) + pushing
            await asyncio.sleep(0.1)
        return beats.count - before


def test_a_server_beats_less_often_while_workers_push_because_no_order_is_urgent_then():
    idle, training = (virtual_time.run(beats_of_a_minute(pushing)) for pushing in (0, 1))
    assert idle >= 110
    assert 60 <= training <= 85


class BusyTables(Tables):
    """Whatever is asked takes longer than a heartbeat waits for it."""

    async def run(self, function):
        async with self.turn:
            await asyncio.sleep(0.4)
            return function()


async def longest_gap_of_a_minute():
    """Return the most seconds between two beats of a server that trains, while its tables are busy and its master is slow."""
    core = ServerCore(0, 1)
    async with job_with_a_server(core, BusyTables()) as (_, beats):
        beats.late_s = 0.45
        await asyncio.sleep(5.0)
        beats.sent_s.clear()
        for _ in range(600):
            core.counters["pushes"] = core.counters.get("pushes", 0) + 1
            await asyncio.sleep(0.1)
        return max(after - before for before, after in zip(beats.sent_s, beats.sent_s[1:], strict=False))


def test_neither_a_slow_master_nor_busy_tables_stretch_the_time_between_two_beats():
    assert virtual_time.run(longest_gap_of_a_minute()) <= 1.0 + 1e-6, "the heartbeat of the job"


async def beats_after_news():
    """Return how many beats follow within 50 ms of hearing that slots are to move, and of hearing nothing."""
    core = ServerCore(0, 1)
    async with job_with_a_server(core, Tables()) as (bus, beats):
        found = []
        for news in (True, False):
            core.counters["pushes"] = (
                core.counters.get("pushes", 0) + 1
            )  # a worker trains: the next beat is not due soon
            before = beats.count
            while beats.count == before:  # noqa: ASYNC110 - virtual time is what passes
                await asyncio.sleep(0.001)
            before = beats.count
            if news:
                fact = RolloutOpened(job="j", rollout=1, goal=[], slots=1)
                await bus.append(FACTS, subjects.job_fact("j", fact.kind()), encode(fact))
            await asyncio.sleep(0.05)
            found.append(beats.count - before)
        return found


def test_a_server_asks_for_orders_at_once_when_it_hears_that_slots_are_to_move():
    assert virtual_time.run(beats_after_news()) == [1, 0]
