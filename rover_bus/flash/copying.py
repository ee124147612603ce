"""Bytes from the state into a slot, once: whole arrays in spans, touched rows in blocks, over a few threads.

Fed by the store with pairs of arrays; it decides nothing. This is the only code that runs while training waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec
import numpy as np

from rover_bus.flash.dirty import Ids
from rover_bus.flash.layout import Array

SPAN_BYTES = 8 << 20
BLOCK_BYTES = 256 << 10  # gathered rows wait in the second-level cache until they are put


class Piece(msgspec.Struct, frozen=True):
    """One array to be brought up to date: all of it (`ids` None), or some rows. `packed`: these go there, one behind another."""

    target: Array
    source: Array
    ids: Ids | None
    packed: Array | None = None

    @property
    def size_bytes(self) -> int:
        if self.ids is None:
            return self.source.nbytes
        if not len(self.ids):
            return 0
        return len(self.ids) * (self.source.nbytes // max(1, len(self.source)))


Task = Callable[[], None]


def copy(pieces: Sequence[Piece], threads: int, executor: Executor | None) -> int:
    """Copy all pieces, on `threads` threads (one of them the caller's); return bytes copied."""
    tasks = [task for piece in pieces for task in _tasks(piece)]
    if executor is None or threads < 2 or len(tasks) < 2:
        _drain(iter(tasks))
    else:
        shared = iter(tasks)  # a list iterator is advanced atomically: each task is taken once
        others = [executor.submit(_drain, shared) for _ in range(threads - 1)]
        _drain(shared)
        for other in others:
            other.result()
    return sum(piece.size_bytes for piece in pieces)


def _drain(tasks: Iterator[Task]) -> None:
    for task in tasks:
        task()


def _tasks(piece: Piece) -> Iterator[Task]:
    target, source, ids = piece.target, piece.source, piece.ids
    if ids is not None:
        step = max(1, BLOCK_BYTES // max(1, source.nbytes // max(1, len(source))))
        for start in range(0, len(ids), 16 * step):
            part = slice(start, start + 16 * step)
            if piece.packed is None:
                yield lambda part=ids[part]: copy_rows(target, source, part)  # type: ignore[misc]
            else:
                yield lambda to=piece.packed[part], part=ids[part]: pack_rows(to, source, part)  # type: ignore[misc]
    elif source.flags.c_contiguous and source.nbytes > SPAN_BYTES:
        flat_target, flat_source = as_bytes(target), as_bytes(source)
        for start in range(0, len(flat_source), SPAN_BYTES):
            span = slice(start, start + SPAN_BYTES)
            yield lambda span=span: np.copyto(flat_target[span], flat_source[span])  # type: ignore[misc]
    elif source.size:
        yield lambda: np.copyto(target, source)


def copy_rows(target: Array, source: Array, ids: Ids) -> None:
    """Copy `source[ids]` to `target[ids]`. Ids must be in range: they were checked when they were noted."""
    if not source.flags.c_contiguous:
        target[ids] = source[ids]
        return
    records, places = _records(source), _records(target)
    step = max(1, BLOCK_BYTES // records.itemsize)
    scratch = np.empty(min(step, len(ids)), records.dtype)
    for start in range(0, len(ids), step):
        block = ids[start : start + step]
        rows = records.take(block, mode="clip", out=scratch[: len(block)])
        places.put(block, rows, mode="clip")


def pack_rows(target: Array, source: Array, ids: Ids) -> None:
    """Copy `source[ids]` to a contiguous target of as many rows. Ids must be in range."""
    if not source.flags.c_contiguous or not source.nbytes:
        target[:] = source[ids]
        return
    _records(source).take(ids, mode="clip", out=_records(target))


def put_rows(target: Array, rows: Array, ids: Ids) -> None:
    """Copy contiguous rows to `target[ids]`; ids out of range go to the first or last row."""
    if not rows.nbytes:
        return
    records, places = _records(rows), _records(target)
    step = max(1, BLOCK_BYTES // records.itemsize)
    for start in range(0, len(ids), step):
        places.put(ids[start : start + step], records[start : start + step], mode="clip")


def take_rows(source: Array, ids: Ids) -> Array:
    """A copy of `source[ids]`."""
    if not source.flags.c_contiguous or not source.nbytes:
        return source[ids]
    rows = _records(source).take(ids, mode="clip")
    return rows.view(source.dtype).reshape(len(ids), *source.shape[1:])


def as_bytes(array: Array) -> Array:
    """The bytes of a contiguous array, flat, without a copy."""
    return array.reshape(-1).view(np.uint8)


def _records(array: Array) -> Array:
    """Rows as opaque records: `take` and `put` move them at half the price of fancy indexing."""
    if array.ndim == 1:
        return array
    rows: Any = array.reshape(len(array), -1)
    records: Array = rows.view(f"V{rows.shape[1] * array.itemsize}").ravel()
    return records
