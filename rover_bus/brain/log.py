"""What the Brain decided: its own chained log on `rover.brain.log` (protocol P22). Same form and rules as a job's log.

What others shall know is a fact, and published as it is; here is what the Brain keeps for itself.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.models.hosts import SLOW_MEMORY_S
from rover_bus.events.batch import BatchHeader
from rover_bus.events.facts import (
    IncidentClosed,
    IncidentOpened,
    JobForecast,
    JobPaused,
    JobResumed,
    JobStopRequested,
    MembersDesired,
    MembersUnheard,
    PlanApplied,
    PlanChecked,
    PlanKept,
    PlanMeasured,
    PlanModeSet,
    PlanProposed,
    PlanRefused,
    PlanRolledBack,
    PlanSettled,
    PlanWithheld,
    RuleSwitchedOff,
    RuleSwitchedOn,
    SlotsMoveRequested,
    StragglerFound,
    StragglerRecovered,
)
from rover_bus.events.host_facts import (
    ClusterModeSet,
    FreezeLifted,
    FreezeSet,
    HostMemberStalled,
    HostRecovered,
    HostSlow,
    QuotaSet,
)
from rover_bus.events.identity import HostCapacity, MasterSeat, Member
from rover_bus.events.job import JobSpec, PlanMode
from rover_bus.events.log import Caused, RecordPiece, SnapshotChunk

# What the Brain takes in as it was said; all else it keeps in a form of its own.
ObservedFact = (
    PlanApplied
    | PlanChecked
    | PlanModeSet
    | PlanRefused
    | PlanSettled
    | JobPaused
    | JobResumed
    | JobStopRequested
    | HostMemberStalled
)


class BrainTermBegun(Caused, frozen=True, kw_only=True, tag="brain.term.begun"):
    """A Brain leads from here on. `resumed_from`: the sequence of this log that its state was rebuilt to."""

    term: int
    holder: str
    timeline: int
    resumed_from: int = 0
    mode: PlanMode = "auto"  # what it was started with; what a person said since then comes first
    quotas: dict[str, Budget] = {}
    fair_share: float = 0.0
    slow_memory_s: float = SLOW_MEMORY_S  # what a host showed halves in so long


class HostSeen(Caused, frozen=True, kw_only=True, tag="brain.host.seen"):
    """A host can give this to members. `sample_s`: how often it said that it takes samples; 0: it did not."""

    host: str
    capacity: HostCapacity
    sample_s: float = 0.0


class HostGone(Caused, frozen=True, kw_only=True, tag="brain.host.gone"):
    """What a host gave is not there any more. `displaced`: it is silent without notice; its next sample proves the contrary.

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
    """A job is over. `past`: what later ones may learn from it, None when it never ran. `lost`: members that were taken from
    it since its last window, from outside, in `watched_s`.
    """

    job: str
    past: PastJob | None = None
    lost: int = 0
    watched_s: float = 0.0


class ClusterObserved(Caused, frozen=True, kw_only=True, tag="brain.cluster.observed"):
    """A person said what holds for the whole cluster."""

    fact: ClusterModeSet | QuotaSet


class FreezeObserved(Caused, frozen=True, kw_only=True, tag="brain.freeze.observed"):
    """A person said when no running job is to be changed, or said it no more."""

    since_format: ClassVar[int] = 2
    fact: FreezeSet | FreezeLifted


class FreezesTurned(Caused, frozen=True, kw_only=True, tag="brain.freezes.turned"):
    """These freezes hold from here on, by name, and no other; `over` do not come again."""

    since_format: ClassVar[int] = 2
    in_force: dict[str, float]  # until when, in seconds of Unix time
    over: list[str] = []


class FactObserved(Caused, frozen=True, kw_only=True, tag="brain.fact.observed"):
    """Something happened to a plan, or a person said something.

    `took_s`: from a plan being carried out until its members had joined, of `plan.settled`; 0: this Brain did not observe both.
    """

    fact: ObservedFact
    took_s: float = 0.0


class MembersSeen(Caused, frozen=True, kw_only=True, tag="brain.members.seen"):
    """The members that shall run of a job: the snapshot that plans are computed from (P22).

    `masters`: where they are now, where that is something else. `former`: those that train on until the incarnation that is among
    the members comes.
    """

    job: str
    members_plan: int
    members: list[Member]
    log_sequence: int = 0
    masters: list[MasterSeat] = []
    hosts: list[str] = []  # of the members, in their order
    former: list[Member] = []
    former_hosts: list[str] = []  # of these

    @staticmethod
    def of(fact: MembersDesired, cause: str) -> MembersSeen:
        """Return what a fact of a job's master says of its members."""
        return MembersSeen(
            job=fact.job,
            members_plan=fact.plan,
            members=[desired.member for desired in fact.members],
            hosts=[desired.host for desired in fact.members],
            log_sequence=fact.position[0] if fact.position else 0,
            masters=fact.masters,
            former=[desired.member for desired in fact.former],
            former_hosts=[desired.host for desired in fact.former],
            cause=cause,
        )


class WindowsStretched(Caused, frozen=True, kw_only=True, tag="brain.windows.stretched"):
    """All windows are so many times as long as set from here on: the Brain does not keep up, or does again (1).

    `windows_left`: those that were due and not closed when the next look came; `samples` that came since the last one.
    """

    stretch: float
    windows_left: int = 0
    samples: int = 0


class RoundBegun(Caused, frozen=True, kw_only=True, tag="brain.round.begun"):
    """A round of all jobs takes more than one input: it has chosen, and these are still to be changed, in this order."""

    jobs: list[str]


class RoundAdvanced(Caused, frozen=True, kw_only=True, tag="brain.round.advanced"):
    """So many more of the round's jobs had their turn."""

    done: int


class WorkerWindow(msgspec.Struct, frozen=True, array_like=True):
    """One worker in a window: samples a second; the same by its working seconds only (waits for leases left out), -1 unknown;
    the share of its time that went into reading input; and samples a second that it read and computed itself, -1 unknown.
    """

    index: int
    incarnation: int
    rate: float
    pace: float
    input_share: float
    own: float = -1.0


class WindowClosed(Caused, frozen=True, kw_only=True, tag="brain.window"):
    """What a job did for some seconds: all that is kept of its samples. `clean`: every wanted worker was observed throughout.
    `present`: so many workers were, and all others have not said a word yet: they are on their way; 0: that is not so.

    `server_bytes`, `server_cores`: by member name. `server_needs`: bytes that a server uses and that its next cuts will take.
    `cores_used`: of one member, by role. `cores_peak`: in its busiest tenths of a second, of roles where that was measured.
    `batch_s`: seconds that a batch took a worker, 0 where none was counted. `loss`, `auc`: means, 0 when not reported.
    `lost`: members that were taken from the job since the window before, from outside, in `watched_s`: a change begins another
    window, this time goes on.
    """

    job: str
    seconds: float
    clean: bool
    present: int = 0
    workers: list[WorkerWindow] = []
    server_bytes: dict[str, int] = {}
    server_needs: dict[str, int] = {}
    cores_used: dict[str, float] = {}
    cores_peak: dict[str, float] = {}
    server_cores: dict[str, float] = {}
    server_slots: dict[str, list[tuple[int, float]]] = {}  # as 0.3 wrote them: nothing came to read them
    batch_s: float = 0.0
    loss: float = 0.0
    auc: float = 0.0
    committed: int = 0
    total: int = 0
    log_sequence: int = 0
    lost: int = 0
    watched_s: float = 0.0


class BrainRuleSwitched(Caused, frozen=True, kw_only=True, tag="brain.rule.switched"):
    """A rule is left out (`off`), because it raised in three incarnations of this release, or runs again. `job` "": of all jobs."""

    rule: str
    off: bool
    release: str
    why: str = ""
    job: str = ""


# What the Brain decides that others shall know.
DecidedOfJob = (
    PlanProposed
    | PlanWithheld
    | PlanMeasured
    | PlanKept
    | PlanRolledBack
    | StragglerFound
    | StragglerRecovered
    | IncidentOpened
    | IncidentClosed
    | JobForecast
    | JobStopRequested
    | SlotsMoveRequested
    | MembersUnheard
    | RuleSwitchedOff
    | RuleSwitchedOn
)
BrainDecided = DecidedOfJob | HostSlow | HostRecovered
OfOneJob = MembersSeen | WindowClosed | SnapshotChunk | DecidedOfJob
BrainRecord = (
    BrainTermBegun
    | HostSeen
    | HostGone
    | JobSeen
    | JobGone
    | FactObserved
    | ClusterObserved
    | FreezeObserved
    | FreezesTurned
    | BrainRuleSwitched
    | WindowsStretched
    | RoundBegun
    | RoundAdvanced
    | HostSlow
    | HostRecovered
    | OfOneJob
)


class BrainBatch(BatchHeader, frozen=True, kw_only=True, tag="brain.batch.v1"):
    """One append of the Brain."""

    records: list[BrainRecord | RecordPiece]
