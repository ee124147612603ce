"""The Brain's decider: hosts and jobs as its log tells them, and one plan for every job that has none.

Fed by the shared shell (service.py) with facts; `decide` yields records that are evolved at once. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from rover_bus.brain.log import (
    BrainTermBegun,
    HostGone,
    HostSeen,
    JobGone,
    JobSeen,
    Proposed,
)
from rover_bus.brain.sizing import size_job
from rover_bus.events.facts import Fact, HostLeft, HostRegistered, JobEnded, JobSubmitted, PlanProposed
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import JobSpec
from rover_bus.events.log import Record
from rover_bus.events.outbox import FactOut, Outgoing

Steps = Generator[Record, None, None]


class KnownJob(msgspec.Struct):
    """A job that has not ended. `plan` is the number of its last plan, 0 while it waits."""

    uid: str
    spec: JobSpec
    plan: int = 0


class State(msgspec.Struct):
    """Everything that replay rebuilds."""

    history: int = 0
    term: int = 0
    hosts: dict[str, HostCapacity] = {}
    jobs: dict[str, KnownJob] = {}


class BrainDecider:
    """One cluster's deciding, and the state it decides on. `history` is drawn once by the shell's owner."""

    def __init__(self, history: int) -> None:
        self.state = State()
        self._new_history = history

    @property
    def history(self) -> int:
        return self.state.history

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, body: bytes) -> None:
        self.state = msgspec.msgpack.decode(body, type=State)

    def evolve(self, record: Record) -> None:
        """Apply one record of the Brain's log."""
        state = self.state
        match record:
            case BrainTermBegun(term=term, history=history):
                state.term, state.history = term, history
            case HostSeen(host=host, capacity=capacity):
                state.hosts[host] = capacity
            case HostGone(host=host):
                state.hosts.pop(host, None)
            case JobSeen(job=job, uid=uid, spec=spec):
                state.jobs[job] = KnownJob(uid, spec)
            case JobGone(job=job):
                state.jobs.pop(job, None)
            case Proposed(plan=plan):
                state.jobs[plan.job].plan = plan.plan

    def decide(self, input: Any, now: float) -> tuple[list[Record], None]:
        """Decide one input; the records are already evolved."""
        records: list[Record] = []
        for record in self._steps(input):
            self.evolve(record)
            records.append(record)
        return records, None

    def _steps(self, input: Any) -> Steps:
        match input:
            case BrainTermBegun():
                yield input
            case (Fact() as fact, str(cause)):
                yield from self._notice(fact, cause)
        yield from self._plan_waiting_jobs()

    def _notice(self, fact: Fact, cause: str) -> Steps:
        state = self.state
        match fact:
            case HostRegistered(host=host, capacity=capacity) if state.hosts.get(host) != capacity:
                yield HostSeen(host=host, capacity=capacity, cause=cause)
            case HostLeft(host=host) if host in state.hosts:
                yield HostGone(host=host, cause=cause)
            case JobSubmitted(job=job, uid=uid, spec=spec):
                known = state.jobs.get(job)
                if known is None or known.uid != uid:
                    yield JobSeen(job=job, uid=uid, spec=spec, cause=cause)
            case JobEnded(job=job) if job in state.jobs:
                yield JobGone(job=job, cause=cause)

    def _plan_waiting_jobs(self) -> Steps:
        state = self.state
        if not state.hosts or not state.history:
            return
        for job, known in state.jobs.items():
            if known.plan == 0:
                yield Proposed(plan=size_job(job, known.spec, state.hosts, 1), cause=f"job:{known.uid}")

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def outgoing(self, record: Record, position: tuple[int, int], term: int) -> list[Outgoing]:
        if not isinstance(record, Proposed):
            return []
        plan = record.plan.replace(brain_term=term, brain_position=position, cause=record.cause, by="brain")
        return [FactOut(plan, position)]

    def position_of(self, fact: Fact) -> tuple[int, int] | None:
        return fact.brain_position if isinstance(fact, PlanProposed) else None

    def standing(self) -> list[Outgoing]:
        return []

    # -- the shell's words ---------------------------------------------------------------------------------------------

    def took_over(self, holder: str, term: int, replayed_records: int, log_lost: bool) -> BrainTermBegun:
        history = self.state.history if self.state.history and not log_lost else self._new_history
        return BrainTermBegun(term=term, holder=holder, history=history)

    def noticed(self, fact: Fact, cause: str) -> tuple[Fact, str]:
        return fact, cause

    def ticked(self) -> None:
        """Nothing is due by time alone yet."""

    def bus_lost(self) -> None:
        """The Brain only listens."""

    def bus_regained(self) -> None:
        """Facts are followed from where they were left."""

    def asked(self, message: Any) -> Any:
        raise NotImplementedError("the Brain serves no requests yet")

    def refuse(self, code: str, text: str) -> Any:
        raise NotImplementedError("the Brain serves no requests yet")
