"""What a job is: its data set on a grid of batches, the program, the members it asks for.

Built by the CLI from a job file (docs/job-file.md), carried by `job.submitted`, read by the Brain, masters and programs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from rover_bus.events.invariants import Bytes, Checked, Cores, Count, Members, Seconds, among, between

Positive = Annotated[int, msgspec.Meta(ge=1)]
PlanMode = Literal["observe", "approve", "auto"]
PlanPolicy = Literal["staged", "optimus"]
PlanSearch = Literal["exact", "nsga2"]
NoUsable = Literal["ask", "fail", "restart"]


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """How raw dense columns become a program's inputs, column by column: z = (sign(x) log(1 + |x|) - mean) / deviation.

    What a scorer needs beside the tables and the schema (client/scoring.py).
    """

    means: list[float] = []
    deviations: list[float] = []


class Dataset(Checked, frozen=True, kw_only=True):
    """A registered data set: N records on a fixed grid of batches (protocol P1).

    Batch k of an epoch is positions [k*batch_size, min((k+1)*batch_size, records)). `digest` tells two workers apart that
    registered different data (S6). A streaming data set has records = 0 and names its partitions (watermarks decide).
    `features` are those of the first worker to register: they tell no two data sets apart, because their last bits may differ
    between machines, and the scaling of a stream depends on what its partitions held at the start.
    """

    records: Count
    batch_size: Positive
    epochs: Count = 1  # 0: endless
    seed: int = 0
    digest: str = ""
    partitions: list[str] = []
    features: Features | None = None

    @property
    def streaming(self) -> bool:
        return bool(self.partitions)

    @property
    def batches(self) -> int:
        """Batches an epoch: the last one may be short (S7)."""
        return -(-self.records // self.batch_size)

    @property
    def samples_total(self) -> int:
        """Records times epochs, fixed at registration."""
        return self.records * self.epochs

    def samples(self, first: int, end: int) -> int:
        """Samples in the batches [first, end) of one epoch."""
        size = self.batch_size
        return min(end * size, self.records) - min(first * size, self.records)


class RoleSpec(Checked, frozen=True, kw_only=True):
    """What the user asks for one role. `count = 0` lets the Brain choose.

    `start`: what the Brain begins with where it knows no similar job, 0 for a small start. `min_count`: fewer are of no use to the
    job, 0 for one: it has so many or none.
    """

    count: Members = 0
    start: Members = 0
    min_count: Members = 0
    max_count: Members = 64
    cores: Cores = 0.0
    memory_bytes: Bytes = 0
    max_cores: Cores = 0.0  # above `cores`: the Brain may give running members up to so many
    start_cores: Cores = (
        0.0  # between both: what members begin with where no similar job is known; 0: `cores`
    )
    grace_s: Annotated[
        float,
        between(1, 3600, "a member that is asked to leave is killed after it: its last push must fit in"),
    ] = 10.0

    @property
    def least(self) -> int:
        """The fewest that the role has while the job holds anything; 0 for servers of a job without any."""
        return self.count or min(max(self.min_count, 1), self.max_count)


class WorkersSpec(RoleSpec, frozen=True, kw_only=True):
    """What the user asks for workers.

    `training`: synchronous, when the program lets all workers take each step together; it has a barrier of its own. Then
    `batch_size` is the whole job's, and throughput is modelled by the step that all of them wait for.
    `spares`: on each host that runs workers of the job, at most.
    """

    training: Literal["asynchronous", "synchronous"] = "asynchronous"
    spares: Annotated[
        int,
        between(0, 16, "warm workers held on a host where a start takes a second or more, in spare room"),
    ] = 2


class LeaseSpec(Checked, frozen=True, kw_only=True):
    """How leases are sized and guarded."""

    target_s: Annotated[
        float, between(0, 3600, "a lease holds so much work for its worker: the most that its loss repeats")
    ] = 10.0
    max_batches: Annotated[int, between(1, 1 << 30, "a lease never holds more")] = 100_000
    heartbeat_s: Annotated[
        float,
        between(0.01, 86_400, "three silent ones are a death (P19): what a lost worker costs the others"),
    ] = 1.0
    failures_per_batch: Annotated[
        int, between(1, 1000, "incarnations that fail on a batch before it is dead-lettered")
    ] = 3
    deterministic_failures: Annotated[
        int, between(1, 1000, "incarnations with the same exception while nothing commits (S28)")
    ] = 3
    relaunches: Annotated[
        int, between(0, 1 << 30, "failures of the user's code that a whole job survives")
    ] = 100
    preemptions: Annotated[
        int, between(0, 1 << 30, "losses through no fault of the program: a budget of their own (S2)")
    ] = 10_000


class DataSpec(Checked, frozen=True, kw_only=True):
    """Where the data is and how it is visited. `schema` is what `rover_bus.client.data.Schema` accepts."""

    train: str
    evaluate: str = ""
    schema: dict[str, Any] = {}
    batch_size: Positive = 128
    epochs: Positive = 1
    seed: int = 0
    read_latency_s: Seconds = 0.0  # storage latency a batch, for experiments on an input-bound job
    readers_at_once: Count = 0  # so many workers of a host does that storage serve at a time; 0: any number
    witness: bool = True


class PlanSpec(Checked, frozen=True, kw_only=True):
    """What becomes of the Brain's plans for a job after its first, and how it looks at the job."""

    mode: PlanMode = "auto"  # observe: only said; approve: a person lets each pass; auto: carried out
    window_s: Annotated[
        float, between(0.25, 300, "what one measurement covers: shorter ones are noisier, longer ones later")
    ] = 4.0
    cooldown_s: Annotated[
        float, between(0, 86_400, "from when a change is live to the next one; each roll-back doubles it")
    ] = 30.0
    change_s: Annotated[
        float,
        between(0, 3600, "a change stops the job for so long, or longer as measured; 0: as measured alone"),
    ] = 0.0
    least_gain: Annotated[float, between(0, 1, "a scale-up is kept for this share of what was predicted")] = (
        0.5
    )
    ceiling_lasts_s: Annotated[
        float, between(0, 86_400, "so long a size that was taken back bounds what is believed of larger ones")
    ] = 600.0
    declined_rest_s: Annotated[
        float, between(0, 86_400, "a plan that was observed or rejected is not proposed again so soon")
    ] = 120.0
    renew_after_s: Annotated[
        float, between(1, 86_400, "a plan that waits so long for a person is computed again")
    ] = 60.0
    moved_rest_s: Annotated[
        float, between(1, 86_400, "after hot slots were asked to move, until a server is judged again")
    ] = 30.0
    memory_reaction_s: Annotated[
        float, between(1, 3600, "what a larger memory limit takes to be live: a forecast looks further ahead")
    ] = 10.0
    relief: bool = (
        True  # limits follow the forecast of memory, and are doubled after a kill; False: they stay
    )
    tenant: str = ""  # whose quota the job counts against; that of the account that it is submitted to
    policy: Annotated[
        Literal["staged", "optimus"],
        among("how sizes are chosen: weighed by value, or by marginal gain of a member"),
    ] = "staged"
    search: Annotated[
        Literal["exact", "nsga2"],
        among("nsga2 is the paper's; it is used by itself among more than a million sizes"),
    ] = "exact"


class StopSpec(Checked, frozen=True, kw_only=True):
    """When a job has done enough; 0 is not asked for. All are watched on the training's own windows."""

    loss: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # the loss reached
    auc: Annotated[float, msgspec.Meta(ge=0, le=1)] = (
        0.0  # the AUC reached, of the metric `auc` that the program reports
    )
    least_decrease_per_step: Annotated[float, msgspec.Meta(ge=0)] = (
        0.0  # no step lowers the loss by more than this
    )


class CheckpointSpec(Checked, frozen=True, kw_only=True):
    """How often a cut is taken and where it goes. `every_s` 0: chosen from measured cost and failure rate, within `overhead`."""

    every_s: Seconds = 0.0
    overhead: Annotated[float, between(1e-6, 0.5, "share of training time that staging may block")] = 0.02
    least_interval_s: Annotated[
        float, between(0.1, 86_400, "a chosen interval is never shorter: each cut costs facts and writes")
    ] = 1.0
    most_interval_s: Annotated[
        float, between(1, 86_400, "nor longer, unless `overhead` asks for it: what is not saved is repeated")
    ] = 600.0
    stage_patience_s: Annotated[
        float, between(1, 3600, "a cut fails whose servers did not all stage their part within it")
    ] = 120.0
    store_patience_s: Annotated[
        float, between(1, 86_400, "a cut fails that was not stored within it: slow disks need more")
    ] = 900.0
    persist: bool = True  # False: cuts stay in memory only
    path: str = ""  # a directory; "": the stack's own home
    keep: Positive = 3  # ready checkpoints to keep
    keep_every: Count = 0  # and every so many-th for good; 0: none
    rate_bytes: Bytes = 0  # a second, that a host may write; 0: as fast as it goes
    codec: Literal["raw", "int8"] = "raw"
    copies: Count = 0  # of each part on other hosts
    parity: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0  # parity blocks a group, in place of copies
    slots: Annotated[int, msgspec.Meta(ge=2, le=8)] = 2  # cuts that a server's memory holds


class MoveSpec(Checked, frozen=True, kw_only=True):
    """How slots move between servers while the job trains.

    `first_begins`: training begins with the first servers that are there, and slots move to the others as they arrive.
    """

    first_begins: bool = True
    start_patience_s: Annotated[
        float, between(1, 86_400, "new servers must be there within it, or their plan is rolled back")
    ] = 60.0
    progress_patience_s: Annotated[
        float, between(1, 3600, "a move without a sign of progress for so long is tried again")
    ] = 30.0
    rate_bytes: Annotated[
        int, between(1 << 20, 1 << 40, "a second, from a server that trains: what a copy takes, workers miss")
    ] = 64 << 20


class StartFrom(Checked, frozen=True, kw_only=True):
    """A checkpoint of another job, ready in storage: its model is taken over, the data begins at position 0."""

    job: str
    uid: str
    timeline: int
    generation: Count
    cut: Count
    path: str


class JobSpec(Checked, frozen=True, kw_only=True):
    """A job as submitted: absolute, self-contained, without secrets."""

    name: str
    program: list[str]  # the worker's command line
    data: DataSpec
    model: dict[str, Any] = {}
    workers: WorkersSpec = WorkersSpec()
    servers: RoleSpec = RoleSpec()
    leases: LeaseSpec = LeaseSpec()
    plan: PlanSpec = PlanSpec()
    moves: MoveSpec = MoveSpec()
    stop: StopSpec = StopSpec()
    environment: dict[str, str] = {}
    directory: str = ""
    predictions: str = ""  # where a score for every row of the evaluation file is written
    on_server_lost: Literal["fail", "restart", "restore"] = "fail"  # P24; restore: from the newest usable cut
    on_no_usable_checkpoint: NoUsable = (
        "ask"  # some lie on storage, none can be restored; wins over `restore`
    )
    checkpoint: CheckpointSpec | None = None  # None: no cuts are taken
    start_from: StartFrom | None = None
    depth: Positive = 1  # batches in flight a worker
    priority: int = 0
    labels: dict[str, str] = {}
    scoring: str = ""  # what turns the model into predictions: a built-in program's name, or module:function

    @property
    def has_servers(self) -> bool:
        """Whether servers hold the model; without any, workers are a ring of all-reduce, started again by whatever changes it."""
        return bool(self.servers.count or self.servers.max_count)


def is_synchronous(spec: JobSpec) -> bool:
    """Whether all workers of a job take each step together."""
    return spec.workers.training == "synchronous"
