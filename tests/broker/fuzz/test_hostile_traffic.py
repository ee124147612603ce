"""The fuzz of the simulation ring once more on a real nats-server: what a handler raises there, nats-py would swallow."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from patience import PATIENCE_S

from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import JobSubmitted, PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec, LeaseSpec
from rover_bus.events.journal import LogDamaged
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.requests import (
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    RefusedReply,
    RegisterRequest,
)
from rover_bus.events.streams import BUCKETS, FACTS, LOG, STREAMS
from rover_bus.master.service import build_master

pytestmark = pytest.mark.broker
SEED, REQUESTS, BODIES = 4, 3000, 400
REAL = [
    encode(LeaseRequest(member=Member("worker", 0, 1), request=1, held=[1, 2])),
    encode(PlanProposed(job="j", plan=2, workers=1, servers=0)),
]


def malformed(chance: random.Random) -> bytes:
    """A body that is no event."""
    while True:
        body = bytearray(chance.choice(REAL))
        body[chance.randrange(len(body)) :] = chance.randbytes(chance.randrange(30))
        try:
            decode_any(bytes(body))
        except BadMessage:
            return bytes(body)


async def until(true, within_s=PATIENCE_S):
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(0.02)


class Scene:
    """A job with a master and one worker on a real broker."""

    def __init__(self, broker):
        self.broker, self.buses, self.tasks = broker, [], []

    async def connect(self, name):
        self.buses.append(await NatsBus.connect(self.broker.url, secret=self.broker.secret, name=name))
        return self.buses[-1]

    async def begin(self):
        people = await self.connect("people")
        await people.ensure(STREAMS, BUCKETS)
        patient = LeaseSpec(heartbeat_s=PATIENCE_S)  # the worker is silent while thousands of bodies are read
        spec = JobSpec(name="j", program=["t"], data=DataSpec(train="t", batch_size=10), leases=patient)
        for fact in (
            JobSubmitted(job="j", spec=spec, uid="0123456789ab"),
            PlanProposed(job="j", plan=1, workers=1, servers=0, hosts=["h"]),
        ):
            await people.append(FACTS, subjects.job_fact("j", fact.kind()), encode(fact))

    async def lead(self, name):
        shell, _ = build_master(
            await self.connect(name), "j", process=ServiceProcess(name, time.monotonic, lambda: 0)
        )
        task = asyncio.create_task(shell.run())
        self.tasks.append(task)
        return shell, task

    async def join(self):
        master = Master(await self.connect("worker"), "j")
        ask = JoinRequest(member=Member("worker", 0, 1), nonce="n", host="h")
        while not isinstance(reply := await master.ask(ask), JoinReply):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        who = {"member": reply.member, "timeline": reply.timeline, "generation": reply.generation}
        await master.ask(RegisterRequest(**who, dataset=Dataset(records=1000, batch_size=10)))
        return master, who

    async def close(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for bus in self.buses:
            await bus.close()


def play(tmp_path, scenario):
    print(f"seed {SEED}")

    async def program(broker):
        scene = Scene(broker)
        try:
            await scenario(scene)
        finally:
            await scene.close()

    with EmbeddedBroker(tmp_path / "broker") as broker:
        asyncio.run(program(broker))


def test_a_master_on_a_real_broker_counts_every_fuzzed_body_and_goes_on(tmp_path):
    async def scenario(scene):
        chance = random.Random(SEED)
        await scene.begin()
        shell, task = await scene.lead("m0")
        master, who = await scene.join()
        intruder = await scene.connect("intruder")
        for number in range(REQUESTS):
            await intruder.publish(subjects.rpc("j", 1, "lease"), malformed(chance))
            if number % 200 == 199:
                await until(lambda n=number: shell.bad_messages == n + 1)
        for _ in range(BODIES):
            await intruder.append(FACTS, subjects.job_fact("j", "plan.proposed"), malformed(chance))
        await until(lambda: shell.bad_messages == REQUESTS + BODIES)
        answer = await intruder.request(subjects.rpc("j", 1, "lease"), b"\xc1", timeout_s=2.0)
        assert isinstance(decode_any(answer.body), RefusedReply)
        assert isinstance(await master.ask(LeaseRequest(**who, request=1)), LeaseReply)
        assert not task.done()

    play(tmp_path, scenario)


def test_a_foreign_body_in_a_real_log_ends_standby_and_leader_with_one_line(tmp_path):
    async def scenario(scene):
        await scene.begin()
        _, leading = await scene.lead("m0")
        master, who = await scene.join()
        _, standing_by = await scene.lead("m1")
        intruder = await scene.connect("intruder")
        sequence = await intruder.append(LOG, subjects.job_log("j"), b"not ours")
        await until(standing_by.done)
        asking = asyncio.create_task(master.ask(LeaseRequest(**who, request=1)))
        await until(leading.done)
        asking.cancel()
        for task in (leading, standing_by):
            assert isinstance(task.exception(), LogDamaged)
            assert f"nats stream rmm {LOG} {sequence}" in str(task.exception())

    play(tmp_path, scenario)


def test_a_batch_removed_from_a_real_log_ends_who_comes_later_with_one_line(tmp_path):
    async def scenario(scene):
        await scene.begin()
        _, leading = await scene.lead("m0")
        master, who = await scene.join()
        await master.ask(LeaseRequest(**who, request=1))
        operator = await scene.connect("operator")
        sequences = [stored.sequence async for stored in operator.read(LOG, subjects.job_log("j"))]
        await operator.api(f"STREAM.MSG.DELETE.{LOG}", {"seq": sequences[2]}, "rmm")
        leading.cancel()
        for name in ("m1", "m2"):
            _, task = await scene.lead(name)
            await until(task.done)
            assert isinstance(task.exception(), LogDamaged)
            assert f"between batches {sequences[1]} and {sequences[3]}" in str(task.exception())

    play(tmp_path, scenario)
