"""A job with a long past, written straight into the streams: leases in its log, facts, snapshots as a master takes them.

Used by takeover.py (`--past N`). The records are those that the master's own decider makes of requests; only clock and bus are left
out, so that a million takes a minute instead of a week.
"""

from __future__ import annotations

import time
from typing import Any

from bench import rig
from rover_bus.events import subjects
from rover_bus.events.batch import Published
from rover_bus.events.codec import encode
from rover_bus.events.facts import JobReported
from rover_bus.events.identity import Member
from rover_bus.events.inputs import Observed, Requested, TookOver
from rover_bus.events.job import Dataset
from rover_bus.events.journal import Journal, snapshot_chunks
from rover_bus.events.log import LogBatch, Record
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.outbox import FactOut, write_headers
from rover_bus.events.reading import read_fact
from rover_bus.events.requests import (
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    Progress,
    RegisterRequest,
)
from rover_bus.events.streams import FACTS, LOG
from rover_bus.master.decider import MasterDecider
from rover_bus.master.service import wiring

HOLDER, WANTED = "past", 16
WORKERS_A_BATCH = 2  # whose requests meet in one group commit
UNACKED = 2000  # facts that are sent before one is waited for: the broker drops more than 10,000 that it could not store yet


class Past:
    """A master without a clock: it answers what it is given, and appends each round as a group commit does."""

    def __init__(self, bus: NatsBus, job: str, workers: int, dataset: Dataset) -> None:
        self.bus, self.job, self.dataset = bus, job, dataset
        self.decider, self.now = MasterDecider(job), 0.0
        self.journal = Journal(
            bus, subjects.job_log(job), job, HOLDER, LogBatch, lambda: time.time_ns() // 1_000_000
        )
        self.requests = 0
        self._members = [Member("worker", index, 1) for index in range(workers)]
        self._progress = [Progress()] * workers
        self._pending: list[Record] = []
        self._snapshots = 0

    def ask(self, input: Any) -> Any:
        records, reply, *_ = self.decider.decide(input, self.now)
        self._pending += records
        return reply

    async def append(self) -> int:
        pending, self._pending = self._pending, []
        if not pending:
            return self.journal.sequence
        self.journal.timeline = self.decider.timeline
        for each in self.journal.cut(pending):
            await self.journal.append(each.stored, self.journal.inputs)
        return self.journal.sequence

    async def begin(self) -> None:
        """Take the job up as its first master does, with all workers there."""
        stored = [each async for each in self.bus.read(FACTS, subjects.job_facts(self.job))]
        self.journal.term = 1
        self.ask(TookOver(HOLDER, 1, 0, False))
        for each in stored:
            self.ask(Observed(read_fact(each), f"{FACTS}:{each.sequence}"))
        self.journal.inputs = {FACTS: stored[-1].sequence}
        for index, member in enumerate(self._members):
            joined = self.ask(Requested(JoinRequest(member=member, nonce=f"takeover-{index}")))
            assert isinstance(joined, JoinReply), joined
            self.timeline = joined.timeline
        first = self._members[0]
        self.ask(Requested(RegisterRequest(member=first, timeline=self.timeline, dataset=self.dataset)))
        await self.append()

    async def lease(self) -> int:
        """Let every worker commit what it holds and lease again; return how many leases were given."""
        self.requests += 1
        self.now += 0.01
        given = 0
        for index, member in enumerate(self._members):
            request = LeaseRequest(
                member=member,
                timeline=self.timeline,
                request=self.requests,
                rate=0.01,
                wanted=WANTED,
                progress=self._progress[index],
            )
            reply = self.ask(Requested(request))
            assert isinstance(reply, LeaseReply), reply
            ends = [first + count for first, count in zip(reply.firsts, reply.counts, strict=True)]
            self._progress[index] = Progress(tokens=reply.tokens, uptos=ends)
            given += len(reply.tokens)
            if index % WORKERS_A_BATCH == WORKERS_A_BATCH - 1:
                await self.append()
        await self.append()
        return given

    async def take_snapshot(self) -> None:
        self._snapshots += 1
        self.journal.batches_since_snapshot = 0
        self._pending += snapshot_chunks(self._snapshots, self.decider.dump())
        first = self.journal.sequence
        await self.append()
        following = [each async for each in self.bus.read(LOG, self.journal.subject, first=first + 1)]
        self.journal.snapshot = following[0].sequence

    async def report(self, batches: list[int], facts: int) -> None:
        """Publish so many facts, each from a place in the log; the last batch says which one was the last."""
        left = Published()
        for number in range(facts):
            batch, index = batches[number * len(batches) // facts], number
            fact = JobReported(
                job=self.job, epoch=0, committed=number, dead_lettered=0, total=10**9, position=(batch, index)
            )
            body, item = encode(fact), FactOut(fact, (batch, index), 1)
            headers = write_headers(item, body, self.job, self.journal.timeline, HOLDER)
            subject = subjects.job_fact(self.job, fact.kind())
            if number % UNACKED and number + 1 < facts:
                await self.bus.publish(subject, body, headers)
            else:
                sequence = await self.bus.append(FACTS, subject, body, headers=headers, timeout_s=30.0)
                left = Published(1, batch, index, sequence)
        self.journal.published = left
        await self.journal.append([], self.journal.inputs)


async def write_past(bus: NatsBus, job: str, workers: int, dataset: Dataset, many: int) -> tuple[int, float]:
    """Write a past of `many` leases and facts; return the request id that workers go on with, and the seconds that it took."""
    began = time.monotonic()
    await rig.open_job(bus, job, workers=workers)
    past = Past(bus, job, workers, dataset)
    await past.begin()
    batches, given = [past.journal.sequence], 0
    while given < many:
        given += await past.lease()
        batches.append(past.journal.sequence)
        if past.journal.batches_since_snapshot >= wiring(job).keep.snapshot_batches:
            await past.take_snapshot()
    await past.report(batches, many)
    return past.requests, time.monotonic() - began
