"""A small world in virtual time: a broker, real masters, a simulated server that applies a batch once, workers on real sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from rover_bus.client.lease import Assigned, Work
from rover_bus.client.session import Session
from rover_bus.client.spans import HighWater
from rover_bus.client.worker import ANY_PLACE, Worker
from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.bus import MESSAGE_ID
from rover_bus.events.codec import decode, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import Fact, JobEnded, JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec, WorkersSpec
from rover_bus.events.memory_broker import CALM, Faults, MemoryBroker
from rover_bus.events.requests import (
    FinishedRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    RefusedReply,
)
from rover_bus.events.streams import FACTS
from rover_bus.events.virtual_time import run
from rover_bus.master.decider import MasterDecider
from rover_bus.master.service import build_master

T = TypeVar("T")
JOB = "j"


class World:
    """One job of `records` samples; everything is reached from here."""

    session_type = Session

    def __init__(
        self, seed: int, faults: Faults = CALM, records: int = 1050, epochs: int = 2, **spec: Any
    ) -> None:
        self.broker = MemoryBroker(seed=seed, faults=faults)
        self.dataset = Dataset(records=records, batch_size=10, epochs=epochs)
        self.applied: dict[
            tuple[int, int, int], int
        ] = {}  # (generation, epoch, batch) -> how often it was pushed
        self.trained: dict[str, list[Assigned]] = {}
        self.stream = HighWater({}, [])  # what workers can read of a stream; tests let it grow
        self.learnt: dict[tuple[str, int], int] = {}  # (partition, offset) -> how often it was applied
        self.sessions: dict[str, Session] = {}
        self.deciders: dict[str, MasterDecider] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.broken: list[BaseException] = []
        defaults: dict[str, Any] = {"leases": LeaseSpec(target_s=2.0)}
        self.spec = JobSpec(
            name=JOB,
            program=["train"],
            data=DataSpec(train="x", batch_size=10, epochs=epochs),
            workers=WorkersSpec(count=2),
            **{**defaults, **spec},
        )

    # -- who takes part

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks[name] = asyncio.create_task(work, name=name)

    async def begin(self, workers: int = 2, servers: int = 1) -> None:
        """Submit the job, plan it, start a master and the server. Workers are started by the test."""
        for fact in (
            JobSubmitted(job=JOB, spec=self.spec, uid="0123456789abcdef"),
            PlanProposed(job=JOB, plan=1, workers=workers, servers=servers, hosts=["h"]),
        ):
            await self.publish(fact, subjects.job_fact(JOB, fact.kind()))
        self.start("master-0", self.lead("master-0"))
        for index in range(servers):
            self.start(f"ps-{index}", self.serve(index))

    async def publish(self, fact: Fact, subject: str) -> None:
        bus, identity = self.broker.connect("cli"), f"{subject}:{len(self.tasks)}"
        await insist(lambda: bus.append(FACTS, subject, encode(fact), headers={MESSAGE_ID: identity}))

    async def lead(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        shell, self.deciders[name] = build_master(
            self.broker.connect(name), JOB, process=ServiceProcess(name, loop.time, lambda: 0)
        )
        await shell.run()

    async def serve(self, index: int, incarnation: int = 1) -> None:
        """A server's life on the bus: joins, beats, and finishes when it is told to."""
        master = Master(self.broker.connect(f"ps-{index}"), JOB)
        member = Member("ps", index, incarnation)
        while not isinstance(  # noqa: ASYNC110 - it is time that is waited for
            joined := await master.ask(
                JoinRequest(member=member, nonce=str(member), addresses=["tcp:127.0.0.1:1"])
            ),
            JoinReply,
        ):
            await asyncio.sleep(0.1)
        generation = joined.generation
        while True:
            who = {"member": member, "timeline": joined.timeline, "generation": generation}
            reply = await master.ask(HeartbeatRequest(**who))
            if isinstance(reply, HeartbeatReply) and reply.order == "finish":
                await master.ask(FinishedRequest(**who, path=f"{reply.path}.npz"))
            elif isinstance(reply, RefusedReply) and reply.code == "stale_generation":
                return  # this life of the server belongs to the past
            await asyncio.sleep(0.5)

    def worker(
        self, name: str, index: int = 0, incarnation: int = 1, *, external: bool = False, **how: Any
    ) -> None:
        """Start a worker of the platform's, or one that nobody started for us."""
        member = ANY_PLACE if external else Member("worker", index, incarnation)
        self.start(name, self.work(name, Worker(member, f"nonce-{name}", host="h", external=external), **how))

    async def work(
        self,
        name: str,
        worker: Worker,
        step_s: float = 0.05,
        meet: Callable[[Session, Assigned], Awaitable[None]] | None = None,
        bad: Callable[[Assigned], Work] = lambda _: Work(),
    ) -> None:
        session = self.session_type(self.broker.connect(name), JOB, worker)
        self.sessions[name] = session
        done = self.trained.setdefault(name, [])
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(session.run())
                watching = tasks.create_task(self.watch(session)) if self.dataset.streaming else None
                await session.register(self.dataset)
                while (assigned := await session.take()) is not None:
                    await asyncio.sleep(step_s)
                    if meet is not None:
                        await meet(session, assigned)
                    repeated = self.push(assigned)
                    work = bad(assigned)
                    routing = await session.routing()
                    servers = tuple(server.incarnation for server in routing.servers) if routing else ()
                    session.finish(assigned, work._replace(samples_retrained=10 * repeated), servers)
                    done.append(assigned)
                if watching is not None:
                    watching.cancel()
                await session.leave()
        except* RoverError as errors:
            self.broken += errors.exceptions

    async def watch(self, session: Session) -> None:
        """Tell a worker's session how far its stream has grown."""
        while True:
            session.see(HighWater(dict(self.stream.rows), list(self.stream.sealed)))
            await asyncio.sleep(0.1)

    def push(self, assigned: Assigned) -> bool:
        """Apply a batch once, as servers do (P2); True when it was held already."""
        key = assigned.generation, assigned.epoch, assigned.number
        self.applied[key] = self.applied.get(key, 0) + 1
        if assigned.records is not None and self.applied[key] == 1:
            partition, first, end = assigned.records
            for offset in range(first, end):
                self.learnt[partition, offset] = self.learnt.get((partition, offset), 0) + 1
        return self.applied[key] > 1

    def kill(self, name: str) -> None:
        """SIGKILL: nothing of the process runs on, nobody says goodbye."""
        self.broker.kill(name)
        self.tasks.pop(name).cancel()

    # -- what came of it

    async def ended(self, within_s: float = 600.0) -> JobEnded:
        bus, subject = self.broker.connect("observer"), subjects.job_facts(JOB, "job.ended")
        async with asyncio.timeout(within_s):
            while not (stored := await insist(lambda: bus.last(FACTS, subject))):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        return decode(stored.body, JobEnded)

    async def facts(self, kind: str) -> list[bytes]:
        bus = self.broker.connect("observer")
        return [stored.body async for stored in bus.read(FACTS, subjects.job_facts(JOB, kind))]

    def every_batch_was_applied(self, generation: int = 0) -> bool:
        whole = {(generation, e, k) for e in range(self.dataset.epochs) for k in range(self.dataset.batches)}
        return whole <= set(self.applied)

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call of the test's own until the bus answers it."""
    while True:
        try:
            return await call()
        except BusError:
            await asyncio.sleep(0.1)


Scenario = Callable[[World], Awaitable[T]]


def play(scenario: Scenario[T], seed: int = 1, faults: Faults = CALM, **world: Any) -> T:
    """Run a scenario in a fresh world and clear up behind it. The seed is printed where it fails."""
    print(f"seed {seed}")

    async def program() -> T:
        made = World(seed, faults, **world)
        try:
            return await scenario(made)
        finally:
            await made.stop()

    return run(program())


@pytest.fixture(name="play")
def play_fixture() -> Callable[..., Any]:
    return play
