"""What the JSON API answers. Fed by `cli`'s views through the port; feeds api.py, and openapi.py with its schemas.

Times are Unix milliseconds of the broker's clock, throughput is samples a second; what is not known is null.
"""

from __future__ import annotations

from typing import Any

import msgspec

Row = dict[str, Any]


class Shown(msgspec.Struct, kw_only=True, frozen=True):
    """Base of answers."""


class JobShown(Shown, frozen=True):
    """One job: what `rover jobs -o json` has of it, its present plan and its end. `sequence`: of the newest fact that is in it."""

    job: str
    sequence: int
    uid: str
    state: str
    reason: str
    workers: int
    servers: int
    epoch: int
    epochs: int
    committed: int
    total: int
    dead_lettered: int
    samples_per_second: float | None
    predicted: float | None  # of the plan that is carried out
    predicted_low_90: float | None
    predicted_high_90: float | None
    seconds_left: float | None  # at the present speed
    leader: str
    term: int
    submitted_ms: int
    ended_ms: int
    plan_waits: int | None  # the plan that waits for a person
    summary: Row = {}


class MemberShown(Shown, frozen=True):
    """One process of a job, as `rover members` lists it, with its last sample. Shares are of its window, in [0, 1]."""

    role: str
    index: int
    incarnation: int
    host: str
    pid: int
    leads: bool | None
    samples_per_second: float | None = None
    compute: float | None = None
    wait: float | None = None  # for leases and for the other workers of its group
    pull: float | None = None  # pulling, pushing and reading
    cores_used: float | None = None
    memory_bytes: int | None = None


class PlanShown(Shown, frozen=True):
    """One plan, as `rover plan list -o json` has it."""

    plan: int
    step: str
    change: str
    state: str
    why: str
    reason: str
    measured: float | None
    predicted: float | None
    after: float | None
    by: str
    person: str
    undone_by: int | None


class PromiseShown(Shown, frozen=True):
    """What a plan promised, samples a second with its 90 % interval, from when it was carried out."""

    plan: int
    from_ms: int
    predicted: float
    low_90: float | None
    high_90: float | None


class ThroughputShown(Shown, frozen=True):
    """Measured throughput, as the job's master reported it, beside what the plans promised that were carried out."""

    sequence: int
    times_ms: list[int]
    measured: list[float]
    promises: list[PromiseShown]


class LaneShown(Shown, frozen=True):
    """Where the time of one member went: shares of each step in [0, 1]; spans in Unix milliseconds."""

    member: str  # role and index: all its incarnations
    times_ms: list[int]  # when each step begins that it has samples of
    compute: list[float]
    wait: list[float]
    pull: list[float]
    restarts: list[tuple[int, int]]  # from a loss to the next incarnation
    checkpoints: list[tuple[int, int]]  # a server stood still for its part
    lost_ms: int | None  # since when it is followed by no incarnation yet


class MarkShown(Shown, frozen=True):
    """What happened to the whole job at one moment: `scale` or `fault`. `event`: the sequence of its fact."""

    time_ms: int
    kind: str
    text: str
    event: int


class LanesShown(Shown, frozen=True):
    """A lane a member. `width_ms`: of a step."""

    sequence: int
    width_ms: int
    from_ms: int
    to_ms: int
    lanes: list[LaneShown]
    marks: list[MarkShown]


class MetricShown(Shown, frozen=True):
    """One metric as the program reports it, the mean over its workers, by step."""

    name: str
    times_ms: list[int]
    values: list[float]


class EndShown(Shown, frozen=True):
    """When the job reaches what its `stop` asks for, seconds from when it was said; null: not by what is known."""

    constant: str
    metric: str
    value: float | None
    target: float | None
    eta_s: float | None
    low_90_s: float | None
    high_90_s: float | None


class ProgramShown(Shown, frozen=True):
    """Loss and metrics as the program reports them, and when it ends: `seconds_left` at this speed, `target` by its metric."""

    sequence: int
    width_ms: int
    metrics: list[MetricShown]
    seconds_left: float | None
    target: EndShown | None


class MemberMemoryShown(Shown, frozen=True):
    """Memory of one member in bytes: by step, its limit (null: none), and of a server what it is expected to use."""

    member: str
    times_ms: list[int]
    used_bytes: list[int]
    limit_bytes: int | None
    ahead_s: list[float] = []  # seconds from now
    expected_bytes: list[int] = []
    upper_bytes: list[int] = []  # 95 %


class MemoryShown(Shown, frozen=True):
    """Memory of the members of a job."""

    sequence: int
    members: list[MemberMemoryShown]


class ServerHeat(Shown, frozen=True):
    """How much a server is asked for, by its last sample: keys a second, in all and of its hottest slots (slot, keys a second)."""

    index: int
    keys_per_s: float
    rows: int
    table_bytes: int
    hottest: list[tuple[int, float]]


class HeatShown(Shown, frozen=True):
    """The heat of a job's servers that spoke lately."""

    servers: list[ServerHeat]


class MomentOfLog(Shown, frozen=True):
    """One record of a job's log: its sequence, and when the broker stored it, Unix milliseconds."""

    sequence: int
    time_ms: int


class LedgerShown(Shown, frozen=True):
    """The ledger of the open epoch as a map: half-open intervals of batches. What is in none of them was never leased.

    `coarse`: there are more intervals than are shown, and neighbours are drawn as one; the counts are exact.
    """

    epoch: int
    batches: int
    frontier: int  # the first batch that was never leased
    committed: list[tuple[int, int]]
    leased: list[tuple[int, int]]
    returned: list[tuple[int, int]]
    dead: list[int]
    committed_batches: int
    leased_batches: int
    returned_batches: int
    coarse: bool


class StateShown(Shown, frozen=True):
    """A job's state after one record of its log, as its master would read it: what `rover replay JOB --at SEQ -o json` prints."""

    job: str
    at: MomentOfLog
    first: MomentOfLog  # the first moment that is kept
    newest: MomentOfLog
    phase: str
    paused: bool
    term: int
    generation: int
    members: list[str]  # that take part, with their incarnations
    plan: int  # the last that was carried out
    waiting_plan: int | None
    committed: int  # samples, over all epochs
    dead_lettered: int
    total: int
    ledger: LedgerShown | None
    slots: list[tuple[int, int, int]]  # server index, first slot, end slot
    checkpoints: dict[str, str]  # number: state
    counts: dict[str, int]


class HostShown(Shown, frozen=True):
    """A host by its last sample."""

    host: str
    cores: float
    cores_used: float
    memory_bytes: int
    memory_used_bytes: int
    members: int


class ClusterShown(Shown, frozen=True):
    """What is there now. `sequence`: of the newest fact that is in any answer."""

    sequence: int
    release: str
    brain: bool
    hosts: list[HostShown]
    jobs: dict[str, int]  # by state


class EventShown(Shown, frozen=True):
    """One fact: what `rover events -o json` has of it, and the line that `rover events` prints."""

    sequence: int
    id: str
    subject: str
    kind: str
    job: str
    time_ms: int
    cause: str
    text: str
    body: Row


class StoryStep(Shown, frozen=True):
    """One fact of a story: how deep below its first cause, and how it is linked to the one before."""

    depth: int
    why: str
    event: EventShown


class Answered(Shown, frozen=True):
    """What became of a person's word."""

    job: str
    plan: int
    by: str
    became: str


class Word(Shown, frozen=True, forbid_unknown_fields=True):
    """What a person says with an approval or a rejection."""

    reason: str = ""


class Problem(Shown, frozen=True):
    """Why a request was not answered: a constant for programs, and a line for people."""

    code: str
    message: str
