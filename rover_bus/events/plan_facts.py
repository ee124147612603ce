"""The life of a plan: proposed, checked, approved, applied, settled, measured, kept or rolled back; and what the Brain sees.

    Brain      plan.proposed                        plan.measured   plan.kept | plan.rolled_back (another plan takes it back)
    master              plan.checked | plan.refused          plan.applied   plan.settled
    people     plan.requested   plan.approved | plan.rejected

Every one names its plan and a reason constant (`constant`); `reason` is the same for people. A plan is absolute (protocol P22):
it says what shall be, from which snapshot (`log_sequence`, `members_plan`) and under which Brain term. Throughput is in samples
a second throughout. Facts of the Brain carry their place in the Brain's own log.
"""

from __future__ import annotations

from typing import Literal

from rover_bus.events.fact import JobFact, MasterFact, Position
from rover_bus.events.identity import Member
from rover_bus.events.invariants import Bytes, Checked, Cores, Count, Members, Seconds
from rover_bus.events.job import PlanMode

# What a plan is for: the first size, a measurement, more or less of it, taking one back, memory, a slow worker, other jobs, people.
PlanStep = Literal["start", "probe", "scale", "rollback", "relief", "trim", "replace", "room", "asked"]

TRIAL = "trial"  # the constant of a person's plan that the Brain shall judge like one of its own


class Size(Checked, frozen=True, kw_only=True, gc=False):
    """How many of each role, and how big each is; 0 cores or bytes: no limit. What plans hold, want and pass over."""

    workers: Count
    servers: Count
    worker_cores: Cores = 0.0
    server_cores: Cores = 0.0
    worker_memory_bytes: Bytes = 0
    server_memory_bytes: Bytes = 0

    @property
    def shape(self) -> tuple[int, int, float, float]:
        """Counts and cores: what throughput depends on, as memory limits are none of it."""
        return self.workers, self.servers, self.worker_cores, self.server_cores


class LosingPlan(Checked, frozen=True, kw_only=True):
    """An alternative that was not taken: why (a constant), by which score, and what it was believed to reach."""

    size: Size
    reason: str
    score: float = 0.0
    throughput: float = 0.0


class BrainFact(JobFact, frozen=True, kw_only=True):
    """A fact that the Brain decided: its term, and its place in the Brain's own log."""

    brain_term: Count = 0
    brain_position: Position | None = None


class PlanProposed(JobFact, frozen=True, kw_only=True, tag="plan.proposed.v1"):
    """The Brain's absolute plan: how many of each role, how big, where. `log_sequence` is what it was computed from (P22)."""

    plan: Count
    brain_term: Count = 0
    brain_position: Position | None = None  # in the Brain's own log
    log_sequence: Count = 0  # of the job's log: the newest record whose fact the Brain had seen
    workers: Members
    servers: Members
    worker_cores: Cores = 0.0
    server_cores: Cores = 0.0
    worker_memory_bytes: Bytes = 0
    server_memory_bytes: Bytes = 0
    hosts: list[str] = []
    slow_hosts: list[str] = []  # of these: a member is placed there only where no other host is left
    worker_hosts: list[
        str
    ] = []  # for new and replaced workers, in their order; those beyond it go over `hosts` in turn
    server_hosts: list[str] = []  # the same of servers
    masters: list[str] = []
    reason: str = ""
    scores: dict[str, float] = {}
    step: PlanStep = "start"
    mode: PlanMode = "auto"  # the cluster's or the job's, whichever is stricter
    constant: str = ""
    members_plan: Count = 0  # the number of the member set it was computed from; 0: any
    resumed_from: Count = 0  # the sequence of the Brain's log from which its present term went on
    held: Size | None = None
    losers: list[LosingPlan] = []
    constraints: list[str] = []  # what the user fixed and the plan therefore keeps (S21)
    measured: float = 0.0  # samples a second now
    predicted: float = 0.0  # and under this plan, with its 90 % interval
    predicted_low_90: float = 0.0
    predicted_high_90: float = 0.0
    released_by: list[str] = []  # jobs whose shrink must be applied before this plan may grow
    replaces: list[Member] = []  # incarnations that end and are followed by the next of their member
    stays: list[Member] = []  # of these, workers that train on until that one comes
    rolls_back: Count = 0  # the plan that this one takes back
    incident: str = ""

    @property
    def size(self) -> Size:
        """What shall be."""
        return Size(
            workers=self.workers,
            servers=self.servers,
            worker_cores=self.worker_cores,
            server_cores=self.server_cores,
            worker_memory_bytes=self.worker_memory_bytes,
            server_memory_bytes=self.server_memory_bytes,
        )


class PlanRequested(JobFact, frozen=True, kw_only=True, tag="plan.requested.v1"):
    """A person (`by`) wants another size; 0: as many as now. The Brain answers with a plan (`asked`), or withholds it and says why.

    `trial`: judged like the Brain's own, and taken back when it does not pay. `beyond_limits`: the job file's own limits do not
    count; quota and capacity do.
    """

    workers: Members = 0
    servers: Members = 0
    trial: bool = False
    beyond_limits: bool = False
    reason: str = ""


class PlanChecked(MasterFact, frozen=True, kw_only=True, tag="plan.checked.v1"):
    """The master found nothing against a plan: it is carried out, waits for approval, or is only observed, by `mode`."""

    plan: Count
    outcome: Literal["passed", "waits", "observed"] = "passed"
    mode: PlanMode = "auto"
    brain_term: Count = 0


class PlanRefused(MasterFact, frozen=True, kw_only=True, tag="plan.refused.v1"):
    """The master will not carry a plan out, and says why."""

    plan: Count
    reason: str
    constant: str = ""


class PlanWithheld(BrainFact, frozen=True, kw_only=True, tag="plan.withheld.v1"):
    """The Brain leaves a job as it is, and says why: pinned by the user, a quota, no room, or it waits for others to shrink.

    `asked_by`: the person whose request this refuses; "": a wish of the Brain's own. `again_s`: Unix time in seconds before which a
    withdrawn start is not offered again while the cluster has no more room; 0: at any time.
    """

    constant: str
    reason: str = ""
    wanted: Size | None = None
    waits_for: list[str] = []
    asked_by: str = ""
    again_s: Seconds = 0.0


class PlanApproved(JobFact, frozen=True, kw_only=True, tag="plan.approved.v1"):
    """A person (`by`) lets a waiting plan pass. The master checks it once more before it is applied."""

    plan: Count
    reason: str = ""


class PlanRejected(JobFact, frozen=True, kw_only=True, tag="plan.rejected.v1"):
    """A person (`by`) says no to a waiting plan."""

    plan: Count
    reason: str = ""


class PlanModeSet(JobFact, frozen=True, kw_only=True, tag="plan.mode_set.v1"):
    """A person (`by`) says what becomes of this job's plans from now on."""

    mode: PlanMode


class PlanApplied(MasterFact, frozen=True, kw_only=True, tag="plan.applied.v1"):
    """The master carries a plan out from now on. `approved_by`: the person who let it pass, where one had to."""

    plan: Count
    workers: Count
    servers: Count
    reason: str = ""
    size: Size | None = None
    constant: str = ""
    approved_by: str = ""
    members_plan: Count = 0


class PlanSettled(MasterFact, frozen=True, kw_only=True, tag="plan.settled.v1"):
    """All members of a plan take part and those that it dropped are gone: from here on it is measured, and cooldown counts."""

    plan: Count
    members_plan: Count = 0


class JudgedPlan(BrainFact, frozen=True, kw_only=True):
    """What a plan brought: medians of the windows before and after in samples a second, beside what was predicted."""

    plan: Count
    before: float
    after: float
    predicted: float


class PlanMeasured(JudgedPlan, frozen=True, kw_only=True, tag="plan.measured.v1"):
    """The windows of a plan are complete: what it brought is known."""

    windows: Count = 0


class PlanKept(JudgedPlan, frozen=True, kw_only=True, tag="plan.kept.v1"):
    """A plan brought what was asked of it."""

    constant: str


class PlanRolledBack(JudgedPlan, frozen=True, kw_only=True, tag="plan.rolled_back.v1"):
    """A plan did not pay: `by_plan` takes it back."""

    by_plan: Count
    constant: str


class StragglerFound(BrainFact, frozen=True, kw_only=True, tag="straggler.found.v1"):
    """A worker is slow against its peers or its own past. Its leases are `lease_share` of the usual size while it is (S18); of a
    synchronous job 1.0, and all others wait for it.
    """

    member: Member
    share: float  # its rate over what is expected of it
    lease_share: float
    rate: float  # samples a second
    usual: float
    constant: str


class StragglerRecovered(BrainFact, frozen=True, kw_only=True, tag="straggler.recovered.v1"):
    """A straggler is as fast as it should be again, or gone."""

    member: Member
    share: float


class IncidentOpened(BrainFact, frozen=True, kw_only=True, tag="incident.opened.v1"):
    """A member will meet its memory limit: one incident until it is over (S10). `constant` names the relief."""

    incident: str
    member: Member
    constant: str
    used_bytes: Bytes
    limit_bytes: Bytes  # after the relief
    seconds_left: (
        float  # until the upper bound of the forecast meets the limit it had; -1: never within the forecast
    )
    plan: Count = 0


class IncidentClosed(BrainFact, frozen=True, kw_only=True, tag="incident.closed.v1"):
    """The danger is over: the limit outlives the forecast again, or the member is gone."""

    incident: str
    member: Member
    used_bytes: Bytes = 0
    limit_bytes: Bytes = 0


class JobForecast(BrainFact, frozen=True, kw_only=True, tag="job.forecast.v1"):
    """When a job will have reached what its `stop` asks for, in seconds from now; -1: out of reach by what is known."""

    constant: str
    eta_s: float
    low_90_s: float
    high_90_s: float
    value: float = 0.0  # of the metric, now
    target: float = 0.0
    metric: str = "loss"


class JobPauseRequested(JobFact, frozen=True, kw_only=True, tag="job.pause_requested.v1"):
    """A person (`by`) wants the workers to leave. `release`: the servers too, once a checkpoint is stored."""

    reason: str = ""
    release: bool = False


class JobResumeRequested(JobFact, frozen=True, kw_only=True, tag="job.resume_requested.v1"):
    """A person (`by`) wants the job to go on where it was.

    A job of which no checkpoint can be restored: `from_nothing`, or from cut `checkpoint`; neither: all are tried again.
    """

    reason: str = ""
    from_nothing: bool = False
    checkpoint: Count = 0


class JobPaused(MasterFact, frozen=True, kw_only=True, tag="job.paused.v1"):
    """No worker shall run; the job waits as it is for `job.resume_requested` (or, paused by a plan, for room).

    `release`: its servers leave as soon as a checkpoint on storage holds all that was trained, and without any member it holds no
    room: resumed, it waits for a plan.
    """

    reason: str = ""
    workers: Count = 0  # that it will have again
    plan: Count = 0
    release: bool = False


class JobResumed(MasterFact, frozen=True, kw_only=True, tag="job.resumed.v1"):
    """The job has workers again. `workers` 0: once a plan names them, as all of its members were released."""

    workers: Count = 0


AboutLifeOfPlan = (
    PlanProposed
    | PlanChecked
    | PlanRefused
    | PlanWithheld
    | PlanApplied
    | PlanSettled
    | PlanMeasured
    | PlanKept
    | PlanRolledBack
)
AboutWords = (
    PlanRequested
    | PlanApproved
    | PlanRejected
    | PlanModeSet
    | JobPauseRequested
    | JobResumeRequested
    | JobPaused
    | JobResumed
)
AboutFindings = StragglerFound | StragglerRecovered | IncidentOpened | IncidentClosed | JobForecast
AboutPlans = AboutLifeOfPlan | AboutWords | AboutFindings
