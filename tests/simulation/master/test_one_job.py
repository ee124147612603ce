"""One job through the shell on the bus in memory: submitted, planned, leased, committed, taken over, ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from rover_bus.brain.service import build_brain
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import decode, decode_any, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BusError
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec, WorkersSpec
from rover_bus.events.leadership import read_leader
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.requests import (
    METHODS,
    FinishedRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    LeaveRequest,
    Progress,
    RegisterRequest,
    Reply,
    Request,
)
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, STREAMS
from rover_bus.events.virtual_time import run
from rover_bus.master.service import build_master

NAMES = {cls: name for name, cls in METHODS.items()}


async def call(bus: Bus, job: str, request: Request) -> Reply:
    """Ask whoever leads, as often as it takes."""
    while True:
        try:
            entry = await bus.get(LEADERS, job)
            leader = read_leader(entry)
            if leader and leader.term:
                message = await bus.request(
                    subjects.rpc(job, leader.term, NAMES[type(request)]), encode(request), timeout_s=1.0
                )
                reply = decode_any(message.body)
                assert isinstance(reply, Reply)
                return reply
        except BusError:
            pass
        await asyncio.sleep(0.05)


async def work(bus: Bus, job: str, index: int, done: list[tuple[int, int]]) -> None:
    """A worker that commits lease after lease."""
    joined = await call(
        bus, job, JoinRequest(member=Member("worker", index, 1), nonce=f"n{index}", host="h", pid=index)
    )
    while not isinstance(joined, JoinReply):
        await asyncio.sleep(0.1)
        joined = await call(bus, job, JoinRequest(member=Member("worker", index, 1), nonce=f"n{index}"))
    who = {"member": joined.member, "timeline": joined.timeline, "generation": joined.generation}
    await call(bus, job, RegisterRequest(**who, dataset=Dataset(records=1050, batch_size=10, epochs=2)))
    request, progress = 0, Progress()
    while True:
        request += 1
        reply = await call(bus, job, LeaseRequest(**who, request=request, rate=2.0, progress=progress))
        assert isinstance(reply, LeaseReply), reply
        if reply.outcome == "closed":
            break
        progress = Progress()
        if reply.outcome == "granted":
            await asyncio.sleep(0.3 * sum(reply.counts))
            for first, count in zip(reply.firsts, reply.counts, strict=True):
                done += [(reply.epoch, batch) for batch in range(first, first + count)]
            progress = Progress(
                tokens=reply.tokens, uptos=[a + n for a, n in zip(reply.firsts, reply.counts, strict=True)]
            )
    await call(bus, job, LeaveRequest(**who))


async def hold(bus: Bus, job: str) -> None:
    """A server that beats its heart, and writes its part when it is told to."""
    ask = JoinRequest(member=Member("ps", 0, 1), nonce="s", addresses=["tcp:127.0.0.1:1"])
    joined = await call(bus, job, ask)
    while not isinstance(joined, JoinReply):
        await asyncio.sleep(0.1)
        joined = await call(bus, job, ask)
    who = {"member": joined.member, "timeline": joined.timeline, "generation": joined.generation}
    while True:
        heard = await call(bus, job, HeartbeatRequest(**who))
        if isinstance(heard, HeartbeatReply) and heard.order == "finish":
            await call(bus, job, FinishedRequest(**who, path=f"{heard.path}.npz"))
            return
        await asyncio.sleep(0.5)


async def submit(bus: Bus, job: str, workers: int) -> None:
    spec = JobSpec(
        name=job,
        program=["true"],
        data=DataSpec(train="x", batch_size=10, epochs=2),
        workers=WorkersSpec(count=workers),
        leases=LeaseSpec(heartbeat_s=3.0),
    )
    host = HostRegistered(host="h", capacity=HostCapacity(cores=2, memory_bytes=1 << 30), daemon="d1")
    await bus.append(FACTS, subjects.host_fact("h", "registered"), encode(host))
    fact = JobSubmitted(job=job, spec=spec, uid="0123456789abcdef")
    await bus.append(FACTS, subjects.job_fact(job, fact.kind()), encode(fact))


async def ended(bus: Bus, job: str) -> JobEnded:
    while True:
        stored = await bus.last(FACTS, subjects.job_facts(job, "job.ended"))
        if stored:
            return decode(stored.body, JobEnded)
        await asyncio.sleep(0.2)


def serve(
    broker: MemoryBroker,
    tasks: list[asyncio.Task[None]],
    build: Callable[[Bus, str], Awaitable[None]],
    name: str,
) -> asyncio.Task[None]:
    task = asyncio.create_task(build(broker.connect(name), name))  # type: ignore[arg-type]
    tasks.append(task)
    return task


async def lead(bus: Bus, holder: str, job: str) -> None:
    loop = asyncio.get_running_loop()
    shell, _ = build_master(bus, job, process=ServiceProcess(holder, loop.time, lambda: 0))
    await shell.run()


def test_a_job_is_trained_once_while_its_master_is_killed() -> None:
    async def scenario() -> tuple[JobEnded, list[tuple[int, int]], float]:
        broker = MemoryBroker(seed=1)
        broker.ensure(STREAMS, BUCKETS)
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        bus = broker.connect("cli")

        async def brain(bus: Bus, name: str) -> None:
            shell, _ = build_brain(bus, process=ServiceProcess(name, loop.time, lambda: 0), timeline=7)
            await shell.run()

        serve(broker, tasks, brain, "brain")
        first = serve(broker, tasks, lambda b, n: lead(b, n, "j"), "master-0")
        await asyncio.sleep(0.5)
        serve(broker, tasks, lambda b, n: lead(b, n, "j"), "master-1")
        await submit(bus, "j", 2)
        server = asyncio.create_task(hold(broker.connect("ps"), "j"))
        done: list[tuple[int, int]] = []
        workers = [asyncio.create_task(work(broker.connect(f"w{i}"), "j", i, done)) for i in range(2)]
        await asyncio.sleep(random.Random(1).uniform(2, 10))
        broker.kill("master-0")
        first.cancel()
        killed = loop.time()
        await asyncio.gather(*workers)
        await server
        result = await ended(bus, "j")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return result, done, loop.time() - killed

    result, done, _ = run(scenario())
    assert result.state == "completed", result
    assert result.summary["samples_committed"] == 2100
    assert sorted(done) == [(epoch, batch) for epoch in range(2) for batch in range(105)]
    assert result.summary["masters_elected"] == 2
