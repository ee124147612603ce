"""What happened, readable: one event a subject `rover.job.<job>.<noun>.<verb>` or `rover.host.<host>.<fact>`.

Facts of a job are an outbox of its log: the master derives them from its records, each carries the (log sequence, index)
it came from, and they are published in that order (protocol P18). Facts of people, the Brain and hosts have no position.
The type tag is `<noun>.<verb>.v<major>`; new fields have defaults; a changed meaning is a new major.

Here: jobs, members, slots. data_facts.py: batches and epochs; plan_facts.py: plans; host_facts.py: hosts and the cluster;
checkpoint_facts.py: checkpoints.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from rover_bus.events.data_facts import AboutData
from rover_bus.events.fact import Fact, JobFact, MasterFact, Position
from rover_bus.events.host_facts import AboutCluster, AboutHosts
from rover_bus.events.identity import DesiredMember, ExitReason, MasterSeat, Member, Role
from rover_bus.events.invariants import Bytes, Count, Fraction, Uid
from rover_bus.events.job import JobSpec
from rover_bus.events.plan_facts import (
    AboutPlans,
    BrainFact,
    IncidentClosed,
    IncidentOpened,
    JobForecast,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobResumeRequested,
    LosingPlan,
    PlanApplied,
    PlanApproved,
    PlanChecked,
    PlanKept,
    PlanMeasured,
    PlanModeSet,
    PlanProposed,
    PlanRefused,
    PlanRejected,
    PlanRequested,
    PlanRolledBack,
    PlanSettled,
    PlanWithheld,
    Size,
    StragglerFound,
    StragglerRecovered,
)
from rover_bus.events.routing import ServerAddress
from rover_bus.events.starts import ServerStart


class JobSubmitted(JobFact, frozen=True, kw_only=True, tag="job.submitted.v1"):
    """A person or a program submits a job. `uid` is random: two jobs of one name are told apart by it."""

    spec: JobSpec
    uid: Uid


class JobOpened(MasterFact, frozen=True, kw_only=True, tag="job.opened.v1"):
    """A master took the job up: its log begins. `timeline` is random, and new after a restore from a backup (P21)."""

    spec: JobSpec
    uid: str
    timeline: int


class JobStopRequested(JobFact, frozen=True, kw_only=True, tag="job.stop_requested.v1"):
    """A person, a program or the Brain wants the job to end: `drain` lets workers part-commit and leave, `cancel` ends at once;
    `finish` trains what is leased, evaluates as at the end of the data, and ends.
    """

    mode: Literal["drain", "cancel", "finish"]
    reason: str = ""
    brain_position: Position | None = None  # when the Brain asks: its target is reached


JobEnd = Literal["completed", "failed", "stopped", "cancelled"]


class JobEnded(MasterFact, frozen=True, kw_only=True, tag="job.ended.v1"):
    """The job is over. `reason` is a constant (`server_lost`, `deterministic_failure`, ...), `detail` is for people."""

    state: JobEnd
    reason: str = ""
    detail: str = ""
    summary: dict[str, Any] = {}


class JobRestored(MasterFact, frozen=True, kw_only=True, tag="job.restored.v1"):
    """The log was restored from a backup: what was decided after it is erased, and what bears another timeline is stale (P21)."""

    timeline: int
    backup: str = ""


class JobForgotten(JobFact, frozen=True, kw_only=True, tag="job.forgotten.v1"):
    """An ended job is gone from the broker: its log, its facts, its samples. Daemons remove what they keep of this `uid`."""

    uid: Uid
    reason: str = ""


class MasterElected(MasterFact, frozen=True, kw_only=True, tag="master.elected.v1"):
    """A master leads with a new term. `replayed_records` is what it had to read to know the job."""

    term: Count
    holder: str
    replayed_records: Count = 0


class RuleSwitchedOff(MasterFact, frozen=True, kw_only=True, tag="rule.switched_off.v1"):
    """A rule raised in three incarnations of a master (or of the Brain, by `brain_position`), and is left out by this `release`.

    `exact`: exactness rests on it, so the job is paused.
    """

    rule: str
    why: str
    release: str
    exact: bool = False
    brain_position: Position | None = None


class RuleSwitchedOn(MasterFact, frozen=True, kw_only=True, tag="rule.switched_on.v1"):
    """A rule that was left out runs again: another release is here, or a person resumed the job."""

    rule: str
    release: str
    brain_position: Position | None = None


class MembersDesired(MasterFact, frozen=True, kw_only=True, tag="members.desired.v1"):
    """Absolute desired state for platforms (P18). A lower (term, plan) of the same uid than one already seen is stale.

    `masters`: where the masters run from here on, by index; none named: where the plan said. `plan` counts every change of the
    set; `proposal` is the Brain's plan that is carried out by this one, 0 for a repair. `former`: workers that train on elsewhere
    until the incarnation that is named in `members` comes: they are kept, and never started.
    """

    term: Count = 0
    plan: Count
    members: list[DesiredMember]
    uid: str = ""
    masters: list[MasterSeat] = []
    proposal: Count = 0
    hosts: list[str] = []  # where members may run from here on; none named: as before
    slow_hosts: list[str] = []  # of these, the last to be taken
    former: list[DesiredMember] = []
    reason: str = ""

    def count(self, role: Role) -> int:
        """Return how many members of a role shall run."""
        return sum(desired.member.role == role for desired in self.members)


class MemberAdmitted(MasterFact, frozen=True, kw_only=True, tag="member.admitted.v1"):
    """An incarnation of a member is known to the master and may take part. `start`: what a server starts from (P5).

    `stages_at`: what keeps a server's parts where it is not the daemon of its host: it goes when the server goes.
    `release`, `format`: what it runs, and the last format that it reads; "" and 1 of one that says neither (0.3.0).
    `cores_held`: whether its own control group holds it to the cores that it was given; None: it did not say.
    """

    member: Member
    nonce: str = ""
    host: str = ""
    pid: Count = 0
    addresses: list[str] = []
    start: ServerStart | None = None
    stages_at: str = ""
    release: str = ""
    format: Count = 1
    cores_held: bool | None = None


class MemberLost(MasterFact, frozen=True, kw_only=True, tag="member.lost.v1"):
    """A member is proven dead (P19): its process ended, or three intervals were silent while the master was awake.

    Its leases return, minus what is committed. `last`: up to this incarnation its name is over (P21).
    """

    member: Member
    reason: str
    leases_returned: Count = 0
    detail: str = ""
    last: Count = 0


class MembersDisplaced(MasterFact, frozen=True, kw_only=True, tag="members.displaced.v1"):
    """A host is taken for lost, or its daemon left: its members go elsewhere; none is started there until it is heard again."""

    host: str
    reason: str = ""
    members: list[Member] = []


class MembersUnheard(BrainFact, frozen=True, kw_only=True, tag="members.unheard.v1"):
    """The Brain hears nothing any more of a host of this job. The master decides what that means: it hears members, not hosts.

    `stand_in`: no host with a master of the job is heard any more; until one says otherwise this one runs there, so that one can.
    """

    host: str
    stand_in: MasterSeat | None = None


class MemberLeft(MasterFact, frozen=True, kw_only=True, tag="member.left.v1"):
    """A member said goodbye: it holds nothing any more. `taken`: by what its host takes it away, "" where it goes by itself."""

    member: Member
    reason: str = ""
    taken: ExitReason | Literal[""] = ""


class RoutingChanged(MasterFact, frozen=True, kw_only=True, tag="routing.changed.v1"):
    """Which server holds which slots changed: a new routing epoch, or a new generation.

    `early_bytes`: not None while other servers are to take slots over as they arrive; the memory limit of each, 0 for none.
    """

    generation: Count
    epoch: Count
    owners: list[tuple[int, int, int]]  # server index, first slot, end slot
    servers: list[ServerAddress]
    early_bytes: Bytes | None = None


class SlotsMoveRequested(JobFact, frozen=True, kw_only=True, tag="slots.move_requested.v1"):
    """A person or the Brain wants slots elsewhere. Places are written `ps-0`.

    From `source` to `target` (none named: spread over the other servers): exactly `slots`, else the hottest ones until its
    traffic is level (`hot`), else a `share` of what it holds. Or everything off a `host`, onto new servers elsewhere.
    """

    source: str = ""
    target: str = ""
    share: Fraction = 1.0
    slots: list[tuple[int, int]] = []  # [first, end)
    hot: bool = False
    host: str = ""
    reason: str = ""
    brain_position: Position | None = None  # when the Brain asks: a server is hot


class MoveRefused(MasterFact, frozen=True, kw_only=True, tag="move.refused.v1"):
    """The master will not move slots as it was asked, and says why."""

    reason: str


class RolloutOpened(MasterFact, frozen=True, kw_only=True, tag="rollout.opened.v1"):
    """Servers change while training goes on: `joins` must be there first, `drops` leave last, so many `slots` move.

    `goal`: how slots shall lie (server index, first slot, end slot). `plan`: what asked for it, 0: a request to move slots.
    `again`: how often it was begun before, and interrupted. `first`: the job began with the first of its servers, and slots move to
    each of `joins` as it arrives.
    """

    rollout: Count
    goal: list[tuple[int, int, int]]
    slots: Count
    joins: list[Member] = []
    drops: list[Member] = []
    reason: str = ""
    plan: Count = 0
    again: Count = 0
    first: bool = False


class SlotsMoved(MasterFact, frozen=True, kw_only=True, tag="slots.moved.v1"):
    """Some slots lie on another server now, under a routing epoch of their own."""

    move: Count
    source: Member
    target: Member
    slots: list[tuple[int, int]]
    epoch: Count
    rows: Count = 0
    bytes: Bytes = 0


class MoveFailed(MasterFact, frozen=True, kw_only=True, tag="move.failed.v1"):
    """Some slots stay where they were; the routing did not change."""

    move: Count
    source: Member
    target: Member
    reason: str


RolloutOutcome = Literal["done", "rolled_back", "stopped", "interrupted"]


class RolloutClosed(MasterFact, frozen=True, kw_only=True, tag="rollout.closed.v1"):
    """A rollout is over: done; rolled back (nothing has moved); stopped (what has moved stays); interrupted by a rewind."""

    rollout: Count
    outcome: RolloutOutcome
    reason: str = ""


class WorkerFailed(MasterFact, frozen=True, kw_only=True, tag="worker.failed.v1"):
    """User code raised. `charged_batch` is the first uncommitted batch of its lease, -1 when it held none.

    `fingerprint`: two failures of one fingerprint are the same. `group`: of a synchronous job, whose step this failure broke or
    followed from: what it is charged to is said by `group.broken`.
    """

    member: Member
    exception: str
    message: str
    traceback: str = ""
    fingerprint: str = ""
    charged_epoch: int = -1
    charged_batch: int = -1
    group: Count = 0


class GroupFormed(MasterFact, frozen=True, kw_only=True, tag="group.formed.v1"):
    """These workers of a synchronous job take each step together from here on; the program has its barrier between them."""

    number: Count
    members: list[Member]


class GroupBroken(MasterFact, frozen=True, kw_only=True, tag="group.broken.v1"):
    """A step of a synchronous job failed, as `reason` says, and with it the group: the next one is formed of those that are left.

    `outside`: a member was lost through no fault of the program. `failed`: members whose program failed with it; `charged`: those
    of them whose failure counts. The failures of the others follow from it, and count against nothing.
    """

    number: Count
    reason: str
    outside: bool = False
    failed: list[Member] = []
    charged: list[Member] = []


class ResultReported(MasterFact, frozen=True, kw_only=True, tag="result.reported.v1"):
    """A named result of the job (`evaluate`): metrics and where files lie."""

    member: Member
    task: str
    values: dict[str, Any]


class JobReported(MasterFact, frozen=True, kw_only=True, tag="job.reported.v1"):
    """Progress of a job in figures, now and then: what `rover top` and `rover jobs` show."""

    epoch: Count
    committed: Count
    dead_lettered: Count
    total: Count
    samples_per_second: float = 0.0
    total_grows: bool = False  # of a stream: what was assigned so far, so that nothing follows for the end


# All facts of this file by what they are about: what narrates them (cli/views/narration.py) must know each.
AboutJob = (
    JobSubmitted
    | JobOpened
    | JobStopRequested
    | JobEnded
    | JobRestored
    | JobForgotten
    | JobReported
    | MasterElected
    | RuleSwitchedOff
    | RuleSwitchedOn
    | ResultReported
)
AboutMembers = (
    MembersDesired
    | MemberAdmitted
    | MemberLost
    | MembersDisplaced
    | MembersUnheard
    | MemberLeft
    | WorkerFailed
    | GroupFormed
    | GroupBroken
    | AboutHosts
)
AboutSlots = (
    RoutingChanged
    | SlotsMoveRequested
    | MoveRefused
    | RolloutOpened
    | SlotsMoved
    | MoveFailed
    | RolloutClosed
)
AnyFact = AboutJob | AboutMembers | AboutSlots | AboutData | AboutCluster | AboutPlans
FACTS: tuple[type[Fact], ...] = get_args(AnyFact)

# What other modules define and this one hands on.
__all__ = [
    "AboutPlans",
    "BrainFact",
    "Fact",
    "IncidentClosed",
    "IncidentOpened",
    "JobFact",
    "JobForecast",
    "JobPauseRequested",
    "JobPaused",
    "JobResumeRequested",
    "JobResumed",
    "LosingPlan",
    "PlanApplied",
    "PlanApproved",
    "PlanChecked",
    "PlanKept",
    "PlanMeasured",
    "PlanModeSet",
    "PlanProposed",
    "PlanRefused",
    "PlanRejected",
    "PlanRequested",
    "PlanRolledBack",
    "PlanSettled",
    "PlanWithheld",
    "Position",
    "Size",
    "StragglerFound",
    "StragglerRecovered",
]
