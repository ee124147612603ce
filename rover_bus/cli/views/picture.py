"""What is known of all jobs and hosts now, kept up to date by one follower of facts and one of samples.

Feeds `rover top` and what serves HTTP. A picture is made of the views that commands read (history.py, plans.py, elsewhere.py), each
fact taken in once, in the order of the stream; nothing is asked again, however often it is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rover_bus.cli.views.elsewhere import RunningMembers
from rover_bus.cli.views.history import Happened, JobRow, read_happened
from rover_bus.cli.views.own_words import own_word
from rover_bus.cli.views.past_samples import SamplePlaces, read_sample
from rover_bus.cli.views.plans import PlanTable
from rover_bus.cli.views.timelines import JobTimelines
from rover_bus.events import facts, subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointOpened,
    CheckpointReady,
    HostStorageBlocked,
)
from rover_bus.events.data_facts import LedgerRewound
from rover_bus.events.fact import Fact
from rover_bus.events.facts import JobFact
from rover_bus.events.host_facts import (
    HostExited,
    HostLeft,
    HostRecovered,
    HostRegistered,
    HostSlow,
    HostStarted,
)
from rover_bus.events.identity import Member
from rover_bus.events.profiles import (
    HostProfile,
    OperatorProfile,
    ProcessSample,
    ServerProfile,
    WorkerProfile,
)
from rover_bus.events.streams import FACTS, PROFILES

RATE_MEMORY_S = 10.0  # a sample that is older says nothing of now
RECENT = 2000  # facts that are kept at hand for those who follow them
EVERYTHING = ">"
SAMPLES_BEFORE = 20_000  # samples that are read again at a start: what charts show of the time before it


@dataclass(slots=True)
class Occurrences:
    """How often something happened to a job, by its facts. `members`: that are desired, by role."""

    lost: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)
    checkpoints: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    elections: int = 0
    rewinds: int = 0
    moves: int = 0
    ready_ms: int = 0  # when the newest checkpoint became ready
    members: dict[str, int] = field(default_factory=dict)

    def take(self, fact: JobFact, time_ms: int) -> None:
        """Take a fact of the job in."""
        match fact:
            case facts.MemberLost(member=member):
                self.lost[member.role] += 1
            case facts.MembersDesired():
                wanted = [desired.member.role for desired in fact.members]
                self.members = {"worker": wanted.count("worker"), "ps": wanted.count("ps")}
            case facts.WorkerFailed():
                self.failures += 1
            case facts.MasterElected():
                self.elections += 1
            case LedgerRewound():
                self.rewinds += 1
            case facts.SlotsMoved():
                self.moves += 1
            case facts.PlanProposed() | facts.PlanApplied() | facts.PlanKept() | facts.PlanRolledBack():
                self.plans[fact.kind().partition(".")[2]] += 1
            case facts.PlanRefused(constant=constant):
                self.plans["rejected" if constant == "rejected" else "refused"] += 1
            case CheckpointOpened() | CheckpointFailed():
                self.checkpoints[fact.kind().partition(".")[2]] += 1
            case CheckpointReady():
                self.checkpoints["ready"] += 1
                self.ready_ms = time_ms
            case _:
                pass  # is not counted


class KnownOfJob:
    """One job: its row, its plans, its processes, and what happened to it."""

    def __init__(self, job: str) -> None:
        self.row, self.plans = JobRow(job), PlanTable(job)
        self.members, self.occurrences = RunningMembers(job), Occurrences()
        self.timelines = JobTimelines()
        self.workers: dict[str, tuple[float, WorkerProfile]] = {}  # by member, with when it came
        self.servers: dict[str, tuple[float, ServerProfile]] = {}

    def take(self, fact: Fact, time_ms: int, sequence: int = 0) -> None:
        """Take a fact in that is about this job. `sequence`: its place in FACTS."""
        self.members.take(fact)
        self.timelines.take(fact, time_ms, sequence)
        if isinstance(fact, JobFact):
            self.row.take(fact, time_ms)
            self.plans.take(fact, time_ms)
            self.occurrences.take(fact, time_ms)
            if isinstance(fact, facts.JobEnded):
                self.workers, self.servers = {}, {}
        elif isinstance(fact, HostStorageBlocked):
            self.row.checkpoints.take(fact, time_ms)

    @property
    def state(self) -> str:
        """The job's state in one word, as far as facts say it."""
        return "paused" if self.plans.paused and not self.row.ended_ms else self.row.state


class Picture:
    """What is known now. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs: dict[str, KnownOfJob] = {}
        self.hosts: dict[str, HostProfile] = {}
        self.hosts_seen: dict[
            str, int
        ] = {}  # when each was heard of last, Unix milliseconds; not those that left
        self.operator: OperatorProfile | None = None  # what the one that leads said last
        self.slow_hosts: set[str] = set()
        self.sequence = 0  # of the newest fact
        self.newest_ms = 0
        self.refused = 0  # facts that no reader believes
        self.recent: deque[Happened] = deque(maxlen=RECENT)
        self.places = SamplePlaces()
        self._clock = clock
        self._news = asyncio.Event()
        self._before = self._sampled = (
            0  # the newest sample when this picture began, and the last that it took
        )

    async def follow(self, bus: Bus) -> None:
        """Take in all facts that there are, and all that come; samples from now on, and for timelines those before, the newest."""
        await bus.follow(FACTS, subjects.everywhere("rover.>"), self.take_fact, start="first")
        newest = await bus.last(FACTS, EVERYTHING)
        await self.beyond((newest.sequence if newest is not None else 0) - 1)
        before = await bus.last(PROFILES, EVERYTHING)
        self._before = 0 if before is None else before.sequence
        first = max(1, self._before + 1 - SAMPLES_BEFORE)
        await bus.follow(PROFILES, subjects.everywhere("rover.profile.>"), self.take_sample, start=first)

    def take_fact(self, stored: Stored) -> None:
        """Take one in."""
        happened = read_happened(stored)
        if stored.sequence <= self.sequence:
            self.recent.clear()  # a power cut took some, and their numbers are used again
        self.sequence, self.newest_ms = stored.sequence, stored.time_ms
        self.recent.append(happened)
        if happened.fact is None:
            self.refused += 1
        else:
            self._take(happened.fact, happened.job, stored.time_ms)
        self._news.set()
        self._news = asyncio.Event()

    def _take(self, fact: Fact, job: str, time_ms: int) -> None:
        match fact:
            case facts.JobForgotten():
                self.jobs.pop(job, None)
            case JobFact() | HostStarted() | HostExited() | HostStorageBlocked():
                known = self.jobs.get(job)
                if known is None and isinstance(fact, facts.JobSubmitted):
                    known = self.jobs[job] = KnownOfJob(job)
                if known is not None:
                    known.take(fact, time_ms, self.sequence)
            case HostRegistered(host=host):
                self.hosts_seen[host] = time_ms
            case HostLeft(host=host):
                self.hosts_seen.pop(host, None)
            case HostSlow(host=host):
                self.slow_hosts.add(host)
            case HostRecovered(host=host):
                self.slow_hosts.discard(host)
            case _:
                pass  # of no job

    def take_sample(self, stored: Stored) -> None:
        """Take in what a host or a member measured."""
        sample = read_sample(stored)
        if sample is None:
            return
        if stored.sequence <= self._sampled:
            self._before = 0  # the stream lost what it had, and its numbers are used again
        self._sampled = stored.sequence
        self.places.note(stored)
        now = stored.sequence > self._before
        if isinstance(sample, HostProfile):
            self._take_host(sample, stored.time_ms, now=now)
        elif isinstance(sample, OperatorProfile):
            self.operator = sample
        elif isinstance(sample, WorkerProfile | ServerProfile) and sample.window_s > 0:
            self._take_member(sample, stored.time_ms, now=now)

    def _take_host(self, sample: HostProfile, time_ms: int, *, now: bool) -> None:
        if now:
            self.hosts[sample.host] = sample
        for process in sample.processes:
            if (known := self.jobs.get(process.job)) is not None:
                known.timelines.take_process(process, time_ms)

    def _take_member(self, sample: WorkerProfile | ServerProfile, time_ms: int, *, now: bool) -> None:
        known = self.jobs.get(sample.job)
        if known is None:
            return
        now = now and not known.row.ended_ms
        if isinstance(sample, WorkerProfile):
            known.timelines.take_worker(sample, time_ms)
            if now:
                known.workers[str(sample.member)] = self._clock(), sample
        else:
            known.timelines.take_server(sample, time_ms)
            if now:
                known.servers[str(sample.member)] = self._clock(), sample

    def servers(self, job: str) -> dict[str, ServerProfile]:
        """Return the last samples of a job's servers, by member; those that came lately."""
        since, known = self._clock() - RATE_MEMORY_S, self.jobs.get(job)
        there = known.servers.items() if known is not None else ()
        return {member: sample for member, (at, sample) in there if at >= since}

    def workers(self, job: str) -> dict[str, WorkerProfile]:
        """Return the last samples of a job's workers, by member; those that came lately."""
        since, known = self._clock() - RATE_MEMORY_S, self.jobs.get(job)
        there = known.workers.items() if known is not None else ()
        return {member: sample for member, (at, sample) in there if at >= since}

    def processes(self) -> dict[str, list[ProcessSample]]:
        """Return what hosts measured of members last, by job; of members that no host measures, what they say of themselves."""
        found: dict[str, dict[Member, ProcessSample]] = {}
        for host in self.hosts.values():
            for process in host.processes:
                found.setdefault(process.job, {})[process.member] = process
        for job in self.jobs:
            said: list[WorkerProfile | ServerProfile] = [
                *self.workers(job).values(),
                *self.servers(job).values(),
            ]
            for own in map(own_word, said):
                if own is not None:
                    found.setdefault(job, {}).setdefault(own.member, own)
        return {job: list(members.values()) for job, members in found.items()}

    def rate(self, job: str) -> float:
        """Samples a second of a job, by the samples of its workers that came lately."""
        return sum(each.samples / each.window_s for each in self.workers(job).values())

    async def beyond(self, sequence: int) -> None:
        """Wait until there is a fact behind this one."""
        while self.sequence <= sequence:
            await self._news.wait()
