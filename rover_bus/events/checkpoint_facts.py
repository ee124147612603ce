"""Facts about checkpoints: what a job's master decided about its cuts, and what daemons did with staged parts.

Each staged checkpoint ends by one of three facts: ready, superseded or failed (S23). `staged` is in memory, `redundant` in the
memory of more than one host, `ready` in storage: three facts, never blurred (P13). Daemons act on `part.staged` and on the two
orders, which are absolute, bear the term and leave only after the log append (P18); what they did comes back as `host.*` facts,
which the master logs. Registered by the codec beside `facts.FACTS`.
"""

from __future__ import annotations

from typing import get_args

from rover_bus.events.checkpoints import ManifestContent, PartPlace, StoredCheckpoint, StoredFile
from rover_bus.events.fact import MasterFact
from rover_bus.events.facts import Fact, JobFact
from rover_bus.events.host_facts import HostFact
from rover_bus.events.identity import Member
from rover_bus.events.invariants import Bytes, Count, Seconds
from rover_bus.events.job import NoUsable


class CheckpointFact(MasterFact, frozen=True, kw_only=True):
    """A fact about one cut. `generation`: in which it opened."""

    cut: Count
    generation: Count
    uid: str = ""
    timeline: int = 0


class CheckpointRequested(JobFact, frozen=True, kw_only=True, tag="checkpoint.requested.v1"):
    """A person or the stack wants a checkpoint in storage now, whatever the job file says: the stack may be going down."""

    reason: str = ""


class CheckpointDeclined(MasterFact, frozen=True, kw_only=True, tag="checkpoint.declined.v1"):
    """A requested checkpoint is not taken. `samples`: what is trained; 0: there is nothing to keep."""

    reason: str
    samples: Count = 0


class CheckpointOpened(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.opened.v1"):
    """A cut is open: its place in the data is what is committed now; servers take their parts in their own time (P9).

    `requested`: it was asked for, and it is stored in any case.
    """

    epoch: Count = 0
    samples_committed: Count = 0
    requested: bool = False


class PartStaged(CheckpointFact, frozen=True, kw_only=True, tag="part.staged.v1"):
    """A server's part is in the memory of its host. `blocked_s`: how long the server stood still for it."""

    place: PartPlace
    round: Count = 0  # a later round of the same server replaces the earlier
    copied_bytes: Count = 0
    blocked_s: Seconds = 0.0


class CheckpointStaged(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.staged.v1"):
    """The parts cover every slot (P10): from here on the cut can be restored from memory."""

    parts: list[PartPlace]


class CheckpointPersistOrdered(
    CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.persist_ordered.v1"
):
    """Daemons of these hosts: digest your staged parts, write them to `path`, say `host.part_persisted`. A lower term is stale."""

    term: Count = 0
    parts: list[PartPlace]
    path: str


class CheckpointManifestOrdered(
    CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.manifest_ordered.v1"
):
    """Every part is stored. The daemon of `host` writes the manifest, syncs, and says `host.manifest_written` (P14)."""

    term: Count = 0
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
    """A newer cut is complete before this one was persisted (`newer`), or the job needs it no more (`newer` 0).

    `usable`: it is still in memory, or in another host's: it can be gone back to until a newer cut is as safe, and the next one
    is staged in its place.
    """

    newer: Count = 0
    reason: str = ""
    usable: bool = False


class CheckpointFailed(CheckpointFact, frozen=True, kw_only=True, tag="checkpoint.failed.v1"):
    """The cut will not be used any more; what was ready before is still ready.

    `restoring`: a server could not restore it: retention looks at it before anything older goes. `path`: the storage that was tried
    then; "": memory alone. `wanted_bytes`: the shared memory of a host that would have been enough, where that was why. `usable`:
    it could not be stored, but is still in memory: until a newer cut is staged it can be gone back to.
    """

    reason: str
    usable: bool = False
    restoring: bool = False
    path: str = ""
    wanted_bytes: Bytes = 0


class CheckpointSearchOrdered(MasterFact, frozen=True, kw_only=True, tag="checkpoint.search_ordered.v1"):
    """The daemon of `host`: say `host.storage_searched`, which checkpoint on storage is the newest. A lower term is stale.

    Not those in `skip` (generation, cut), nor of a generation before `not_before`; with `wanted` only that cut. `reason`: why the
    model must be restored. `former`: timelines before a restore from a backup, which count as well. `retry`: what was tried before
    may be tried again. `look`: the job is paused and asks a person, and goes on by itself if a checkpoint is found.
    """

    term: Count = 0
    search: Count
    host: str
    uid: str = ""
    timeline: int = 0
    path: str = ""
    skip: list[tuple[int, int]] = []
    not_before: Count = 0
    wanted: Count = 0
    reason: str = ""
    former: list[int] = []
    retry: bool = False
    look: bool = False


class CheckpointNoneUsable(MasterFact, frozen=True, kw_only=True, tag="checkpoint.none_usable.v1"):
    """Checkpoints of the job lie on storage, and none can be restored; `problems` says why not, a line each.

    `choice`: what the job file wants then (`on_no_usable_checkpoint`): ask (members and room are released), fail, or restart.
    `there`: how many lie on storage; 0 where it could not be searched.
    """

    search: Count
    choice: NoUsable
    problems: list[str] = []
    there: Count = 0


class ServerRestored(CheckpointFact, frozen=True, kw_only=True, tag="server.restored.v1"):
    """A server serves from a cut. `source`: memory | peer | parity | storage; `rows` and `seconds` of the restore.

    `refused`: a line for each source that was tried before and could not be believed, or had no digests yet: file, array and bytes.
    `samples_again`: what going back cost in all, newer cuts that could not be had included.
    """

    member: Member
    source: str
    seconds: Seconds = 0.0
    rows: Count = 0
    refused: list[str] = []
    samples_again: Count = 0


class HostPartFact(HostFact, frozen=True, kw_only=True):
    """What a daemon did with one part of a cut. `daemon`: its incarnation."""

    job: str
    uid: str
    cut: Count
    generation: Count
    part: str
    daemon: str = ""


class HostPartDigested(HostPartFact, frozen=True, kw_only=True, tag="host.part_digested.v1"):
    """The staged part has digests: only now may it be gone back to, persisted, mirrored or served (P12).

    `save_number`: which save of the part; one cut may be staged in several rounds (P10).
    """

    size_bytes: Count = 0
    save_number: Count = 0


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


class HostStorageSearched(HostFact, frozen=True, kw_only=True, tag="host.storage_searched.v1"):
    """The answer to `checkpoint.search_ordered`. `found`: the newest that is asked for; `there`: how many lie there.

    Those that cannot be read count too. `refused`: a line for each that is of no use; `problem`: why storage could not be searched.
    """

    job: str
    uid: str
    search: Count
    found: StoredCheckpoint | None = None
    there: Count = 0
    refused: list[str] = []
    problem: str = ""
    daemon: str = ""


class HostCheckpointDamaged(HostPartFact, frozen=True, kw_only=True, tag="host.checkpoint_damaged.v1"):
    """A checkpoint on storage is not what was written. It was moved to `path`; `rover checkpoint prune --damaged` frees it."""

    path: str
    reason: str


class HostStorageBlocked(HostPartFact, frozen=True, kw_only=True, tag="host.storage_blocked.v1"):
    """This host cannot write to the job's storage now, for `reason`, and tries again; an empty reason: it can again.

    Said at the first failure: the part itself fails only after a minute of retries (`host.part_failed`).
    """

    reason: str = ""


class HostPartFailed(HostPartFact, frozen=True, kw_only=True, tag="host.part_failed.v1"):
    """A step (digest, persist, mirror, manifest) failed for good, in one line that says what to do."""

    step: str
    reason: str


AboutCheckpoints = (
    CheckpointRequested
    | CheckpointDeclined
    | CheckpointOpened
    | PartStaged
    | CheckpointStaged
    | CheckpointPersistOrdered
    | CheckpointManifestOrdered
    | CheckpointRedundant
    | CheckpointReady
    | CheckpointSuperseded
    | CheckpointFailed
    | ServerRestored
    | CheckpointSearchOrdered
    | CheckpointNoneUsable
)
AboutStorage = (
    HostPartDigested
    | HostPartMirrored
    | HostPartPersisted
    | HostManifestWritten
    | HostPartFailed
    | HostStorageBlocked
    | HostStorageSearched
    | HostCheckpointDamaged
)
CHECKPOINT_FACTS: tuple[type[Fact], ...] = get_args(AboutCheckpoints | AboutStorage)
