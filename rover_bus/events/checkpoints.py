"""What a cut is made of, as plain values: parts, where they lie, the files they became, the manifest; orders and reports.

Used by requests (orders to servers and their reports), by the master's log and by facts; apart from the three, which share it.
A part is found by (job uid, generation, cut, part name) wherever it lies: in shared memory as `<root>/<uid>/<part>.<n>.slot` of the
flash store, whose seal names timeline, generation and cut (docs/design/0014); in storage by its manifest.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rover_bus.events.routing import SlotRange
from rover_bus.events.units import number_in


def part_name(index: int) -> str:
    """Return what the part of a server is called, in memory and in storage; its next incarnation goes on with it."""
    return f"ps-{index}"


def part_index(part: str) -> int:
    """Return the server that a part belongs to; -1 for the name of something else."""
    return number_in(part.removeprefix("ps-")) if part.startswith("ps-") else -1


class PartPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One part of one cut in the memory of one host, and the slots that it covers."""

    part: str
    index: int
    incarnation: int
    host: str
    slots: list[SlotRange]
    size_bytes: int = 0
    generation: int = 0  # in which it was taken: not before the one in which its cut opened


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A part file in storage. `base`: the digest of the file that this delta builds on; "": it is whole."""

    path: str
    digest: str
    size_bytes: int
    generation: int
    cut: int
    base: str = ""


class StoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part in storage: the whole file first, then deltas in order."""

    part: str
    index: int
    slots: list[SlotRange]
    files: list[StoredFile]


class ManifestContent(msgspec.Struct, frozen=True, kw_only=True):
    """What makes stored parts a checkpoint (P14). `ledger`: the master's own bytes, in msgpack; `about`: in words."""

    uid: str
    timeline: int
    generation: int
    cut: int
    ledger: bytes
    parts: list[StoredPart]
    about: dict[str, str] = {}


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a daemon found on storage: what its manifest says. `path`: of the run; the parts name no files."""

    timeline: int
    generation: int
    cut: int
    path: str
    ledger: bytes
    parts: list[StoredPart] = []


class CutOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To a server, with every heartbeat's answer: stage this cut unless you have. Absolute, safe to repeat.

    `cut` 0: none is open. `round`: again, because slots were missing (P10). `complete`: the newest cut that is complete over all
    parts; what is older may be overwritten (P12), what is newer and not `cut` will never be complete. `identity`: of the place
    in the data of the cut: a log that lost its tail in a power cut gives a number again that parts in memory bear already (P21).
    """

    cut: int = 0
    identity: int = 0
    generation: int = 0  # of the opening: what the staged part is stamped with
    round: int = 0
    complete: int = 0


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """A server's last staged part, with every heartbeat. `problem`: why it could not be staged; `again`: it tries on.

    `wanted_bytes`: the shared memory that all slots of this server take, where there was not enough.
    """

    cut: int
    identity: int = 0
    round: int = 0
    slots: list[SlotRange] = []
    size_bytes: int = 0
    copied_bytes: int = 0
    blocked_s: float = 0.0
    problem: str = ""
    again: bool = False
    wanted_bytes: int = 0


class RestoreOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To a server that is admitted with the state `cut:<c>`: whose parts these are and where they may be found.

    `foreign`: of another job; rows and optimizer state are taken over, applied sets and the witness are not.
    `identity`: what a part of this cut bears, 0 where the log does not know it; a part of another one is not believed.
    """

    uid: str
    timeline: int
    generation: int
    cut: int
    identity: int = 0
    parts: list[PartPlace] = []
    path: str = ""  # of the storage; "": it was never persisted
    foreign: bool = False


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a restore order, with every heartbeat. `source`: memory | peer | parity | storage; `problem`: it failed.

    `refused`: a line for each source that was tried before and could not be believed: file, array and bytes. `path`: the storage
    that the order named; "": it named none, the cut was not stored when the order was given.
    """

    cut: int
    path: str = ""
    source: str = ""
    seconds: float = 0.0
    rows: int = 0
    problem: str = ""
    refused: list[str] = []


class PartRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="part_wanted.v1"):
    """To the daemon of one's own host, on `rover.daemon.<host>.part`: bring this part of this cut into our memory.

    Ask again until it is `here` or `absent`: a fetch goes on meanwhile.
    """

    job: str
    uid: str
    part: str
    generation: int
    cut: int
    elsewhere: bool = False  # what the server's own memory has of it is damaged


class PartReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="part_found.v1"):
    """`here`: a slot of the part named `part` lies in `directory`, readable as `flash.staged` reads. `source`: memory | peer."""

    state: Literal["here", "coming", "absent"]
    directory: str = ""
    source: str = ""
    problem: str = ""
