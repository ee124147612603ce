"""Stages for histories: a broker in memory, real masters behind the real shell, and members spoken for by hand.

What services log on the way would only be noise behind a failure, so it is silenced below CRITICAL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.codec import decode, decode_any, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec
from rover_bus.events.log import LogBatch
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.requests import (
    METHODS,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseRequest,
    LeaveRequest,
    Progress,
    RegisterRequest,
)
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.events.shell import Shell
from rover_bus.events.streams import FACTS, LOG
from rover_bus.events.virtual_time import run
from rover_bus.master.decider import MasterDecider
from rover_bus.master.service import build_master

JOB = "j"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence structured logs below CRITICAL; a test that looks at them sets its own."""
    logging.getLogger("rover").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("rover").setLevel(logging.NOTSET)


class Worker:
    """A worker spoken for by hand; it asks whoever leads, as often as it takes."""

    def __init__(self, stage, role, index, incarnation, host="h"):
        self.host = host
        self.member, self.role = Member(role, index, incarnation), role
        self.name = str(self.member)
        self.bus = stage.broker.connect(self.name)
        self.master = Master(self.bus, JOB)
        self.stage, self.requests, self.who = stage, 0, {}

    async def join(self):
        ask = JoinRequest(
            member=self.member,
            nonce=f"n-{self.member}",
            host=self.host,
            addresses=[f"tcp:{self.name}"] * (self.role == "ps"),
        )
        while not isinstance(reply := await self.master.ask(ask), JoinReply):  # noqa: ASYNC110 - time is waited for
            await asyncio.sleep(0.05)
        self.who = {"member": self.member, "timeline": reply.timeline, "generation": reply.generation}
        if self.role == "worker":
            await self.master.ask(RegisterRequest(**self.who, dataset=self.stage.dataset))
        return self

    def next_lease(self, progress=(), held=(), **more):
        self.requests += 1
        return LeaseRequest(
            **self.who, request=self.requests, progress=report(progress), held=list(held), **more
        )

    async def lease(self, progress=(), held=(), **more):
        return await self.master.ask(self.next_lease(progress, held, **more))

    async def beat(self, progress=(), held=()):
        return await self.master.ask(
            HeartbeatRequest(**self.who, request=self.requests, progress=report(progress), held=list(held))
        )

    async def leave(self, progress=()):
        return await self.master.ask(LeaveRequest(**self.who, progress=report(progress)))


def report(pairs):
    return Progress(tokens=[t for t, _ in pairs], uptos=[u for _, u in pairs])


class Stage:
    """One job, its log, and the masters that fight for it."""

    def __init__(
        self,
        broker=None,
        *,
        records=1000,
        batch=10,
        epochs=1,
        workers=1,
        servers=0,
        plan=True,
        hosts=("h",),
        **spec,
    ):
        self.broker = broker or MemoryBroker(1)
        self.dataset = Dataset(records=records, batch_size=batch, epochs=epochs)
        leases = {"target_s": 1000.0, "max_batches": 4, **spec.pop("leases", {})}
        self.spec = JobSpec(
            name=JOB,
            program=["train"],
            data=DataSpec(train="t", batch_size=batch, epochs=epochs),
            leases=LeaseSpec(**leases),
            **spec,
        )
        self.workers, self.servers, self.plan, self.hosts = workers, servers, plan, list(hosts)
        self.shells, self.deciders, self.tasks, self.ends = {}, {}, {}, {}

    async def publish(self, fact, subject=None):
        bus = self.broker.connect("people")
        return await bus.append(FACTS, subject or subjects.job_fact(JOB, fact.kind()), encode(fact))

    async def begin(self):
        await self.publish(JobSubmitted(job=JOB, spec=self.spec, uid="0123456789ab"))
        if self.plan:
            plan = PlanProposed(job=JOB, plan=1, workers=self.workers, servers=self.servers, hosts=self.hosts)
            await self.publish(plan)

    def master(
        self,
        name,
        shell=Shell,
        decider=MasterDecider,
        snapshot_every_batches=2000,
        keep=DEFAULTS.retention,
        **parts,
    ):
        """Start a master. `parts`: class attributes of its shell to replace (journal_type, leadership_type)."""
        loop = asyncio.get_running_loop()
        self.shells[name], self.deciders[name] = build_master(
            self.broker.connect(name),
            JOB,
            process=ServiceProcess(name, loop.time, lambda: 0),
            settings=Settings(retention=keep.replace(snapshot_batches=snapshot_every_batches)),
            decider_type=decider,
            shell_type=type("Shown", (shell,), parts) if parts else shell,
        )
        self.tasks[name] = asyncio.create_task(self._live(name), name=name)
        return self.shells[name]

    async def _live(self, name):
        try:
            await self.shells[name].run()
        except* RoverError as errors:
            self.ends[name] = errors.exceptions[0]
        finally:
            self.broker.kill(name)

    def kill(self, name):
        """SIGKILL: nothing of it runs on."""
        self.broker.kill(name)
        if name in self.tasks:
            self.tasks[name].cancel()

    async def worker(self, index=0, incarnation=1, role="worker", host="h"):
        return await Worker(self, role, index, incarnation, host).join()

    async def until(self, true, within_s=30.0):
        async with asyncio.timeout(within_s):
            while not true():  # noqa: ASYNC110 - it is time that is waited for
                await asyncio.sleep(0.01)

    async def leads(self, name, within_s=30.0):
        await self.until(lambda: self.shells[name].leading, within_s)

    def stored(self, stream=LOG, subject=None):
        wanted = subject or (subjects.job_log(JOB) if stream == LOG else "rover.job.*.*.*")
        return list(self.broker.streams[stream].select([wanted]))

    def batches(self):
        return [decode(stored.body, LogBatch) for stored in self.stored()]

    def records(self, kind):
        return [record for batch in self.batches() for record in batch.records if isinstance(record, kind)]

    def facts(self, kind=None):
        found = [decode_any(stored.body) for stored in self.stored(FACTS)]
        return [fact for fact in found if kind is None or isinstance(fact, kind)]

    async def stop(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def ask_raw(self, bus, method, body, term=1):
        """Any bytes as a request, and what they are answered."""
        return decode_any((await bus.request(subjects.rpc(JOB, term, method), body, timeout_s=1.0)).body)

    async def ask_once(self, bus, term, request, timeout_s=1.0):
        """One request to the master of one term, no more; the error instead of an answer when there is none."""
        method = next(name for name, cls in METHODS.items() if cls is type(request))
        try:
            return decode_any(
                (
                    await bus.request(subjects.rpc(JOB, term, method), encode(request), timeout_s=timeout_s)
                ).body
            )
        except BusError as error:
            return error


def play_on_stage(scenario, broker=None, **how):
    """Run `await scenario(stage)` in virtual time on a fresh stage and clear up behind it."""

    async def program():
        stage = Stage(broker() if broker else None, **how)
        try:
            return await scenario(stage)
        finally:
            await stage.stop()

    return run(program())


@pytest.fixture
def stage():
    return play_on_stage
