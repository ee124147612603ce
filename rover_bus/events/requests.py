"""What members ask of a master over `rover.rpc.<job>.<term>.<method>`, and its answers.

Hot: plain msgspec Structs, columns instead of objects (tokens, uptos), so that sixteen leases cost one small map. Every request
bears (timeline, generation) and the member's incarnation: fences are checked before anything else. Every reply bears the
term: members ignore lower ones (protocol P15). Times are durations; deadlines belong to the master (P19).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from rover_bus.events.checkpoints import CutOrder, PartReport, RestoreOrder, RestoreReport
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.identity import Member
from rover_bus.events.invariants import Told
from rover_bus.events.job import Dataset
from rover_bus.events.routing import RoutingTable as RoutingTable
from rover_bus.events.routing import ServerAddress as ServerAddress
from rover_bus.events.routing import SlotRange as SlotRange
from rover_bus.events.starts import ServerStart

Answer = Literal[0, 1, 2]
OK: Answer = 0  # processed
STALE: Answer = 1  # the token is not (or no longer) this member's: stop working on it
ALREADY: Answer = 2  # already committed, by an earlier copy of this request or by another holder


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base: the asking member, of which timeline and generation."""

    member: Member
    timeline: int = 0
    generation: int = 0


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base: the term of the master that answers, and the generation it answers in."""

    term: int
    generation: int = 0


class RefusedReply(Reply, frozen=True, kw_only=True, tag="refused.v1"):
    """A typed refusal: nothing changed. `code`: stale_term | stale_generation | stale_incarnation | stale_request |
    differs | not_admitted | former_trains | job_ended | bad_message | unknown_method |
    poisoned_request (it ended three masters)."""

    code: str
    message: str
    retry_s: float = 0.0  # above 0: ask again after this time


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """These slots go from one incarnation of a server to another. Absolute: a move that is no longer listed is over (P18).

    `epoch`: of the routing that it starts from. A server acts on it only when the incarnation named is its own.
    """

    move: int
    plan: int
    epoch: int
    slots: list[SlotRange]
    source: ServerAddress
    target: ServerAddress
    rate_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 << 20  # a second, while workers train


class MoveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far the target of a move is. `ready`: it holds everything, and the source takes no pushes until the log decides."""

    move: int
    phase: Literal["copying", "ready", "failed"]
    rows: Told = 0
    bytes: Told = 0
    detail: str = ""


class SlotTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Keys a second that a server's slots are asked for (pulled and pushed), decayed: all together, and the hottest one by one."""

    keys_per_s: float = 0.0
    hottest: list[tuple[int, float]] = []  # (slot, keys a second), hottest first


class JoinRequest(Request, frozen=True, kw_only=True, tag="join.v1"):
    """A process asks to be its member. `nonce` makes it idempotent; incarnation 0 asks for one.

    `release`, `format`: of rover_bus in it, and the last format that it reads. `cores_held`: whether its own control group holds it
    to the cores that it was given; None: it cannot tell, or its host's daemon can.
    """

    nonce: str
    host: str = ""
    pid: int = 0
    addresses: list[str] = []  # a server's
    stages_at: str = ""  # a server's, whose parts its host's daemon does not keep: what does
    version: str = ""
    release: str = ""
    format: int = 1
    cores_held: bool | None = None


class JoinReply(Reply, frozen=True, kw_only=True, tag="joined.v1"):
    """Admitted. A worker gets what it needs to begin; a server what it starts from (P5)."""

    member: Member
    uid: str
    timeline: int
    heartbeat_s: float
    start: ServerStart | None = None
    dataset: Dataset | None = None
    routing: RoutingTable | None = None
    seed: int = 0
    spec: dict[str, Any] = {}
    restore: RestoreOrder | None = None  # where the cut is that a server starts from


class RegisterRequest(Request, frozen=True, kw_only=True, tag="register.v1"):
    """A worker states the data set that it reads. The first fixes it; a different one is refused with the difference (S6)."""

    dataset: Dataset


class RegisterReply(Reply, frozen=True, kw_only=True, tag="registered.v1"):
    dataset: Dataset


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Columns: of the lease `tokens[i]` the batches before `uptos[i]` are acked by every server (P6); `uptos` at the end = commit.

    `servers`: the incarnation of each server (by index) that acked; `skipped`: rows that could not be used.
    """

    tokens: list[int] = []
    uptos: list[int] = []
    servers: list[int] = []
    skipped: list[SkippedRow] = []
    skipped_file: str = ""
    missing: list[tuple[int, Told]] = []  # (batch, dense values that were missing in it)
    samples_retrained: Told = 0  # gradients computed for batches that servers already held


class LeaseRequest(Request, frozen=True, kw_only=True, tag="lease.v1"):
    """Progress, and a wish for up to `wanted` leases. `request` counts up within an incarnation; a retry repeats it (P7).

    `held` lists the tokens the worker holds besides those in `progress`. `rate` is batches a second that it manages.
    `high_water`: records readable now, a partition of a stream (sealed ones in `sealed`).
    """

    request: Told
    wanted: int = 1
    rate: float = 0.0
    progress: Progress = Progress()
    held: list[int] = []
    high_water: dict[str, int] = {}
    sealed: list[str] = []
    retiring: bool = (
        False  # of a synchronous job: wants what the others of its group have been granted, then to leave
    )


LeaseOutcome = Literal["granted", "wait", "idle", "closed", "drain"]


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a synchronous job that take each step together: the program has its barrier between these.

    Each of them is given as many batches as the others. `hosts`: where each of `members` runs.
    """

    number: int
    members: list[Member]
    hosts: list[str] = []


class LeaseReply(Reply, frozen=True, kw_only=True, tag="leased.v1"):
    """Answers by token, and leases as columns: token i covers the batches [firsts[i], firsts[i] + counts[i]) of `epoch`.

    `outcome`: granted; wait (all is leased); idle (no partition has data); closed (no epoch is left: training is over); drain
    (leave). After wait and idle the worker repeats its request under the same number, at once: a request that reports nothing and
    gets nothing is held by the master until it has something to say, at most one heartbeat (P7). `answers[i]` belongs to
    `progress.tokens[i]`. `cancelled`: tokens to stop working on. `spans`: for a stream, what the batches are: (partition, first
    batch, end batch, first offset, end offset).
    """

    request: int
    outcome: LeaseOutcome
    epoch: int = 0
    tokens: list[int] = []
    firsts: list[int] = []
    counts: list[int] = []
    answers: list[int] = []
    cancelled: list[int] = []
    spans: list[tuple[str, int, int, int, int]] = []
    group: StepGroup | None = None  # of a synchronous job, with what a worker is granted first in it


class HeartbeatRequest(Request, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """I am alive; this is what I hold. `request`: the number of the last lease request sent (P7). Servers send statistics."""

    request: Told = 0
    progress: Progress = Progress()
    held: list[int] = []
    statistics: dict[str, float] = {}
    routing_epoch: int = 0  # the newest routing that the member knows, 0: none
    staged: PartReport | None = None  # a server's last part
    restored: RestoreReport | None = None  # what became of a server's restore order
    moves: list[MoveStatus] = []  # of a server that slots are on their way to
    traffic: SlotTraffic | None = None  # of a server, now and then


class HeartbeatReply(Reply, frozen=True, kw_only=True, tag="heard.v1"):
    """`order`: go on, drain (finish or part-commit, leave), stop, or for a server finish (write the part to `path`, stay)."""

    answers: list[int] = []
    cancelled: list[int] = []
    order: Literal["go_on", "drain", "stop", "finish"] = "go_on"
    path: str = ""
    routing: RoutingTable | None = None  # when newer than what the member should know
    job_state: str = "running"
    closed_before: int = (
        0  # epochs before this one lie before every usable cut: applied sets may be forgotten (P11)
    )
    settled: tuple[int, int] = (
        0,
        0,
    )  # to a server: an epoch, and how many of its first batches are done for good (P3)
    cut: CutOrder | None = None  # to a server whose job takes cuts
    moves: list[MoveOrder] = []  # for a server: every move that it takes part in now


EARLY = "early"


class LeaveRequest(Request, frozen=True, kw_only=True, tag="leave.v1"):
    """Goodbye: progress so far; whatever is still held returns at once.

    `reason`: "done" with the data, "drained" as it was asked to, or EARLY, of a program that ended while there were batches.
    """

    reason: str = "done"
    progress: Progress = Progress()


class LeaveReply(Reply, frozen=True, kw_only=True, tag="left.v1"):
    answers: list[int] = []


class FailureRequest(Request, frozen=True, kw_only=True, tag="failure.v1"):
    """User code raised while working on `token` (0: on none). `fingerprint` is equal for equal exceptions (S28)."""

    token: int = 0
    batch: int = -1
    exception: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""
    progress: Progress = Progress()


class FailureReply(Reply, frozen=True, kw_only=True, tag="noted.v1"):
    charged: bool = False


class ElectRequest(Request, frozen=True, kw_only=True, tag="elect.v1"):
    """Shall I do this task that one worker does for all (`evaluate`)? With `done`, here is its result."""

    task: str
    done: bool = False
    values: dict[str, Any] = {}


class ElectReply(Reply, frozen=True, kw_only=True, tag="elected.v1"):
    """`yours`: do it; `wait`: ask again after delay_s; `done`: it is done, nothing is left for you."""

    outcome: Literal["yours", "wait", "done"]
    delay_s: float = 0.2


class FinishedRequest(Request, frozen=True, kw_only=True, tag="finished.v1"):
    """A server has written its part of the final state (fsynced, renamed)."""

    path: str
    size_bytes: int = 0
    statistics: dict[str, float] = {}


class FinishedReply(Reply, frozen=True, kw_only=True, tag="finish_noted.v1"):
    pass


AnyRequest = (
    JoinRequest
    | RegisterRequest
    | LeaseRequest
    | HeartbeatRequest
    | LeaveRequest
    | FailureRequest
    | ElectRequest
    | FinishedRequest
)
REQUESTS: tuple[type[AnyRequest], ...] = get_args(AnyRequest)
REPLIES: tuple[type[Reply], ...] = (
    RefusedReply,
    JoinReply,
    RegisterReply,
    LeaseReply,
    HeartbeatReply,
    LeaveReply,
    FailureReply,
    ElectReply,
    FinishedReply,
)
METHODS: dict[str, type[AnyRequest]] = {
    str(cls.__struct_config__.tag).rsplit(".", 1)[0]: cls for cls in REQUESTS
}
METHOD_OF: dict[type[Request], str] = {cls: method for method, cls in METHODS.items()}
