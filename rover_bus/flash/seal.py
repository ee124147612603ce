"""The first bytes of a slot: they say whether it holds a whole cut, and which.

Fed by the writer, invalidated before the first byte of data changes and written after the last one (P12); read by
all that look for a cut in memory. Rows that were packed are put into their places after it, which changes nothing
that is read; a word of its own behind the seal says that they are (packing). Pure bytes in, values out. It is apart
because a staged cut hangs on these 80 bytes: a writer killed at any moment leaves either a seal that checks,
or none.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import xxhash

from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint
from rover_bus.flash.layout import Array, Layout
from rover_bus.flash.packing import Patch

MAGIC = b"ROVERFLH"
VERSION = 2  # 1: no packed rows
SEAL = struct.Struct("<8sIIQQQQQQQQ")
SEAL_ROOM_BYTES = 4096
VOID = bytes(SEAL.size)
FOLDED = slice(128, 136)  # of a slot: number of the save whose packed rows are in their places


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Which cut a slot holds. `save_number` grows with every save of a part, over restarts: the greatest is the
    newest."""

    timeline: int
    generation: int
    cut: int
    save_number: int
    head_bytes: int
    head_digest: int
    data_offset_bytes: int
    version: int = 1

    def encode(self) -> bytes:
        fields = (self.timeline, self.generation, self.cut, self.save_number)
        place = (self.head_bytes, self.head_digest, self.data_offset_bytes)
        body = SEAL.pack(MAGIC, self.version, 1, *fields, *place, 0)
        return body[:-8] + xxhash.xxh3_64_intdigest(body[:-8]).to_bytes(8, "little")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What stands between seal and data: the layout, and the owner's own bytes (applied sets, ledger, random state).

    `model` is any text that two states share only if one may replace the other; it is compared at every restore.
    """

    layout: Layout
    model: str = ""
    extra: bytes = b""
    patches: tuple[Patch, ...] = ()
    carried: tuple[
        str, ...
    ] = ()  # arrays of which some rows were left as the slot had them, from former saves

    @property
    def version(self) -> int:
        """The oldest format whose readers understand this."""
        return 2 if self.patches else 1


HEADS = msgspec.msgpack.Decoder(Head)  # made once, at import: see journal.py


def read_seal(raw: bytes) -> Seal | None:
    """The seal in the first bytes of a slot, or None: no cut is staged here.

    Raises BrokenCheckpoint for bytes that are neither void nor a seal, NewerCheckpoint. The digest is looked at first: a flipped
    bit makes no newer release.
    """
    if len(raw) < SEAL.size or raw[: SEAL.size] == VOID or raw[:8] == VOID[:8]:
        return None
    digest = int.from_bytes(raw[SEAL.size - 8 : SEAL.size], "little")
    if raw[:8] != MAGIC or xxhash.xxh3_64_intdigest(raw[: SEAL.size - 8]) != digest:
        raise BrokenCheckpoint(
            f"its seal (bytes 0 to {SEAL.size}) is damaged, or was never finished: use another copy"
        )
    version = int.from_bytes(raw[8:12], "little")
    if version > VERSION:
        raise NewerCheckpoint(
            f"staged in format {version}, this release reads up to {VERSION}: restore with the newer release"
        )
    _, _, _, timeline, generation, cut, number, head_bytes, head_digest, data_offset, _ = SEAL.unpack(
        raw[: SEAL.size]
    )
    return Seal(
        timeline=timeline,
        generation=generation,
        cut=cut,
        save_number=number,
        head_bytes=head_bytes,
        head_digest=head_digest,
        data_offset_bytes=data_offset,
        version=version,
    )


def is_folded(raw: Array | bytes, seal: Seal) -> bool:
    """Whether the packed rows of this save are in their places, by the first bytes of its slot."""
    return int.from_bytes(bytes(raw[FOLDED]), "little") == seal.save_number


def mark_folded(slot: Array, seal: Seal) -> None:
    """Say that they are. After the last of them is."""
    slot[FOLDED] = np.frombuffer(seal.save_number.to_bytes(8, "little"), np.uint8)


def read_head(raw: bytes, seal: Seal) -> Head:
    """The head that a seal vouches for. Raises BrokenCheckpoint."""
    if len(raw) != seal.head_bytes or xxhash.xxh3_64_intdigest(raw) != seal.head_digest:
        raise BrokenCheckpoint(
            f"the head of cut {seal.cut} does not match its seal: use another copy of this cut"
        )
    try:
        return HEADS.decode(raw)
    except msgspec.MsgspecError as error:
        raise BrokenCheckpoint(
            f"the head of cut {seal.cut} cannot be read ({error}): use another copy"
        ) from None
