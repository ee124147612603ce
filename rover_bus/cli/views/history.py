"""Facts as they were stored, typed where this release knows them: what jobs, events, story and reports are read from.

Fed by the FACTS stream through any Bus; feeds the commands. Nothing is kept: each question is a read of the stream (facts
are few, not one a lease).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rover_bus.cli.views.checkpoint_delay import CheckpointDelay
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.checkpoint_facts import HostStorageBlocked
from rover_bus.events.data_facts import EpochClosed
from rover_bus.events.envelope import Envelope, read_envelope
from rover_bus.events.errors import BadMessage, InputError
from rover_bus.events.facts import (
    Fact,
    JobEnded,
    JobFact,
    JobForgotten,
    JobReported,
    JobSubmitted,
    MasterElected,
    PlanApplied,
    PlanProposed,
    PlanWithheld,
    RuleSwitchedOff,
    RuleSwitchedOn,
)
from rover_bus.events.job import JobSpec
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS


@dataclass(frozen=True, slots=True)
class Happened:
    """One stored fact. `fact` is None when it is foreign, of a newer release, or not what its subject says: see `problem`."""

    stored: Stored
    fact: Fact | None
    problem: str = ""

    @property
    def id(self) -> str:
        """What names this fact in `cause` fields and in `rover story`."""
        return f"{FACTS}:{self.stored.sequence}"

    @property
    def envelope(self) -> Envelope:
        return read_envelope(self.stored.headers)

    @property
    def job(self) -> str:
        """The job it is about, "" when it is about a host alone."""
        return str(getattr(self.fact, "job", "") or "")


def read_happened(stored: Stored) -> Happened:
    """Type a stored fact; never raises."""
    try:
        return Happened(stored, read_fact(stored))
    except BadMessage as error:
        return Happened(stored, None, str(error))


async def read_facts(
    bus: Bus, filters: Iterable[str] = tuple(subjects.everywhere("rover.>")), *, first: int = 1
) -> AsyncIterator[Happened]:
    """Iterate the stored facts whose subject any of the filters takes, in the order in which they were stored."""
    filters = list(filters)
    if len(filters) == 1:
        async for stored in bus.read(FACTS, filters[0], first=first):
            yield read_happened(stored)
        return
    found = [read_happened(stored) for each in filters async for stored in bus.read(FACTS, each, first=first)]
    for happened in sorted(found, key=lambda each: each.stored.sequence):
        yield happened


@dataclass(slots=True)
class JobRow:
    """One job as its facts tell it: a line of `rover jobs`."""

    job: str
    uid: str = ""
    state: str = "submitted"
    reason: str = ""
    workers: int = 0
    servers: int = 0
    epoch: int = 0
    epochs: int = 0
    committed: int = 0
    total: int = 0
    dead_lettered: int = 0
    samples_per_second: float | None = None  # None once the job has ended
    planned: bool = False
    withheld: str = ""  # why the Brain makes no plan, as it last said
    master_hosts: list[str] = field(default_factory=list)
    term: int = 0
    leader: str = ""
    submitted_ms: int = 0
    ended_ms: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    spec: JobSpec | None = None
    forgotten: bool = False  # what is left of a job that was forgotten is no job
    rules_off: dict[str, str] = field(default_factory=dict)  # by name, why
    checkpoints: CheckpointDelay = field(default_factory=CheckpointDelay)

    def take(self, fact: JobFact, time_ms: int) -> None:
        """Take a fact of this job in."""
        self.checkpoints.take(fact, time_ms)
        match fact:
            case JobSubmitted(uid=uid, spec=spec):
                self.uid, self.epochs, self.submitted_ms = uid, spec.data.epochs, time_ms
                self.spec = spec
            case JobForgotten():
                self.forgotten = True
            case MasterElected(term=term, holder=holder):
                self.term, self.leader = term, holder
                self.state = "starting" if self.state == "submitted" else self.state
            case PlanProposed(masters=hosts):
                self.planned, self.master_hosts = True, self.master_hosts or hosts
            case PlanWithheld(reason=reason, constant=constant, asked_by=""):
                self.withheld = reason or constant.replace("_", " ")
            case PlanApplied(workers=workers, servers=servers):
                self.workers, self.servers = workers, servers
            case JobReported():
                self.state, self.epoch, self.committed = "running", fact.epoch, fact.committed
                self.total, self.dead_lettered = fact.total, fact.dead_lettered
                self.samples_per_second = fact.samples_per_second
            case RuleSwitchedOff(rule=rule, why=why):
                self.rules_off[rule] = why
            case RuleSwitchedOn(rule=rule):
                self.rules_off.pop(rule, None)
            case EpochClosed(epoch=epoch):
                self.epoch = epoch + 1
            case JobEnded(state=state, reason=reason, summary=summary):
                self.state, self.reason, self.summary, self.ended_ms = state, reason, summary, time_ms
                self.committed = _count(summary, "samples_committed", self.committed)
                self.total = _count(summary, "samples_total", self.total)
                self.dead_lettered = _count(summary, "samples_dead_lettered", self.dead_lettered)
                self.samples_per_second = None
            case _:
                pass  # the others do not matter here


def _count(summary: dict[str, Any], key: str, known: int) -> int:
    value = summary.get(key)
    return value if isinstance(value, int) else known


async def read_jobs(
    bus: Bus, job: str = "*", passed_over: Callable[[Happened], None] = lambda _: None
) -> dict[str, JobRow]:
    """Return all jobs, those of tenants too, or one, as their facts tell them, in the order of their submission.

    `passed_over` is told of each fact that no reader believes.
    """
    views: dict[str, JobRow] = {}
    wanted = [subjects.job_facts(job), subjects.host_facts(fact=HostStorageBlocked.kind())]
    async for happened in read_facts(bus, subjects.everywhere(*wanted) if job == "*" else wanted):
        fact, time_ms = happened.fact, happened.stored.time_ms
        if happened.problem:
            passed_over(happened)
        elif isinstance(fact, HostStorageBlocked) and fact.job in views:
            views[fact.job].checkpoints.take(fact, time_ms)
        elif isinstance(fact, JobFact):
            views.setdefault(fact.job, JobRow(fact.job)).take(fact, time_ms)
    return {name: view for name, view in views.items() if view.submitted_ms or not view.forgotten}


async def read_submissions(bus: Bus) -> list[str]:
    """Return the names of all jobs in the order of their submission."""
    kind = JobSubmitted.kind()
    found = [each.fact async for each in read_facts(bus, subjects.everywhere(subjects.job_facts("*", kind)))]
    return [fact.job for fact in found if isinstance(fact, JobSubmitted)]


async def read_job(bus: Bus, job: str) -> JobRow:
    """Return one job; raises InputError naming close ones when there is none."""
    views = await read_jobs(bus, subjects.name(job, "job"))
    if job not in views:
        import difflib

        known = await read_jobs(bus)
        close = difflib.get_close_matches(job, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else " (`rover jobs` lists them)" if known else ""
        raise InputError(f"there is no job {job!r}{hint}")
    return views[job]
