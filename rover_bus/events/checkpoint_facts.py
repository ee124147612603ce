"""Facts about checkpoints: what a job's master decided about its cuts, and what daemons did with staged parts.

Each staged checkpoint ends by one of three facts: ready, superseded or failed (S23). `staged` is in memory, `redundant` in the
memory of more than one host, `ready` in storage: three facts, never blurred (P13). Daemons act on `part.staged` and on the two
orders, which are absolute, bear the term and leave only after the log append (P18); what they did comes back as `host.*` facts,
which the master logs. Registered by the codec beside `facts.FACTS`.
"""

from __future__ import annotations

from rover_bus.events.checkpoints import ManifestContent, PartPlace, StoredFile
from rover_bus.events.facts import Fact, HostFact, JobFact
from rover_bus.events.identity import Member
from rover_bus.events.invariants import Count, Seconds


class CheckpointFact(JobFact, frozen=True, kw_only=True):
    """A fact about one cut. `generation`: in which it opened."""

    cut: Count
    generation: Count
    uid: str = ""
    history: int = 0


class CheckpointOpened(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.opened.v1"):
    """A cut is open: its place in the data is what is committed now; servers take their parts in their own time (P9)."""

    epoch: Count = 0
    samples_committed: Count = 0


class PartStaged(CheckpointFact, frozen=True, kw_only=True, tag="part.staged.v1"):
    """A server's part is in the memory of its host. `blocked_s`: how long the server stood still for it."""

    place: PartPlace
    copied_bytes: Count = 0
    blocked_s: Seconds = 0.0


class CheckpointStaged(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.staged.v1"):
    """The parts cover every slot (P10): from here on the cut can be restored from memory."""

    parts: list[PartPlace]


class CheckpointPersistOrdered(
    CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.persist_ordered.v1"
):
    """Daemons of these hosts: digest your staged parts, write them to `path`, say `host.part_persisted`. A lower term is stale."""

    term: Count
    parts: list[PartPlace]
    path: str


class CheckpointManifestOrdered(
    CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.manifest_ordered.v1"
):
    """Every part is stored. The daemon of `host` writes the manifest, syncs, and says `host.manifest_written` (P14)."""

    term: Count
    host: str
    path: str
    manifest: ManifestContent


class CheckpointRedundant(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.redundant.v1"):
    """Every part is also held by another host, or can be rebuilt from a parity group (P13)."""

    holders: list[str] = []


class CheckpointReady(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.ready.v1"):
    """The manifest is in storage, synced: the cut survives the loss of every host."""

    path: str
    size_bytes: Count = 0


class CheckpointSuperseded(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.superseded.v1"):
    """A newer cut is complete before this one was persisted (`newer`), or the job needs it no more (`newer` 0)."""

    newer: Count = 0
    reason: str = ""


class CheckpointFailed(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.failed.v1"):
    """The cut will not be used any more; what was ready before is still ready."""

    reason: str


class ServerRestored(CheckpointFact, frozen=True, kw_only=True, tag="server.restored.v1"):
    """A server serves from a cut. `source`: memory | peer | parity | storage; `rows` and `seconds` of the restore."""

    member: Member
    source: str
    seconds: Seconds = 0.0
    rows: Count = 0


class HostPartFact(HostFact, frozen=True, kw_only=True):
    """What a daemon did with one part of a cut. `daemon`: its incarnation."""

    job: str
    uid: str
    cut: Count
    generation: Count
    part: str
    daemon: str = ""


class HostPartDigested(HostPartFact, frozen=True, kw_only=True, tag="host.part_digested.v1"):
    """The staged part has digests: only now may it be persisted, mirrored or served (P12)."""

    size_bytes: Count = 0


class HostPartMirrored(HostPartFact, frozen=True, kw_only=True, tag="host.part_mirrored.v1"):
    """This host holds a copy of the part (`of`: the host that it was staged on), or a parity block over it."""

    of: str
    parity: bool = False


class HostPartPersisted(HostPartFact, frozen=True, kw_only=True, tag="host.part_persisted.v1"):
    """The part is in storage, synced: the whole file and its deltas, in order."""

    files: list[StoredFile]


class HostManifestWritten(HostPartFact, frozen=True, kw_only=True, tag="host.manifest_written.v1"):
    """The manifest is in storage, its directory synced. `part` is empty."""

    path: str
    size_bytes: Count = 0


class HostPartFailed(HostPartFact, frozen=True, kw_only=True, tag="host.part_failed.v1"):
    """A step (digest, persist, mirror, manifest) failed for good, in one line that says what to do."""

    step: str
    reason: str


CHECKPOINT_FACTS: tuple[type[Fact], ...] = (
    CheckpointOpened,
    PartStaged,
    CheckpointStaged,
    CheckpointPersistOrdered,
    CheckpointManifestOrdered,
    CheckpointRedundant,
    CheckpointReady,
    CheckpointSuperseded,
    CheckpointFailed,
    ServerRestored,
    HostPartDigested,
    HostPartMirrored,
    HostPartPersisted,
    HostManifestWritten,
    HostPartFailed,
)
