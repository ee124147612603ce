"""A node's agent on a real broker: it says that it keeps checkpoints, samples the machine, and makes room for jobs early."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from live_bus import come_true, connect
from told import told

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Message
from rover_bus.events.codec import decode
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.host_facts import HostStorageOpened
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.profiles import HostProfile
from rover_bus.events.settings import DEFAULTS
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import host_facts, host_profile, job_fact
from rover_bus.node.agent import NodeAgent
from rover_bus.node.host import Host
from rover_bus.node.storage.persister import Places

pytestmark = pytest.mark.broker
UID = "0000000000a1"
PLACES = {UID, f"{UID}-copies", f"{UID}-parity"}
OFTEN = DEFAULTS.replace(hosts=DEFAULTS.hosts.replace(sample_every_s=1.0))


@asynccontextmanager
async def agent_of(bus: NatsBus, folder: Path, memory: Path) -> AsyncIterator[None]:
    places = Places(shm=memory, storage=folder / "store", secret=b"s" * 32, domain="rack-1", made_early=True)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(NodeAgent(bus, Host("n1", "d1", OFTEN), places).run(stop, ready.set))
    await ready.wait()
    yield
    stop.set()
    await running


def test_it_opens_storage_samples_and_keeps_places_for_jobs(tmp_path: Path) -> None:
    asyncio.run(follow_a_job(tmp_path))


async def follow_a_job(tmp_path: Path) -> None:
    memory = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm")) / "jobs"
    broker = EmbeddedBroker(tmp_path / "broker")
    broker.start()
    bus = await connect(broker)
    samples: list[HostProfile] = []

    def heard(message: Message) -> None:
        samples.append(decode(message.body, HostProfile))

    async def say(fact: JobSubmitted | JobEnded) -> None:
        body, headers = told(fact, 1)
        await bus.append(FACTS, job_fact(fact.job, fact.kind()), body, headers=headers)

    def kept() -> set[str]:
        return {each.name for each in memory.glob("*")}

    try:
        await bus.subscribe(host_profile("n1"), heard)
        spec = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec())
        async with agent_of(bus, tmp_path, memory):
            await come_true(lambda: bool(samples))
            assert samples[0].cores >= 1
            assert samples[0].memory_bytes > samples[0].memory_used_bytes > 0
            await say(JobSubmitted(job="ads", uid=UID, spec=spec))
            await come_true(lambda: kept() == PLACES)
        async with agent_of(bus, tmp_path, memory):  # the next one
            assert kept() == PLACES
            await say(JobEnded(job="ads", state="completed"))
            await come_true(lambda: not kept())
        opened = [
            decode(each.body, HostStorageOpened)
            async for each in bus.read(FACTS, host_facts(fact=HostStorageOpened.kind()))
        ]
        assert {(each.host, each.domain) for each in opened} == {("n1", "rack-1")}
    finally:
        await bus.close()
        broker.stop()
        shutil.rmtree(memory.parent, ignore_errors=True)
