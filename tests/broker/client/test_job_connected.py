"""A training script against the real things: nats-server, master, parameter server on sockets; only the processes are threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rover_bus.client as rover
from rover_bus.client.witness import NAME, WIDTH, witness_table
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BrokerUnreachable, Refused
from rover_bus.events.facts import JobEnded, JobSubmitted, PlanProposed, WorkerFailed
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec, LeaseSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.master.service import build_master
from rover_bus.ps.parts import read_parts
from rover_bus.ps.service import serve_job
from rover_bus.ps.spec import Growing, Sgd

pytestmark = pytest.mark.broker
JOB = "clicks"
ROWS, BATCH, EPOCHS = 2000, 50, 2
TABLE = Growing(name="user", width=2, optimizer=Sgd(rate=0.1))


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
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

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
            data=DataSpec(train="x", batch_size=BATCH, epochs=EPOCHS, seed=3, **data),
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
            holder=name,
            clock=time.monotonic,
            wall_ms=lambda: int(time.time() * 1000),
        )
        await shell.run()

    async def serve(self) -> None:
        await serve_job(
            await self.connect("ps-0"),
            JOB,
            Member("ps", 0, 1),
            secret=self.broker.secret.encode(),
            directory=self.directory,
            nonce="ps",
        )

    async def facts(self, kind: str) -> list[bytes]:
        bus = await self.connect("observer")
        return [stored.body async for stored in bus.read(FACTS, subjects.job_facts(JOB, kind))]

    async def ended(self) -> JobEnded:
        bus = await self.connect("observer")
        async with asyncio.timeout(30):
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
def clicks(tmp_path: Path) -> rover.ClickLog:
    path = tmp_path / "clicks.csv"
    path.write_text("label,user\n" + "".join(f"{row % 2},user{row % 97}\n" for row in range(ROWS)))
    return rover.ClickLog(path, rover.Schema(categorical=("user",)))


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


Meet = Callable[[rover.Job, Any], None]


def train(job: rover.Job, clicks: rover.ClickLog, meet: Meet = lambda job, batch: None) -> None:
    with job:
        job.parameters.declare(TABLE)
        for batch in job.batches(clicks):
            pulled = job.parameters.pull({"user": batch.categorical[:, 0]})
            meet(job, batch)
            job.parameters.push(
                rover.BatchKey(batch.epoch, batch.number), {"user": np.ones_like(pulled["user"])}
            )
            job.report(loss=0.5)


def witness(stack: Stack) -> np.ndarray[Any, Any]:
    """What the servers wrote at the end, by (epoch, position)."""
    end = stack.call(stack.ended())
    exported = read_parts([Path(part) for part in end.summary["parts"]])[NAME]
    return rover.read_witness(exported, rover.Dataset(records=ROWS, batch_size=BATCH, epochs=EPOCHS))


def test_a_script_trains_its_job_to_the_end_and_the_witness_is_all_ones(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()
    job = join()
    train(job, clicks)
    end = stack.call(stack.ended())
    assert end.state == "completed", end
    assert end.summary["samples_committed"] == ROWS * EPOCHS
    assert (witness(stack) == 1).all()
    assert job.figures.batches == ROWS * EPOCHS // BATCH
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rover-")]


def test_a_take_over_and_a_broker_restart_pass_unnoticed_by_the_loop(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        time.sleep(0.02)
        if (batch.epoch, batch.number) == (0, 10):
            stack.start("master-1", stack.lead("master-1"))
        if (batch.epoch, batch.number) == (0, 20):
            stack.tasks["master-0"].cancel()
        if (batch.epoch, batch.number) == (1, 10):
            threading.Thread(target=stack.broker.restart).start()

    train(join(), clicks, meet)
    assert (witness(stack) == 1).all()
    assert stack.call(stack.ended()).summary["masters_elected"] >= 2


def test_sigterm_drains_and_the_next_life_trains_only_the_rest(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 15:
            os.kill(os.getpid(), signal.SIGTERM)

    first = join()
    train(first, clicks, meet)
    assert first.drained
    assert first.figures.batches >= 1
    second = join(incarnation=2)
    train(second, clicks)
    assert (witness(stack) == 1).all()
    assert first.figures.batches + second.figures.batches == ROWS * EPOCHS // BATCH


def test_an_exception_is_charged_by_name_and_another_life_finishes_the_job(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 5:
            raise LookupError("no such user 0x7f")

    with pytest.raises(LookupError):
        train(join(), clicks, meet)
    failed = decode(stack.call(stack.facts("worker.failed"))[0], WorkerFailed)
    assert failed.exception == "LookupError"
    assert "no such user" in failed.message
    assert failed.charged_batch == 5
    train(join(incarnation=2), clicks)
    assert (witness(stack) == 1).all()


def test_other_data_under_the_same_job_is_refused_with_the_difference(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job], tmp_path: Path
) -> None:
    stack.begin(workers=2)
    path = tmp_path / "other.csv"
    path.write_text("label,user\n1,a\n")
    other = rover.ClickLog(path, rover.Schema(categorical=("user",)))

    def meet(job: rover.Job, batch: Any) -> None:
        if (batch.epoch, batch.number) == (0, 1):
            with pytest.raises(Refused, match="records is 2000, not 1"):
                train(join(index=1), other)

    train(join(), clicks, meet)
    assert witness_table(rover.Dataset(records=ROWS, batch_size=BATCH, epochs=EPOCHS)).width == WIDTH


def test_a_member_that_is_started_while_the_broker_is_away_waits_for_it(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()
    while not stack.call(stack.facts("routing.changed")):
        time.sleep(0.05)
    stack.broker.kill()
    starter = threading.Timer(0.5, stack.broker.restart)
    starter.start()
    train(join(), clicks)
    starter.join()
    assert (witness(stack) == 1).all()


@pytest.mark.timeout(25)  # the servers' own patience would be 30 s
def test_a_drain_whose_servers_and_master_are_gone_ends_with_its_grace(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 15:
            for name in ("master-0", "ps-0"):
                stack.tasks.pop(name).cancel()
            os.kill(os.getpid(), signal.SIGTERM)

    job = join(grace_s=0.5)
    train(job, clicks, meet)
    assert job.drained
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rover-")]


def test_somebody_whose_broker_does_not_answer_is_told_at_once() -> None:
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        rover.join(ROVER_JOB=JOB, ROVER_URL="nats://127.0.0.1:1")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rover-")]
