"""What a master decided: records, many of them packed in one batch on `rover.job.<job>.log`, the system of record.

A batch is appended by the one leading master, chained on its predecessor (protocol P15, P16); replaying all batches in order
rebuilds the master's state bit by bit. Records are absolute facts about the decider's state, never about clocks: deadlines are
not logged (P19). Hot records hold columns. Each record names its cause: the input event's id, or for the hot ones
(member, request), which is the same thing.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from rover_bus.events.batch import BatchHeader
from rover_bus.events.cut_log import (
    CutAsked,
    CutDeclined,
    CutFailed,
    CutOpened,
    CutPersistOrdered,
    CutReady,
    CutStaged,
    CutSuperseded,
    ManifestOrdered,
    PartAsked,
    PartCopied,
    PartDigested,
    PartStored,
    PartTaken,
    Restored,
)
from rover_bus.events.facts import PlanProposed, SkippedRow
from rover_bus.events.identity import DesiredMember, MasterSeat, Member
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.events.record import Caused as Caused
from rover_bus.events.record import Record as Record
from rover_bus.events.requests import ServerAddress
from rover_bus.events.search_log import CheckpointFound, NoneUsable, SearchOrdered

# -- the job -----------------------------------------------------------------------------------------------------------


class TermBegun(Caused, frozen=True, kw_only=True, tag="term.begun"):
    """A master leads from here on, with this term."""

    term: int
    holder: str
    replayed_records: int = 0


class JobTaken(Caused, frozen=True, kw_only=True, tag="job.taken"):
    """The log begins: which job this is. `history` is random, and new after a restore from a backup (P21)."""

    spec: JobSpec
    uid: str
    history: int


class DatasetFixed(Caused, frozen=True, kw_only=True, tag="dataset.fixed"):
    dataset: Dataset
    member: Member | None = None


class DatasetRefusal(Caused, frozen=True, kw_only=True, tag="dataset.refusal"):
    member: Member
    difference: str


class StopAsked(Caused, frozen=True, kw_only=True, tag="stop.asked"):
    mode: str
    reason: str = ""
    by: str = ""


class TaskGiven(Caused, frozen=True, kw_only=True, tag="task.given"):
    """One worker does this for all (evaluate); given again when it is lost."""

    task: str
    member: Member


class TaskDone(Caused, frozen=True, kw_only=True, tag="task.done"):
    task: str
    member: Member
    values: dict[str, Any] = {}


class Reported(Caused, frozen=True, kw_only=True, tag="job.reported"):
    """Progress in figures, now and then: for people; nothing is decided by it."""

    epoch: int
    committed: int
    dead_lettered: int
    total: int
    samples_per_second: float = 0.0


class FinishBegun(Caused, frozen=True, kw_only=True, tag="finish.begun"):
    """All epochs are closed and the result is in (or nobody is left to compute it): servers write their parts."""


class ServerFinished(Caused, frozen=True, kw_only=True, tag="server.finished"):
    """A server's part of the final state is on disk."""

    member: Member
    path: str
    size_bytes: int = 0
    statistics: dict[str, float] = {}


class Ended(Caused, frozen=True, kw_only=True, tag="job.ended"):
    state: str
    reason: str = ""
    detail: str = ""
    summary: dict[str, Any] = {}


# -- members -----------------------------------------------------------------------------------------------------------


class MembersPlanned(Caused, frozen=True, kw_only=True, tag="members.planned"):
    """The absolute set of members that shall run from here on, with their incarnations allocated (P5, P18)."""

    plan: int  # counts every change of the set
    workers: int
    servers: int
    members: list[DesiredMember]
    reason: str = ""
    proposal: int = 0  # the Brain's plan that is carried out by this, 0: a repair
    hosts: list[str] = []
    constant: str = ""
    approved_by: str = ""
    masters: list[MasterSeat] = []  # by index; none named: where the plan said


class PlanRefusal(Caused, frozen=True, kw_only=True, tag="plan.refusal"):
    plan: int
    reason: str
    constant: str = ""


class PlanCheck(Caused, frozen=True, kw_only=True, tag="plan.check"):
    """Nothing stands against this plan. `proposal`: the whole of it, when it waits for a person."""

    plan: int
    outcome: str  # passed, waits, observed
    mode: str = "auto"
    brain_term: int = 0
    proposal: PlanProposed | None = None


class PlanLive(Caused, frozen=True, kw_only=True, tag="plan.live"):
    """All members of the plan take part, and those that it dropped are gone."""

    plan: int


class ModeFixed(Caused, frozen=True, kw_only=True, tag="plan.mode"):
    mode: str
    by: str = ""


class PauseSet(Caused, frozen=True, kw_only=True, tag="job.pause"):
    """A person paused the job, or let it go on. `workers`: how many it has when it runs."""

    paused: bool
    workers: int = 0
    reason: str = ""
    by: str = ""


class RuleSwitched(Caused, frozen=True, kw_only=True, tag="rule.switched"):
    """A rule of the decider is left out (`off`), because it raised in three incarnations of this release; or it runs again.

    `exact`: exactness rests on it (P5 to P11, P19), so the job is paused instead of going on without it.
    """

    rule: str
    off: bool
    release: str = ""
    why: str = ""
    exact: bool = False


class Admitted(Caused, frozen=True, kw_only=True, tag="member.admitted"):
    member: Member
    nonce: str
    host: str = ""
    pid: int = 0
    addresses: list[str] = []
    state: str = ""


class Lost(Caused, frozen=True, kw_only=True, tag="member.lost"):
    """Proven dead (P19). Its leases return, minus what is committed. `last`: up to this incarnation the place is over (P21)."""

    member: Member
    reason: str
    detail: str = ""
    leases_returned: int = 0
    last: int = 0


class Left(Caused, frozen=True, kw_only=True, tag="member.left"):
    member: Member
    reason: str = ""


class HostNoticed(Caused, frozen=True, kw_only=True, tag="host.noticed"):
    """A host will be gone soon: one more cut is taken as soon as its workers have left (S29).

    `unheard`: others hear nothing of it; it is lost as soon as none of our members is heard there, if any ever were (S19).
    """

    host: str
    unheard: bool = False


class HostLost(Caused, frozen=True, kw_only=True, tag="host.lost"):
    """A host is gone, with its memory: nobody is started there until its daemon is heard again (S19)."""

    host: str
    reason: str = ""
    members: list[Member] = []  # who was to run there


class HostReturned(Caused, frozen=True, kw_only=True, tag="host.returned"):
    """The daemon of a lost host is heard again."""

    host: str


class HostUnfit(Caused, frozen=True, kw_only=True, tag="host.unfit"):
    """The job's program does not start on a host, as its daemon found out: no worker is placed there. `daemon`: its incarnation."""

    host: str
    daemon: str
    problem: str


class HostFit(Caused, frozen=True, kw_only=True, tag="host.fit"):
    """The job's program starts on a host again; or the host is asked anew, because it has another daemon now, or left."""

    host: str


class RoutingFixed(Caused, frozen=True, kw_only=True, tag="routing.fixed"):
    generation: int
    epoch: int
    owners: list[tuple[int, int, int]]
    servers: list[ServerAddress]


# -- slots that move ---------------------------------------------------------------------------------------------------


class RolloutBegun(Caused, frozen=True, kw_only=True, tag="rollout.begun"):
    """Slots shall lie as `goal` says (server index, first slot, end slot). `joins` must be there first; `drops` leave last."""

    rollout: int
    goal: list[tuple[int, int, int]]
    joins: list[int] = []
    drops: list[int] = []
    reason: str = ""
    by: str = ""
    proposal: int = 0  # the plan that asked for it, 0: a request to move slots
    again: int = 0  # how often it was begun before, and interrupted


class MoveBegun(Caused, frozen=True, kw_only=True, tag="move.begun"):
    """A step of a rollout: these slots go from one life of a server to another, under the next routing epoch."""

    move: int
    source: Member
    target: Member
    slots: list[tuple[int, int]]


class MoveEnded(Caused, frozen=True, kw_only=True, tag="move.ended"):
    """`done`: the routing that follows gives the slots to the target. Otherwise the former one stands, and `reason` says why."""

    move: int
    done: bool
    source: Member
    target: Member
    slots: list[tuple[int, int]] = []
    epoch: int = 0  # of the routing that gives them to the target
    reason: str = ""
    rows: int = 0
    bytes: int = 0


class MoveRefusal(Caused, frozen=True, kw_only=True, tag="move.refusal"):
    """A request to move slots that is not carried out."""

    reason: str


class RolloutEnded(Caused, frozen=True, kw_only=True, tag="rollout.ended"):
    """`rolled_back`: nothing moved; `stopped`: what has moved stays where it is; `interrupted`: the job was rewound."""

    rollout: int
    outcome: str
    reason: str = ""


# -- the ledger --------------------------------------------------------------------------------------------------------


class Granted(Record, frozen=True, kw_only=True, tag="leases.granted"):
    """Tokens first_token, first_token + 1, ... cover [firsts[i], firsts[i] + counts[i]) of the open epoch.

    `peer`: the token whose interval is leased a second time (speculation), 0 otherwise; `peer_worker` holds it. `spans` fixes the
    batch ends of a stream: (partition, first batch, end batch, first offset, end offset), never extended (P1).
    """

    worker: int
    incarnation: int
    request: int
    first_token: int
    firsts: list[int]
    counts: list[int]
    peer: int = 0
    peer_worker: int = 0
    spans: list[tuple[str, int, int, int, int]] = []


class Committed(Record, frozen=True, kw_only=True, tag="batches.committed"):
    """Partial commits: of lease tokens[i] all batches before uptos[i] are acked by every server (P6)."""

    worker: int
    incarnation: int
    request: int
    tokens: list[int]
    uptos: list[int]
    skipped: list[SkippedRow] = []
    skipped_file: str = ""
    values_missing: int = 0
    samples_retrained: int = 0


class Returned(Record, frozen=True, kw_only=True, tag="leases.returned"):
    """Leases that their worker never got or no longer lists (P7)."""

    worker: int
    incarnation: int
    tokens: list[int]


class Refusal(Record, frozen=True, kw_only=True, tag="commit.refused"):
    member: Member
    token: int
    reason: str


class Charged(Caused, frozen=True, kw_only=True, tag="batch.charged"):
    """A failure is charged to the first uncommitted batch of a lease; -1 when none was held."""

    member: Member
    epoch: int
    batch: int
    exception: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""


class DeadLettered(Caused, frozen=True, kw_only=True, tag="batch.dead_lettered"):
    epoch: int
    batch: int
    first_position: int
    samples: int
    reason: str
    members: list[Member] = []


class EpochBegun(Caused, frozen=True, kw_only=True, tag="epoch.begun"):
    epoch: int


class EpochEnded(Caused, frozen=True, kw_only=True, tag="epoch.ended"):
    epoch: int
    committed: int
    dead_lettered: int


class Sealed(Caused, frozen=True, kw_only=True, tag="partition.sealed"):
    """A partition of a stream has ended at this offset."""

    partition: str
    end_offset: int


class Rewound(Caused, frozen=True, kw_only=True, tag="ledger.rewound"):
    """Restoring is an event: the whole ledger as it was, under generation g + 1 (P8)."""

    generation: int
    ledger: msgspec.Raw
    reason: str
    cut: int = 0  # 0: from nothing
    servers: list[int] = []  # indexes of those that go back to the cut; the others keep what they hold (P11)
    samples_again: int = 0


class SnapshotChunk(Record, frozen=True, kw_only=True, tag="snapshot.chunk"):
    """A piece of the whole state, so that replay starts here; older batches are purged once all pieces are stored (P21)."""

    snapshot: int
    index: int
    count: int
    data: bytes
    digest: int = 0  # xxh3_64 of the whole, on the last piece


class RecordPiece(Record, frozen=True, kw_only=True, tag="record.piece"):
    """A piece of a batch that no message holds. No decider sees it: the records in it count once all pieces are stored."""

    index: int
    count: int
    data: bytes
    digest: int = 0  # xxh3_64 of the whole, on the last piece


AnyRecord = (
    TermBegun
    | JobTaken
    | DatasetFixed
    | DatasetRefusal
    | StopAsked
    | TaskGiven
    | TaskDone
    | Reported
    | FinishBegun
    | ServerFinished
    | Ended
    | MembersPlanned
    | PlanRefusal
    | PlanCheck
    | PlanLive
    | ModeFixed
    | PauseSet
    | RuleSwitched
    | Admitted
    | Lost
    | Left
    | HostNoticed
    | HostLost
    | HostReturned
    | HostUnfit
    | HostFit
    | RoutingFixed
    | RolloutBegun
    | MoveBegun
    | MoveEnded
    | MoveRefusal
    | RolloutEnded
    | Granted
    | Committed
    | Returned
    | Refusal
    | Charged
    | DeadLettered
    | EpochBegun
    | EpochEnded
    | Sealed
    | Rewound
    | CutAsked
    | CutDeclined
    | CutOpened
    | PartTaken
    | PartAsked
    | CutStaged
    | CutPersistOrdered
    | PartStored
    | PartCopied
    | PartDigested
    | ManifestOrdered
    | CutReady
    | CutSuperseded
    | CutFailed
    | Restored
    | SearchOrdered
    | CheckpointFound
    | NoneUsable
    | SnapshotChunk
)
RECORDS: tuple[type[Record], ...] = get_args(AnyRecord)


class LogBatch(BatchHeader, frozen=True, kw_only=True, tag="log.batch.v1"):
    """One append of a master: records decided together (group commit), behind the header that every log's batches bear."""

    records: list[AnyRecord | RecordPiece]
