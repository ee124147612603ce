"""What the Brain knows, as its log tells it: hosts, jobs, what each was measured to do at each size. Changed by evolution.py only.

Time is a job's own: the sum of the windows in which it was watched. A Brain that was away for a minute has not lived it, and a
replay goes through the same time again (protocol P22).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.stragglers import WorkerPace
from rover_bus.brain.decisions.warm_start import PastJob
from rover_bus.brain.models.hazard import LossCount
from rover_bus.brain.models.hosts import SLOW_MEMORY_S, HostEvidence
from rover_bus.brain.models.samples import Configuration
from rover_bus.events import causes
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, MasterSeat, Member
from rover_bus.events.job import JobSpec, PlanMode

# What a member without a limit is charged with before its use is known: enough to count, too little to stand in the way.
UNKNOWN_CORES = 0.1
WINDOWS_KEPT = 6
# Windows of one size that differ by more than this share of their median tell sizes apart no more.
UNREST = 0.5
UNMEASURED_CHANGE_S = 3.0  # before any change was measured in this cluster
UNSEEN_SHARE = 0.08  # of a window: a change that takes less of it is lost in its noise
STEPS_A_WINDOW = 4.0  # batches of a worker that one measurement covers at least,
LONGEST_WINDOW_S = 300.0  # unless that takes longer than this


class TriedSize(msgspec.Struct, gc=False):
    """One size of a job as measured: the fading mean of its windows' throughput in samples a second, and how it scattered."""

    size: Size
    weight: float = 0.0
    mean: float = 0.0
    scatter: float = 0.0  # weighted sum of squared deviations
    input_share: float = 0.0
    worker_cores: float = 0.0  # that one worker and one server used, 0 not measured
    server_cores: float = 0.0
    crosses: bool = False  # a ring, on several hosts
    worker_peak: float = 0.0  # cores that one used in its busiest tenths of a second, 0 not measured
    server_peak: float = 0.0
    passing: bool = False  # no plan asked for it: others were on their way


class FamilySample(msgspec.Struct, frozen=True, gc=False):
    """One size as one run of a family measured it: samples a second, and the cores that a worker and a server used under a limit
    that held (0: none did).
    """

    run: str
    at: Configuration
    throughput: float
    input_share: float = 0.0
    worker_cores: float = 0.0
    server_cores: float = 0.0
    crosses: bool = False  # a ring, on several hosts
    worker_peak: float = 0.0  # cores that one used in its busiest tenths of a second, 0 not measured
    server_peak: float = 0.0


class Change(msgspec.Struct):
    """A plan under way: from its proposal to its verdict. Windows are samples a second; `since_s` is the job's clock."""

    plan: int
    step: str
    before: Size
    after: Size
    predicted: float
    since_s: float
    base: list[float] = []
    windows: list[float] = []
    applied: bool = False
    settled: bool = False
    by_person: bool = False
    waits: bool = False  # for a person's word
    members_plan: int = 0  # the member set that it was computed from
    watched_s: float = 0.0  # of windows that closed while it was carried out
    low_90: float = 0.0  # the lower end of what was predicted, 0: of that nothing was said
    constant: str = ""  # what it was proposed for
    rolls_back: int = 0  # the plan that it takes back

    @property
    def usual(self) -> float:
        """Samples a second before it: the median of those windows, 0 where there was none."""
        return median(self.base) if self.base else 0.0


class Ceiling(msgspec.Struct, frozen=True, array_like=True):
    """A size that was taken back, the samples a second that it reached, and when by the job's clock. `before`: what it had grown
    from; None in a log of before that was kept.
    """

    size: Size
    speed: float
    at_s: float
    before: Size | None = None

    @property
    def of_workers(self) -> bool:
        """Whether it was more workers that did not pay: then as many of them bound what is believed, whatever cores they have."""
        return self.before is None or self.size.workers > self.before.workers


class TimeScales(msgspec.Struct, frozen=True):
    """What members' starts and changes of size took, in seconds; None: none was measured."""

    start_s: float | None = None  # from a plan being carried out until its new members had joined
    change_s: float | None = None  # of the usual speed, that one change took


class UsualPace(msgspec.Struct, frozen=True):
    """The log of what a worker's own pace is at a size of its job, on hosts that are not slow; from so many windows."""

    size: Size
    pace: float
    windows: int = 1


class KnownJob(msgspec.Struct):
    """A job that has not ended. `plan` is the number of its newest plan, 0 while it waits for the first."""

    uid: str
    spec: JobSpec
    plan: int = 0
    mode: str = ""
    hosts: list[str] = []
    masters: list[str] = []
    seats: list[MasterSeat] = []  # where its masters are now
    cold: bool = False
    members_plan: int = 0
    members: list[Member] = []
    # Workers that train while others are on their way, and in how many windows in a row.
    present: tuple[int, int] = (0, 0)
    stalled: list[Member] = []  # of these, since the last plan was live: they cannot start,
    stalled_by: str = ""  # for what the cluster said of the last one,
    stalled_cause: str = ""  # by this fact
    held: Size | None = None
    rest: Size | None = None  # what it had before it made room for others
    log_sequence: int = 0
    clock_s: float = 0.0
    settled_s: float = float("-inf")
    slowest_start_s: float = 0.0  # from a plan with new members being carried out until all of them took part
    usual_scales: TimeScales = TimeScales()  # of its family, else of the cluster, when it came
    step_s: float = 0.0  # in which a worker commits one batch; 0 before the first window
    rollbacks: int = 0
    moves: int = 0  # how often its running members were given another size
    lost_s: float = 0.0  # of its clock, while such changes were carried out
    settled_moves: int = 0  # such changes whose cost `lost_s` has
    probes: int = 0  # sizes that were tried to learn from
    recent: list[float] = []  # clean windows at the present size, newest last
    slowed: list[float] = []  # those in which a worker was known to be slow: they say nothing of the size
    change: Change | None = None
    tried: list[TriedSize] = []
    ceilings: list[Ceiling] = []  # of growth that did not pay
    declined: list[tuple[Size, float]] = []  # observed or rejected, and when
    paces: dict[int, WorkerPace] = {}
    stragglers: dict[int, str] = {}  # by index: the remedy in force
    cores_used: dict[str, float] = {}  # of one member, by role: on average,
    cores_peak: dict[str, float] = {}  # and in its busiest tenths of a second
    samples: float = 0.0  # trained while watched
    committed: int = 0
    began_with: tuple[float, int] = (0.0, 0)  # both, when its last start was proposed
    total: int = 0
    memory: dict[str, list[tuple[float, int]]] = {}  # by member name: (samples, bytes)
    say_needs: list[str] = []  # servers that say what they need: what hosts see of them is less
    incidents: dict[str, str] = {}  # open ones, by member name
    incidents_made: int = 0
    losses: list[tuple[float, float]] = []  # (steps, loss or 1 - AUC)
    paused: bool = False
    releases: bool = False  # its servers leave too; once no member is left it holds nothing
    released: Size | None = None  # what it held before, and asks for when it is resumed
    said: tuple[str, str] = ("", "")
    waits_for: list[str] = []
    windows: int = 0
    server_loads: list[dict[str, float]] = []  # cores that servers kept busy, by member name, newest last
    moved_s: float = float("-inf")  # when hot slots were last asked to move
    cores_bind: bool = False  # every host holds members to their cores: else they are no axis of its sizes
    probe: Change | None = None  # the last one, downwards and kept, until what follows has settled
    where: dict[str, str] = {}  # hosts of its members, by member name
    former: list[tuple[Member, str]] = []  # workers, and their hosts, that train until their successors come
    load: dict[str, tuple[float, float]] = {}  # cores and bytes that they are counted with, by host
    alone_on: list[str] = []  # hosts that it was compared on with its own past
    usual: UsualPace | None = None
    own_share: float = 1.0  # of a worker's working time, that it reads and computes itself
    left_s: float = float("-inf")  # when it was last asked to leave a slow host
    replaced: dict[int, int] = {}  # how often in a row as a straggler, by worker index
    stopping: bool = False  # it was asked to end, by a person or because its target is reached
    withdrawn: int = 0  # starts in a row of which less than its least could run,
    again_s: float = (
        0.0  # and Unix time before which none is offered again; inf: until the cluster has more room
    )

    def after(self, timer: str) -> str:
        """Return the cause of what follows because time passed since the job's newest plan, or since it was submitted."""
        return causes.timer(timer, causes.plan(self.plan) if self.plan else causes.job(self.uid))

    @property
    def waits(self) -> bool:
        """Whether it waits for a plan: for its first one, or for another after its start was withdrawn or its members released."""
        had_one = self.withdrawn > 0 or self.released is not None
        return not self.plan or (had_one and self.held is None and self.change is None)

    @property
    def has_trained(self) -> bool:
        """Whether any of its samples was seen to be trained since its start was proposed."""
        samples, committed = self.began_with
        return self.samples > samples or self.committed > committed

    @property
    def throughput(self) -> float:
        """Samples a second at the present size: the median of its windows, 0 before the first."""
        return median(self.recent) if self.recent else 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds to the end at the present speed; infinite while the total is not known."""
        if not self.total or self.throughput <= 0:
            return float("inf")
        return max(self.total - self.committed, 0) / self.throughput

    @property
    def scales(self) -> TimeScales:
        """What was measured of this job's own starts and changes."""
        change_s = self.lost_s / self.settled_moves if self.settled_moves else None
        return TimeScales(self.slowest_start_s or None, change_s)

    @property
    def change_s(self) -> float:
        """Seconds for which a change stops a job: what its former ones took, until then those of its family or of the cluster.

        Never less than what its user set, nor than what a window could not show.
        """
        own = self.scales.change_s
        measured = own if own is not None else self.usual_scales.change_s
        if measured is None:
            measured = 0.0 if self.spec.plan.change_s else UNMEASURED_CHANGE_S
        floor_s = 0.0 if self.spec.plan.change_s else UNSEEN_SHARE * self.spec.plan.window_s
        return max(self.spec.plan.change_s, measured, floor_s)

    @property
    def start_s(self) -> float:
        """Seconds in which members of a job arrive, as far as any were measured here: 0 where none were."""
        return self.slowest_start_s or self.usual_scales.start_s or 0.0

    @property
    def window_s(self) -> float:
        """Seconds that one measurement covers: as set, longer where a worker takes longer for a few batches."""
        return max(self.spec.plan.window_s, min(STEPS_A_WINDOW * self.step_s, LONGEST_WINDOW_S))

    @property
    def crosses(self) -> bool:
        """Whether it is a ring on several hosts."""
        return not self.spec.has_servers and len({*self.where.values()}) > 1

    @property
    def taken_s(self) -> float:
        """Seconds that its changes took from it: of a ring, which each stops, all of them; else what its windows missed."""
        return self.lost_s if self.spec.has_servers else self.moves * self.change_s

    @property
    def unrest(self) -> float:
        """By how much the windows of the present size differ, as a share of their median."""
        return (max(self.recent) - min(self.recent)) / max(self.throughput, 1e-9) if self.recent else 0.0

    def is_less(self, change: Change) -> bool:
        """Whether a change takes cores from the job."""
        return self.cores_of(change.after) < self.cores_of(change.before)

    def cores_of(self, size: Size) -> float:
        """Cores that a size is counted with: those of its charge, without making one."""
        a_worker, a_server = self.cores_each(size)
        return size.workers * a_worker + size.servers * a_server

    def cores_each(self, size: Size) -> tuple[float, float]:
        """Cores that a worker and a server of a size are counted with."""
        return (
            size.worker_cores or self.cores_used.get("worker", UNKNOWN_CORES),
            size.server_cores or self.cores_used.get("ps", UNKNOWN_CORES),
        )

    def charge(self, size: Size) -> Allocation:
        """What a size is counted with against capacity and quotas: its limits, or where there is none what members use."""
        return charge_of(size, self.cores_used)


def charge_of(size: Size, cores_used: Mapping[str, float]) -> Allocation:
    """What a size is counted with. `cores_used`: of one member, by role; of a role that is not in it nothing was measured."""
    return Allocation(
        workers=size.workers,
        servers=size.servers,
        worker_cores=size.worker_cores or cores_used.get("worker", UNKNOWN_CORES),
        server_cores=size.server_cores or cores_used.get("ps", UNKNOWN_CORES),
        worker_memory_bytes=size.worker_memory_bytes,
        server_memory_bytes=size.server_memory_bytes,
    )


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """When no running job is changed by the Brain's own choice: `host_facts.FreezeSet`, as kept. Unix time in seconds."""

    begins_s: float
    ends_s: float
    repeats_s: float = 0.0
    tenant: str = ""
    reason: str = ""
    by: str = ""
    cause: str = ""  # the fact that said so


class BrainRuleOff(msgspec.Struct):
    """A rule that is left out by this release. `job` "": for all jobs."""

    release: str
    why: str = ""
    job: str = ""


class BrainState(msgspec.Struct, dict=True):
    """Everything that replay rebuilds. `dict`: totals are kept beside it (`totals`), and stand in no snapshot."""

    timeline: int = 0
    term: int = 0
    resumed_from: int = 0
    hosts: dict[str, HostCapacity] = {}
    cores_bind: bool = True  # every host holds members to their cores
    displaced: dict[str, HostCapacity] = {}  # taken for lost: what they gave
    sampled_s: dict[str, float] = {}  # how often hosts said that they take samples
    host_load: dict[
        str, tuple[float, float]
    ] = {}  # cores and bytes that members of all jobs are counted with
    clock_s: float = 0.0  # of the cluster: windows of all jobs, as far as they do not overlap
    losses: LossCount = LossCount()  # members that were taken from outside
    host_evidence: dict[str, HostEvidence] = {}  # what members showed of their hosts
    slow_hosts: dict[str, float] = {}  # since when, by the cluster's clock
    slow_memory_s: float = SLOW_MEMORY_S
    fair_share: float = (
        0.0  # power of the mean of speed-ups over the fair share; 0: throughput, short jobs first
    )
    stretch: float = 1.0  # of all windows: more while the Brain does not keep up
    unheard: list[str] = []  # hosts whose samples are missing
    shrinks: bool = False  # a host went and none came since: what is held may be more than there is
    jobs: dict[str, KnownJob] = {}
    past: list[PastJob] = []
    families: dict[str, list[FamilySample]] = {}  # what ended runs have shown
    scales: dict[str, TimeScales] = {}  # by family, as last measured; "": in this cluster
    started_mode: PlanMode = "auto"  # what the service was started with
    started_quotas: dict[str, Budget] = {}
    said_mode: PlanMode | None = None  # what a person said since then
    said_quotas: dict[str, Budget | None] = {}  # None: as much as they like
    freezes: dict[str, Freeze] = {}  # by name: those that hold, and those to come
    frozen: dict[str, float] = {}  # freezes that hold, and until when
    rules_off: dict[str, BrainRuleOff] = {}  # by name, and of what job
    round_left: list[
        str
    ] = []  # jobs whose turn in a round of several inputs is still to come, in their order

    @property
    def mode(self) -> PlanMode:
        """What becomes of plans cluster-wide: a person's word, else how the service was started."""
        return self.said_mode or self.started_mode

    @property
    def quotas(self) -> dict[str, Budget]:
        """What each tenant's jobs may use together."""
        both: dict[str, Budget | None] = {**self.started_quotas, **self.said_quotas}
        return {tenant: budget for tenant, budget in both.items() if budget is not None}


def counted(number: int, noun: str) -> str:
    """Return `1 worker`, `2 workers`."""
    return f"{number} {noun}{'s' * (number != 1)}"
