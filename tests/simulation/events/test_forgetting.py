"""An ended job is forgotten whole, whatever interrupts it; others keep everything; its name may be used again."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from told import told

from rover_bus.brain.keeping import keep_within
from rover_bus.cli.views.history import read_jobs
from rover_bus.events import subjects
from rover_bus.events.data_facts import EpochOpened
from rover_bus.events.errors import BusTimeout, StreamFull
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.forgetting import forget_job
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.streams import BUCKETS, FACTS, LOG, PROFILES, ROUTING, STREAMS, StreamSpec
from rover_bus.events.virtual_time import run

UIDS = {"a": "0000000000a1", "b": "0000000000b2"}


async def live(bus, job, ended=True):
    """What a job leaves behind."""
    spec = JobSpec(name=job, program=["x"], data=DataSpec(train="t"))
    submitted = JobSubmitted(job=job, uid=UIDS[job], spec=spec)
    facts = [
        submitted,
        EpochOpened(job=job, epoch=0),
        *([JobEnded(job=job, state="completed")] if ended else []),
    ]
    for number, fact in enumerate(facts, start=1):
        body, headers = told(fact, number)
        await bus.append(FACTS, subjects.job_fact(job, fact.kind()), body, headers=headers)
    await bus.append(LOG, subjects.job_log(job), bytes(1000))
    await bus.append(PROFILES, subjects.member_profile(job, "worker", 0), b"sample")
    await bus.put(ROUTING, job, b"{}")


def held(broker, job):
    """Everything that the broker holds of a job, by subject."""
    stored = [each.subject for stream in broker.streams.values() for each in stream.messages.values()]
    streams = [subject for subject in stored if f".{job}." in subject]
    return sorted(streams) + [job] * (job in broker.buckets[ROUTING].entries)


def test_nothing_is_left_of_a_job_but_that_it_was_forgotten_and_others_keep_all():
    async def program():
        broker = MemoryBroker(1)
        bus = broker.connect("people")
        await live(bus, "a")
        await live(bus, "b")
        before = held(broker, "b")
        await forget_job(bus, "a", UIDS["a"], by="ada", reason="done")
        listed = list(await read_jobs(bus))
        await live(bus, "a", ended=False)  # the name is free again
        return held(broker, "b") == before, listed, list(await read_jobs(bus))

    kept, listed, again = run(program())
    assert kept
    assert listed == ["b"]
    assert sorted(again) == ["a", "b"]


class Interrupted:
    """A connection that breaks at its n-th call."""

    def __init__(self, bus, left):
        self._bus, self.left = bus, left

    def __getattr__(self, name):
        whole = getattr(self._bus, name)

        async def call(*arguments, **how):
            self.left -= 1
            if self.left < 0:
                raise BusTimeout("no answer in time")
            return await whole(*arguments, **how)

        return call


def test_a_forgetting_that_is_interrupted_anywhere_is_found_and_finished():
    async def program(calls):
        broker = MemoryBroker(1)
        bus = broker.connect("people")
        await live(bus, "a")
        try:
            await forget_job(Interrupted(bus, calls), "a", UIDS["a"], by="ada", reason="")
        except BusTimeout:
            views = await read_jobs(bus)
            found = "a" in views and bool(views["a"].ended_ms)
            if found:
                await forget_job(bus, "a", views["a"].uid, by="ada", reason="")
            return False, found, held(broker, "a")
        return True, True, held(broker, "a")

    calls, done = 0, False
    while not done:
        done, found, left = run(program(calls))
        if found:
            assert left == ["rover.job.a.job.forgotten"], calls
        else:  # the job itself is gone: what is left expires (samples), or is a value that the next run overwrites
            assert set(left) <= {"rover.job.a.job.forgotten", "rover.profile.a.worker.0", "a"}, calls
        calls += 1
    assert calls > 50


async def fill(bus):
    for number in count(3):
        body, headers = told(EpochOpened(job="a", epoch=0), number)
        await bus.append(FACTS, "rover.job.a.epoch.opened", body, headers=headers)


def test_a_store_that_is_full_names_the_way_out_and_is_no_obstacle():
    full = [spec.replace(max_bytes=4000) if spec.name in (LOG, FACTS) else spec for spec in STREAMS]

    async def program():
        broker = MemoryBroker(1, streams=full, buckets=BUCKETS)
        bus = broker.connect("people")
        await live(bus, "a")
        with pytest.raises(StreamFull, match="rover forget JOB"):
            await fill(bus)
        await forget_job(bus, "a", UIDS["a"], by="ada", reason="")
        return held(broker, "a")

    assert isinstance(full[0], StreamSpec)
    assert run(program()) == ["rover.job.a.job.forgotten"]


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (RetentionSettings(), ["a", "b"]),
        (RetentionSettings(jobs_age_s=100.0), ["b"]),
        (RetentionSettings(store_size_bytes=1), ["b"]),
        (RetentionSettings(store_size_bytes=1 << 30), ["a", "b"]),
    ],
)
def test_retention_forgets_ended_jobs_while_its_brain_leads_and_never_one_that_runs(retention, left):
    async def program():
        broker, leads = MemoryBroker(1), False
        bus, clock = broker.connect("brain"), asyncio.get_running_loop().time
        await live(bus, "a")
        await live(bus, "b", ended=False)
        start_ms = next(iter(broker.streams[FACTS].messages.values())).time_ms
        keeping = asyncio.create_task(
            keep_within(bus, retention, lambda: leads, lambda: start_ms + int(clock() * 1000))
        )
        await asyncio.sleep(300.0)
        unled = list(await read_jobs(bus))
        leads = True
        await asyncio.sleep(300.0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return unled, list(await read_jobs(bus)), len(held(broker, "b"))

    unled, listed, of_b = run(program())
    assert unled == ["a", "b"]
    assert listed == left
    assert of_b == 5
