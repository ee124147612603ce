"""What the Brain decided: its own chained log on `rover.brain.log` (protocol P22). Same form and rules as a job's log."""

from __future__ import annotations

import msgspec

from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import JobSpec
from rover_bus.events.log import Caused, SnapshotChunk


class BrainTermBegun(Caused, frozen=True, kw_only=True, tag="brain.term.begun"):
    """A Brain leads from here on."""

    term: int
    holder: str
    history: int


class HostSeen(Caused, frozen=True, kw_only=True, tag="brain.host.seen"):
    """A host can give this to members."""

    host: str
    capacity: HostCapacity


class HostGone(Caused, frozen=True, kw_only=True, tag="brain.host.gone"):
    host: str


class JobSeen(Caused, frozen=True, kw_only=True, tag="brain.job.seen"):
    """A job waits for a plan."""

    job: str
    uid: str
    spec: JobSpec


class JobGone(Caused, frozen=True, kw_only=True, tag="brain.job.gone"):
    job: str


class Proposed(Caused, frozen=True, kw_only=True, tag="brain.plan.proposed"):
    """A plan goes out to a job's master."""

    plan: PlanProposed


BrainRecord = BrainTermBegun | HostSeen | HostGone | JobSeen | JobGone | Proposed | SnapshotChunk


class BrainBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="brain.batch.v1"):
    """One append of the Brain; the fields are those of events.log.LogBatch."""

    job: str
    history: int
    term: int
    holder: str
    number: int
    records: list[BrainRecord]
    inputs: dict[str, int] = {}
    time_ms: int = 0

    @property
    def id(self) -> tuple[int, int, str, int]:
        return (self.history, self.term, self.holder, self.number)
