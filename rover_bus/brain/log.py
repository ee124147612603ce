"""What the Brain decided: its own chained log on `rover.brain.log` (protocol P22). Same form and rules as a job's log."""

from __future__ import annotations

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.events.batch import BatchHeader
from rover_bus.events.facts import (
    ClusterModeSet,
    JobPaused,
    JobResumed,
    JobStopRequested,
    PlanApplied,
    PlanChecked,
    PlanModeSet,
    PlanProposed,
    PlanRefused,
    PlanSettled,
    QuotaSet,
    Size,
)
from rover_bus.events.identity import HostCapacity, MasterSeat, Member
from rover_bus.events.job import JobSpec, PlanMode
from rover_bus.events.log import Caused, RecordPiece, SnapshotChunk

# What the Brain takes in as it was said; all else it keeps in a form of its own.
Heard = (
    PlanApplied
    | PlanChecked
    | PlanModeSet
    | PlanRefused
    | PlanSettled
    | JobPaused
    | JobResumed
    | JobStopRequested
)


class BrainTermBegun(Caused, frozen=True, kw_only=True, tag="brain.term.begun"):
    """A Brain leads from here on. `resumed_from`: the sequence of this log that its state was rebuilt to."""

    term: int
    holder: str
    history: int
    resumed_from: int = 0
    mode: PlanMode = "auto"  # what it was started with; what people said since then comes first
    quotas: dict[str, Budget] = {}


class HostSeen(Caused, frozen=True, kw_only=True, tag="brain.host.seen"):
    """A host can give this to members. `sample_s`: how often it said that it takes samples; 0: it did not."""

    host: str
    capacity: HostCapacity
    sample_s: float = 0.0


class HostGone(Caused, frozen=True, kw_only=True, tag="brain.host.gone"):
    """What a host gave is not there any more. `displaced`: nobody said so, it is silent; its next sample proves the contrary.

    `unheard`: the Brain itself misses its samples; else a job misses its members, and shrinking makes room for these.
    """

    host: str
    displaced: bool = False
    unheard: bool = False


class JobSeen(Caused, frozen=True, kw_only=True, tag="brain.job.seen"):
    """A job waits for a plan."""

    job: str
    uid: str
    spec: JobSpec


class JobGone(Caused, frozen=True, kw_only=True, tag="brain.job.gone"):
    """A job is over. `past`: what later ones may learn from it, None when it never ran."""

    job: str
    past: PastJob | None = None


class ClusterHeard(Caused, frozen=True, kw_only=True, tag="brain.cluster.heard"):
    """A person said what holds for the whole cluster."""

    fact: ClusterModeSet | QuotaSet


class FactHeard(Caused, frozen=True, kw_only=True, tag="brain.fact.heard"):
    """Something happened to a plan, or a person said something."""

    fact: Heard


class MembersSeen(Caused, frozen=True, kw_only=True, tag="brain.members.seen"):
    """Who shall run of a job: the snapshot that plans are computed from (P22).

    `masters`: where they are now, where that is something else. `unheard`: the same set, but this host of its is silent.
    """

    job: str
    members_plan: int
    members: list[Member]
    log_sequence: int = 0
    masters: list[MasterSeat] = []
    unheard: str = ""


class WorkerWindow(msgspec.Struct, frozen=True, array_like=True):
    """One worker in a window: samples a second; the same by its working seconds only (waits for leases left out), -1 unknown;
    and the share of its time that went into reading input.
    """

    index: int
    incarnation: int
    rate: float
    pace: float
    input_share: float


class WindowClosed(Caused, frozen=True, kw_only=True, tag="brain.window"):
    """What a job did for some seconds: all that is kept of its samples. `clean`: every wanted worker was heard throughout.

    `server_bytes`, `server_cores`: by place. `cores_used`: of one member, by role. `loss`, `auc`: means, 0 when nobody said.
    """

    job: str
    seconds: float
    clean: bool
    workers: list[WorkerWindow] = []
    server_bytes: dict[str, int] = {}
    cores_used: dict[str, float] = {}
    server_cores: dict[str, float] = {}
    server_slots: dict[str, list[tuple[int, float]]] = {}  # by place: its hottest slots, keys a second each
    loss: float = 0.0
    auc: float = 0.0
    committed: int = 0
    total: int = 0
    log_sequence: int = 0


class ChangeJudged(Caused, frozen=True, kw_only=True, tag="brain.change.judged"):
    """A change was measured: kept, or to be taken back. Samples a second."""

    job: str
    plan: int
    keep: bool
    constant: str
    before: float
    after: float
    predicted: float
    windows: int


class Withheld(Caused, frozen=True, kw_only=True, tag="brain.withheld"):
    """Why a job is left as it is, said once until it is something else. `waits_for`: jobs that must shrink first (P22)."""

    job: str
    constant: str
    detail: str = ""
    wanted: Size | None = None
    waits_for: list[str] = []


class StragglerNoted(Caused, frozen=True, kw_only=True, tag="brain.straggler"):
    """A worker became a straggler (`found`), or is none any more."""

    job: str
    member: Member
    found: bool
    share: float
    lease_share: float = 1.0
    rate: float = 0.0
    usual: float = 0.0
    constant: str = ""


class IncidentNoted(Caused, frozen=True, kw_only=True, tag="brain.incident"):
    """A server's memory will meet its limit (`opened`), or is out of danger."""

    job: str
    member: Member
    incident: str
    opened: bool
    constant: str = ""
    used_bytes: int = 0
    limit_bytes: int = 0
    seconds_left: float = -1.0
    plan: int = 0


class HotServerFound(Caused, frozen=True, kw_only=True, tag="brain.server.hot"):
    """One server is hot while the others are not: its hot slots shall move."""

    job: str
    member: Member
    busy: float  # cores it keeps busy
    mean: float  # of all servers


class Foreseen(Caused, frozen=True, kw_only=True, tag="brain.forecast"):
    """When a job reaches its target; `stop`: now."""

    job: str
    stop: bool
    constant: str
    eta_s: float = -1.0
    low_90_s: float = -1.0
    high_90_s: float = -1.0
    value: float = 0.0
    target: float = 0.0
    metric: str = "loss"


class Proposed(Caused, frozen=True, kw_only=True, tag="brain.plan.proposed"):
    """A plan goes out to a job's master."""

    plan: PlanProposed


class BrainRuleSwitched(Caused, frozen=True, kw_only=True, tag="brain.rule.switched"):
    """A rule is left out (`off`), because it raised in three incarnations of this release, or runs again. `job` "": of all jobs."""

    rule: str
    off: bool
    release: str
    why: str = ""
    job: str = ""
    jobs: list[str] = []  # that there are, where it is of all: they are told


BrainRecord = (
    BrainTermBegun
    | HostSeen
    | HostGone
    | JobSeen
    | JobGone
    | FactHeard
    | ClusterHeard
    | MembersSeen
    | WindowClosed
    | ChangeJudged
    | Withheld
    | StragglerNoted
    | IncidentNoted
    | HotServerFound
    | Foreseen
    | Proposed
    | BrainRuleSwitched
    | SnapshotChunk
)


class BrainBatch(BatchHeader, frozen=True, kw_only=True, tag="brain.batch.v1"):
    """One append of the Brain."""

    records: list[BrainRecord | RecordPiece]
