"""Touched rows that a save put one behind another, after the data of its slot, instead of each into its place.

Scattered writes cost as much as scattered reads, and only the reads must be done while training waits. So a save gathers the
touched rows of an array, with their ids, into the room behind the slot's data; what comes next, the store's roller or the first
reader, folds them into their places. Folding twice is harmless and changes nothing that is read, so the cut is staged from the
moment of its seal, and no death in between needs an answer. Fed by the store and by readers; pure but for the bytes it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from rover_bus.flash.copying import Piece, put_rows
from rover_bus.flash.dirty import Ids
from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.flash.layout import ALIGNMENT_BYTES, Array, IndexEntry, Layout, plain_dtype, size_of

PACKING_SHARE = 1 / 32  # of the data: a slot is larger by it. Arrays whose rows find no room are scattered


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """The packed rows of one array. Offsets count from the slot's first data byte; ids are little-endian int64."""

    name: str
    rows: int
    ids_offset_bytes: int
    rows_offset_bytes: int

    def ids(self, data: Array) -> Ids:
        return _inside(data, self.name, self.ids_offset_bytes, 8 * self.rows).view("<i8")

    def values(self, data: Array, entry: IndexEntry) -> Array:
        shape = (self.rows, *entry.shape[1:])
        raw = _inside(data, self.name, self.rows_offset_bytes, size_of(entry.dtype, shape))
        return raw.view(plain_dtype(entry.dtype)).reshape(shape)


def pack(
    pieces: Mapping[str, Piece], layout: Layout, data: Array, offset_bytes: int
) -> tuple[list[Piece], tuple[Patch, ...]]:
    """Send touched rows to the room of `data` that begins at `offset_bytes`, as long as it lasts: what to copy, and the patches."""
    entries = {entry.name: entry for entry in layout.entries}
    known: dict[int, int] = {}  # ids that several arrays share stand there once
    todo: list[Piece] = []
    patches: list[Patch] = []
    for name, piece in pieces.items():
        ids = piece.ids
        if ids is None:
            todo.append(piece)
            continue
        fresh = 0 if id(ids) in known else _aligned(ids.nbytes)
        rows_at = offset_bytes + fresh
        if rows_at + piece.size_bytes > len(data):
            todo.append(piece)
            continue
        patch = Patch(
            name=name,
            rows=len(ids),
            ids_offset_bytes=known.setdefault(id(ids), offset_bytes),
            rows_offset_bytes=rows_at,
        )
        if fresh:
            todo.append(Piece(patch.ids(data), ids, None))
        todo.append(Piece(piece.target, piece.source, ids, patch.values(data, entries[name])))
        patches.append(patch)
        offset_bytes = _aligned(rows_at + piece.size_bytes)
    return todo, tuple(patches)


def fold(
    data: Array, layout: Layout, patches: Sequence[Patch], hurried: Callable[[], bool] = lambda: False
) -> bool:
    """Put packed rows into their places; False if a save was in a hurry meanwhile. Raises BrokenCheckpoint."""
    entries = {entry.name: entry for entry in layout.entries}
    for patch in patches:
        if hurried():
            return False
        entry = entries.get(patch.name)
        if entry is None or not entry.shape or patch.rows < 0:
            raise BrokenCheckpoint(f"packed rows of {patch.name!r} fit no array: use an older checkpoint")
        put_rows(entry.view(data), patch.values(data, entry), patch.ids(data))
    return True


def _inside(data: Array, name: str, start: int, size_bytes: int) -> Array:
    if not 0 <= start <= start + size_bytes <= len(data):
        raise BrokenCheckpoint(f"packed rows of {name} lie outside their slot: use an older checkpoint")
    return data[start : start + size_bytes]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
