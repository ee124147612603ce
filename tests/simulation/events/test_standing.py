"""Who hands a job in stands by it: a broker that forgets it is told again (protocol P21)."""

import asyncio

import pytest
from told import told

from rover_bus.cli import submission
from rover_bus.events import subjects
from rover_bus.events.codec import decode
from rover_bus.events.errors import BusTimeout, Refused
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.events.virtual_time import run

SPEC = JobSpec(name="j", program=["train"], data=DataSpec(train="x"))


def submitted(broker):
    stored = broker.streams[FACTS].newest([subjects.job_fact("j", JobSubmitted.kind())])
    return decode(stored[0].body, JobSubmitted) if stored else None


def test_a_submission_that_a_power_cut_took_is_handed_in_again_by_who_waits_for_it():
    async def scenario():
        broker = MemoryBroker(1)
        bus = broker.connect("people")
        await bus.ensure(STREAMS, BUCKETS)
        heard = []
        waiting = asyncio.create_task(submission.submit_and_follow(bus, SPEC, heard.append))
        await asyncio.sleep(1.0)
        before = submitted(broker)
        broker.streams[FACTS].truncate(0)
        broker.restart(0.3)
        await asyncio.sleep(1.0)
        again = submitted(broker)
        body, headers = told(JobEnded(job="j", state="completed"), 7)
        await bus.append(FACTS, subjects.job_fact("j", "job.ended"), body, headers=headers)
        return before, again, await asyncio.wait_for(waiting, 5.0)

    before, again, end = run(scenario())
    assert before == again
    assert end.state == "completed"


class AnswersLate:
    """A connection whose first append is stored and not answered."""

    def __init__(self, bus):
        self._bus, self.calls = bus, 0

    def __getattr__(self, name):
        return getattr(self._bus, name)

    async def append(self, *arguments, **how):
        self.calls += 1
        sequence = await self._bus.append(*arguments, **how)
        if self.calls == 1:
            raise BusTimeout("no answer in time")
        return sequence


def test_a_submission_whose_answer_was_lost_is_not_taken_for_somebody_elses():
    async def scenario():
        bus = AnswersLate(MemoryBroker(1).connect("people"))
        await bus.ensure(STREAMS, BUCKETS)
        sequence = await submission.submit(bus, SPEC)
        with pytest.raises(Refused, match="exists already"):
            await submission.submit(bus, SPEC)
        return sequence, bus.calls

    assert run(scenario()) == (1, 3)
