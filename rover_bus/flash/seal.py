"""The first bytes of a slot: they say whether it holds a whole cut, and which.

Fed by the writer, invalidated before the first byte of data changes and written after the last one (P12); read by
everyone who looks for a cut in memory. Pure bytes in, values out. It is apart because the life of a staged cut
hangs on these 80 bytes: a writer killed at any moment leaves either a seal that checks, or none.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint
from rover_bus.flash.layout import Layout

MAGIC = b"ROVERFLH"
VERSION = 1
SEAL = struct.Struct("<8sIIQQQQQQQQ")
SEAL_ROOM_BYTES = 4096
VOID = bytes(SEAL.size)
MAX_HEAD_BYTES = 1 << 30


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Which cut a slot holds. `save_number` grows with every save of a part, over restarts: the greatest is the
    newest."""

    history: int
    generation: int
    cut: int
    save_number: int
    head_bytes: int
    head_digest: int
    data_offset_bytes: int

    def encode(self) -> bytes:
        fields = (self.history, self.generation, self.cut, self.save_number)
        place = (self.head_bytes, self.head_digest, self.data_offset_bytes)
        body = SEAL.pack(MAGIC, VERSION, 1, *fields, *place, 0)
        return body[:-8] + xxhash.xxh3_64_intdigest(body[:-8]).to_bytes(8, "little")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What stands between seal and data: the layout, and the owner's own bytes (applied sets, ledger, random state).

    `model` is any text that two states share only if one may replace the other; it is compared at every restore.
    """

    layout: Layout
    model: str = ""
    extra: bytes = b""


def read_seal(raw: bytes) -> Seal | None:
    """The seal in the first bytes of a slot, or None: no cut is staged here. Raises NewerCheckpoint."""
    if len(raw) < SEAL.size or raw[:8] != MAGIC:
        return None
    version = int.from_bytes(raw[8:12], "little")
    if version > VERSION:
        raise NewerCheckpoint(
            f"staged in format {version}, this release reads up to {VERSION}: restore with the newer release"
        )
    if xxhash.xxh3_64_intdigest(raw[: SEAL.size - 8]) != int.from_bytes(
        raw[SEAL.size - 8 : SEAL.size], "little"
    ):
        return None
    _, _, _, history, generation, cut, number, head_bytes, head_digest, data_offset, _ = SEAL.unpack(
        raw[: SEAL.size]
    )
    return Seal(
        history=history,
        generation=generation,
        cut=cut,
        save_number=number,
        head_bytes=head_bytes,
        head_digest=head_digest,
        data_offset_bytes=data_offset,
    )


def read_head(raw: bytes, seal: Seal) -> Head:
    """The head that a seal vouches for. Raises BrokenCheckpoint."""
    if len(raw) != seal.head_bytes or xxhash.xxh3_64_intdigest(raw) != seal.head_digest:
        raise BrokenCheckpoint(
            f"the head of cut {seal.cut} does not match its seal: use another copy of this cut"
        )
    try:
        return msgspec.msgpack.decode(raw, type=Head)
    except msgspec.MsgspecError as error:
        raise BrokenCheckpoint(
            f"the head of cut {seal.cut} cannot be read ({error}): use another copy"
        ) from None
