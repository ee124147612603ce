"""What a master decided: records, many of them packed in one batch on `rover.job.<job>.log`, the system of record.

A batch is appended by the one leading master, chained on its predecessor (protocol P15, P16); replaying all batches in order
rebuilds the master's state bit by bit. Records are absolute facts about the decider's state, never about clocks: deadlines are
not logged (P19). A record that others shall know is a fact (facts.py, data_facts.py, plan_facts.py, checkpoint_facts.py): it
is published as it is, with its place in the log. Here are the others: what is too much to publish (hot records hold columns), too
little, or only half of what a fact says (master/publishing.py). Each names its cause: the input event's id, or for the hot ones
(member, request), which is the same thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec

from rover_bus.events.batch import BatchHeader
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS, CheckpointManifestOrdered
from rover_bus.events.checkpoints import StoredCheckpoint, StoredPart
from rover_bus.events.data_facts import LedgerRewound, RowsSkipped, SkippedRow
from rover_bus.events.fact import Caused as Caused
from rover_bus.events.fact import MasterFact
from rover_bus.events.fact import Record as Record
from rover_bus.events.fact import Unpublished as Unpublished
from rover_bus.events.facts import FACTS, PlanProposed
from rover_bus.events.identity import ExitReason, Member
from rover_bus.events.job import PlanMode
from rover_bus.events.later_forms import MembersDesiredV2

# -- the job -----------------------------------------------------------------------------------------------------------


class StopAsked(Caused, frozen=True, kw_only=True, tag="stop.asked"):
    mode: str
    reason: str = ""
    by: str = ""


class TaskGiven(Caused, frozen=True, kw_only=True, tag="task.given"):
    """One worker does this for all (evaluate); given again when it is lost."""

    task: str
    member: Member


class FinishBegun(Caused, frozen=True, kw_only=True, tag="finish.begun"):
    """All epochs are closed and the result is in (or no worker is left to compute it): servers write their parts."""


class ServerFinished(Caused, frozen=True, kw_only=True, tag="server.finished"):
    """A server's part of the final state is on disk."""

    member: Member
    path: str
    size_bytes: int = 0
    statistics: dict[str, float] = {}


# -- members -----------------------------------------------------------------------------------------------------------


class PlanDeferred(Caused, frozen=True, kw_only=True, tag="plan.deferred"):
    """The whole of a plan that is not carried out yet: it waits for a person, or for a job that is not known again (P21)."""

    proposal: PlanProposed


class ModeFixed(Caused, frozen=True, kw_only=True, tag="plan.mode"):
    mode: PlanMode
    by: str = ""


class LossAnnounced(Caused, frozen=True, kw_only=True, tag="member.loss_announced"):
    """A member that takes part is being taken away: when it says goodbye, this is why."""

    member: Member
    reason: ExitReason


class HostNoticed(Caused, frozen=True, kw_only=True, tag="host.noticed"):
    """A host will be gone soon: one more cut is taken as soon as its workers have left (S29).

    `unheard`: others hear nothing of it; it is lost as soon as none of our members is heard there, if any ever were (S19).
    """

    host: str
    unheard: bool = False


class HostReturned(Caused, frozen=True, kw_only=True, tag="host.returned"):
    """The daemon of a lost host is heard again."""

    host: str


class HostUnfit(Caused, frozen=True, kw_only=True, tag="host.unfit"):
    """The job's program does not start on a host, as its daemon found out: no worker is placed there. `daemon`: its incarnation."""

    host: str
    daemon: str
    problem: str


class HostFit(Caused, frozen=True, kw_only=True, tag="host.fit"):
    """The job's program starts on a host again; or the host is asked again, because it has another daemon now, or left."""

    host: str


# -- slots that move ---------------------------------------------------------------------------------------------------


class MoveBegun(Caused, frozen=True, kw_only=True, tag="move.begun"):
    """A step of a rollout: these slots go from one incarnation of a server to another, under the next routing epoch."""

    move: int
    source: Member
    target: Member
    slots: list[tuple[int, int]]


# -- the ledger --------------------------------------------------------------------------------------------------------


REPEATED = -1  # in place of a peer's token


class Granted(Unpublished, frozen=True, kw_only=True, tag="leases.granted"):
    """Tokens first_token, first_token + 1, ... cover [firsts[i], firsts[i] + counts[i]) of the open epoch.

    `peer`: the token whose interval is leased a second time (speculation), 0 otherwise; `peer_worker` holds it; REPEATED: a batch
    of another worker, for a step of a synchronous job that has more workers than the epoch has batches left. `spans` fixes the
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


class Committed(Unpublished, frozen=True, kw_only=True, tag="batches.committed"):
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


class Returned(Unpublished, frozen=True, kw_only=True, tag="leases.returned"):
    """Leases that their worker never got or no longer lists (P7)."""

    worker: int
    incarnation: int
    tokens: list[int]


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


# -- cuts -------------------------------------------------------------------------------------------------------------


class CutAsked(Caused, frozen=True, kw_only=True, tag="cut.asked"):
    """A person or the stack asks for one now: the next is opened as soon as it can be, and stored whatever the job file says."""

    reason: str = ""


class PartAsked(Caused, frozen=True, kw_only=True, tag="part.asked"):
    """Slots were missing: their present owner is asked once more (P10)."""

    cut: int
    index: int
    round: int


class PartStored(Caused, frozen=True, kw_only=True, tag="part.stored"):
    cut: int
    stored: StoredPart


class PartCopied(Caused, frozen=True, kw_only=True, tag="part.copied"):
    """Another host holds the part too, or parity over it."""

    cut: int
    part: str
    holder: str


class PartDigested(Caused, frozen=True, kw_only=True, tag="part.digested"):
    """The part has digests: from here on it is a source (P12)."""

    cut: int
    part: str


class ManifestOrdered(Caused, frozen=True, kw_only=True, tag="manifest.ordered"):
    cut: int
    host: str


class CheckpointFound(Caused, frozen=True, kw_only=True, tag="checkpoint.found"):
    """A checkpoint on storage is to be restored: all servers go back to it. `refused`: a line for each newer one that cannot be."""

    search: int
    found: StoredCheckpoint
    epoch: int
    samples: int
    settled: int = 0
    refused: list[str] = []


# -- the log itself ---------------------------------------------------------------------------------------------------


class SnapshotChunk(Unpublished, frozen=True, kw_only=True, tag="snapshot.chunk"):
    """A piece of the whole state, so that replay starts here; older batches are purged once all pieces are stored (P21)."""

    snapshot: int
    index: int
    count: int
    data: bytes
    digest: int = 0  # xxh3_64 of the whole, on the last piece


class RecordPiece(Unpublished, frozen=True, kw_only=True, tag="record.piece"):
    """A piece of a batch that no message holds. No decider sees it: the records in it count once all pieces are stored."""

    index: int
    count: int
    data: bytes
    digest: int = 0  # xxh3_64 of the whole, on the last piece


UNPUBLISHED: tuple[type[Unpublished], ...] = (
    StopAsked,
    TaskGiven,
    FinishBegun,
    ServerFinished,
    PlanDeferred,
    ModeFixed,
    LossAnnounced,
    HostNoticed,
    HostReturned,
    HostUnfit,
    HostFit,
    MoveBegun,
    Granted,
    Committed,
    Returned,
    Sealed,
    Rewound,
    CutAsked,
    PartAsked,
    PartStored,
    PartCopied,
    PartDigested,
    ManifestOrdered,
    CheckpointFound,
    SnapshotChunk,
)
TRANSLATED = (
    RowsSkipped,
    LedgerRewound,
    CheckpointManifestOrdered,
)  # made of records by master/publishing.py
DECIDED = tuple(
    fact for fact in (*FACTS, *CHECKPOINT_FACTS) if issubclass(fact, MasterFact) and fact not in TRANSLATED
)
RECORDS: tuple[type[Record], ...] = (*UNPUBLISHED, *DECIDED)

if TYPE_CHECKING:
    AnyRecord = Record
else:
    AnyRecord = Union[RECORDS]  # noqa: UP007 - of classes that are known at run time only


class LogBatch(BatchHeader, frozen=True, kw_only=True, tag="log.batch.v1"):
    """One append of a master: records decided together (group commit), behind the header that every log's batches bear."""

    records: list[AnyRecord | MembersDesiredV2 | RecordPiece]
