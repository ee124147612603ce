"""What becomes of a job's data: its data set, its epochs, refused commits, batches and rows that are left out.

A job's master decides all of it. Leases and commits themselves are records of the log alone (log.py): there are millions of them.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.fact import MasterFact
from rover_bus.events.identity import Member
from rover_bus.events.invariants import Count
from rover_bus.events.job import Dataset


class DatasetRegistered(MasterFact, frozen=True, kw_only=True, tag="dataset.registered.v1"):
    """The data set and its grid are fixed for the life of the job."""

    dataset: Dataset
    member: Member | None = None


class DatasetRefused(MasterFact, frozen=True, kw_only=True, tag="dataset.refused.v1"):
    """A worker registered other data than the first one did (S6)."""

    member: Member
    difference: str


class EpochOpened(MasterFact, frozen=True, kw_only=True, tag="epoch.opened.v1"):
    """Leases of this epoch are given out from now on."""

    epoch: Count
    generation: Count = 0


class EpochClosed(MasterFact, frozen=True, kw_only=True, tag="epoch.closed.v1"):
    """Every sample of the epoch is committed or dead-lettered."""

    epoch: Count
    committed: Count
    dead_lettered: Count


class CommitRefused(MasterFact, frozen=True, kw_only=True, tag="commit.refused.v1"):
    """A commit or progress bore a stale token, generation or server incarnation: nothing changed (S3)."""

    member: Member
    token: int
    reason: str


class BatchDeadLettered(MasterFact, frozen=True, kw_only=True, tag="batch.dead_lettered.v1"):
    """A batch failed on too many incarnations and is given up. It may be partly applied."""

    epoch: Count
    batch: Count
    first_position: Count
    samples: Count
    reason: str
    members: list[Member] = []


class SkippedRow(msgspec.Struct, frozen=True, array_like=True):
    """One row that a reader could not use: where in the epoch it stood, where in the file, and why."""

    position: int
    row: int
    line: int
    reason: str


class RowsSkipped(MasterFact, frozen=True, kw_only=True, tag="rows.skipped.v1"):
    """Rows that could not be used; they count as dead-lettered, by position."""

    epoch: Count
    file: str
    rows: list[SkippedRow]


class LeaseSpeculated(MasterFact, frozen=True, kw_only=True, tag="lease.speculated.v1"):
    """At the tail of an epoch the same interval was leased a second time."""

    epoch: Count
    first: Count
    batches: Count
    token: Count  # of the first holder's lease
    second: Member


class LedgerRewound(MasterFact, frozen=True, kw_only=True, tag="ledger.rewound.v1"):
    """The ledger went back to a former state under a new generation (P8)."""

    generation: Count
    epoch: Count
    committed_batches: Count
    reason: str
    cut: Count = 0  # 0: from nothing
    servers: list[Member] = []  # those that go back to the cut; the others keep their state (P11)
    samples_again: Count = 0  # the cost: committed since the cut, to be computed again


# What narrates these (cli/views/narration.py) must know each.
AboutData = (
    DatasetRegistered
    | DatasetRefused
    | EpochOpened
    | EpochClosed
    | CommitRefused
    | BatchDeadLettered
    | RowsSkipped
    | LeaseSpeculated
    | LedgerRewound
)
