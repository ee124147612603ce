"""What a master decided about its cuts: records of the job's log (log.py), from the opening of a cut to its end (S23).

Decided by master/cutting.py, told to others as the facts of checkpoint_facts.py.
"""

from __future__ import annotations

from rover_bus.events.checkpoints import PartPlace, StoredPart
from rover_bus.events.identity import Member
from rover_bus.events.record import Caused


class CutAsked(Caused, frozen=True, kw_only=True, tag="cut.asked"):
    """Somebody wants one now: the next is opened as soon as it can be, and stored whatever the job file says."""

    reason: str = ""


class CutDeclined(Caused, frozen=True, kw_only=True, tag="cut.declined"):
    """None is taken: there is nothing to keep (`samples` 0), or the job is on its way to its end."""

    reason: str
    samples: int = 0


class CutOpened(Caused, frozen=True, kw_only=True, tag="cut.opened"):
    """The ledger as it is here is the cut's place in the data (P9)."""

    cut: int


class PartTaken(Caused, frozen=True, kw_only=True, tag="part.taken"):
    """A server staged its part; a later round of the same server replaces the earlier."""

    cut: int
    place: PartPlace
    round: int = 0
    copied_bytes: int = 0
    blocked_s: float = 0.0


class PartAsked(Caused, frozen=True, kw_only=True, tag="part.asked"):
    """Slots were missing: their present owner is asked once more (P10)."""

    cut: int
    index: int
    round: int


class CutStaged(Caused, frozen=True, kw_only=True, tag="cut.staged"):
    """The parts cover every slot: the cut is complete in memory."""

    cut: int


class CutPersistOrdered(Caused, frozen=True, kw_only=True, tag="cut.persist_ordered"):
    cut: int
    path: str


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


class CutReady(Caused, frozen=True, kw_only=True, tag="cut.ready"):
    cut: int
    path: str
    size_bytes: int = 0


class CutSuperseded(Caused, frozen=True, kw_only=True, tag="cut.superseded"):
    """`usable`: it is still in memory, or in another host's: it can be gone back to until a newer cut is as safe, and the next one
    is staged in its place."""

    cut: int
    generation: int = 0
    by: int = 0
    reason: str = ""
    usable: bool = False


class CutFailed(Caused, frozen=True, kw_only=True, tag="cut.failed"):
    """`usable`: it could not be stored, but is still in memory: until a newer cut is staged it can be gone back to."""

    cut: int
    generation: int = 0
    reason: str
    usable: bool = False
    restoring: bool = False  # a server could not restore it
    wanted_bytes: int = 0  # shared memory that would have been enough, where that was why


class Restored(Caused, frozen=True, kw_only=True, tag="server.restored"):
    """A server serves from the cut that it was admitted with."""

    member: Member
    cut: int
    source: str
    seconds: float = 0.0
    rows: int = 0
    refused: list[str] = []
