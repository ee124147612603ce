"""A stack in the loop of a thread: a real nats-server, masters, one parameter server; and training scripts that join it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

import rover_bus.client as rover
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import JobEnded, JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec, LeaseSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.master.service import build_master
from rover_bus.ps.service import ServerPlace, serve_job

JOB = "clicks"


class Stack:
    """Masters and a server in the loop of a thread, on an embedded broker."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="stack")
        self.thread.start()
        self.tasks: dict[str, Future[Any]] = {}
        self.buses: list[NatsBus] = []

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks[name] = asyncio.run_coroutine_threadsafe(work, self.loop)

    async def connect(self, name: str) -> NatsBus:
        bus = await NatsBus.connect(self.broker.url, secret=self.broker.secret, name=name)
        self.buses.append(bus)
        return bus

    async def submit(self, workers: int, **data: Any) -> None:
        bus = await self.connect("cli")
        await bus.ensure(STREAMS, BUCKETS)
        spec = JobSpec(
            name=JOB,
            program=["train"],
            data=DataSpec(**{"train": "x", "batch_size": 50, "epochs": 2, "seed": 3, **data}),
            leases=LeaseSpec(target_s=0.5, heartbeat_s=0.5),
        )
        for fact in (
            JobSubmitted(job=JOB, spec=spec, uid="0123456789abcdef"),
            PlanProposed(job=JOB, plan=1, workers=workers, servers=1, hosts=["h"]),
        ):
            await bus.append(FACTS, subjects.job_fact(JOB, fact.kind()), encode(fact))

    async def lead(self, name: str) -> None:
        shell, _ = build_master(
            await self.connect(name),
            JOB,
            process=ServiceProcess(name, time.monotonic, lambda: int(time.time() * 1000)),
        )
        await shell.run()

    async def serve(self) -> None:
        await serve_job(
            await self.connect("ps-0"),
            JOB,
            Member("ps", 0, 1),
            secret=self.broker.secret.encode(),
            nonce="ps",
            place=ServerPlace(self.directory),
        )

    async def facts(self, kind: str) -> list[bytes]:
        bus = await self.connect("observer")
        return [stored.body async for stored in bus.read(FACTS, subjects.job_facts(JOB, kind))]

    async def ended(self) -> JobEnded:
        bus = await self.connect("observer")
        async with asyncio.timeout(PATIENCE_S):
            while not (stored := await bus.last(FACTS, subjects.job_facts(JOB, "job.ended"))):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return decode(stored.body, JobEnded)

    def begin(self, workers: int = 1, **data: Any) -> None:
        self.call(self.submit(workers, **data))
        self.start("master-0", self.lead("master-0"))
        self.start("ps-0", self.serve())

    def stop(self) -> None:
        async def end() -> None:
            own = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            for bus in self.buses:
                await bus.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        broken = [task.exception() for task in self.tasks.values() if task.done() and not task.cancelled()]
        self.call(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        assert not any(broken), broken


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        made = Stack(broker, tmp_path)
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def join(stack: Stack) -> Callable[..., rover.Job]:
    def join_as(index: int = 0, incarnation: int = 1, grace_s: float = 5.0) -> rover.Job:
        return rover.join(
            ROVER_GRACE_S=str(grace_s),
            ROVER_JOB=JOB,
            ROVER_ROLE="worker",
            ROVER_INDEX=str(index),
            ROVER_INCARNATION=str(incarnation),
            ROVER_HOST="h",
            ROVER_URL=stack.broker.url,
            ROVER_SECRET_FILE=str(stack.broker.directory / "secret"),
        )

    return join_as
