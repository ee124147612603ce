"""Where each array of a state lies in a slot, and which states fit.

Fed with the caller's state (a dict of arrays or of anything with a CPU buffer); feeds slots, parts and digests.
Pure. It is apart because growth, new keys and changed types are decided here, before a byte is copied: nothing is
ever truncated silently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.flash.errors import BrokenCheckpoint

Array = npt.NDArray[Any]
State = Mapping[str, Any]

ALIGNMENT_BYTES = 64  # a cache line: rows of two arrays never share one
PLAIN_KINDS = "biufcSUVmM"
MAX_ENTRIES = 1 << 16


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One array. `room_bytes` >= its size is what it may grow to in place; the first axis is the row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    room_bytes: int

    @property
    def size_bytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def view(self, data: Array) -> Array:
        """This array inside a uint8 buffer that begins where offsets count from. Raises BrokenCheckpoint if it is
        not inside."""
        start, end = self.offset_bytes, self.offset_bytes + self.size_bytes
        if not 0 <= start <= end <= len(data):
            raise BrokenCheckpoint(
                f"{self.name} lies outside its checkpoint: the checkpoint is broken, use an older one"
            )
        return data[start:end].view(plain_dtype(self.dtype)).reshape(self.shape)


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All arrays of a state, in order of name. Offsets count from the first data byte of a slot."""

    entries: tuple[IndexEntry, ...]

    @property
    def data_bytes(self) -> int:
        return max((_aligned(entry.offset_bytes + entry.room_bytes) for entry in self.entries), default=0)

    def views(self, data: Array) -> dict[str, Array]:
        """Every array inside a uint8 buffer, without a copy."""
        return {entry.name: entry.view(data) for entry in self.entries}


@lru_cache(maxsize=256)
def plain_dtype(text: str) -> np.dtype[Any]:
    """A dtype from an untrusted description: no objects, no fields, no empty items."""
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError):
        dtype = np.dtype(object)
    if not _is_plain(dtype):
        raise BrokenCheckpoint(
            f"the element type {text!r} is none that is ever stored: use another checkpoint"
        )
    return dtype


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in PLAIN_KINDS and dtype.fields is None and dtype.itemsize > 0


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array, as an integer that cannot overflow. Raises BrokenCheckpoint."""
    if any(side < 0 for side in shape):
        raise BrokenCheckpoint(f"the shape {shape} is none that is ever stored: use another checkpoint")
    size = plain_dtype(dtype).itemsize
    for side in shape:
        size *= side
    return size


def as_arrays(state: State) -> dict[str, Array]:
    """See every value as an array, without a copy, in order of name.

    Takes numpy arrays (of any strides) and whatever has the buffer protocol or `__array_interface__`. Raises
    InputError, naming the key.
    """
    return {name: _as_array(name, state[name]) for name in sorted(state)}


def _as_array(name: str, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value if hasattr(value, "__array_interface__") else memoryview(value))
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise InputError(
                f"{name!r} is a {kind}, which has no CPU buffer: pass numpy arrays or buffers"
            ) from None
    if not _is_plain(value.dtype):
        raise InputError(
            f"{name!r} has elements of type {value.dtype}: pass numbers, dates or fixed-size bytes"
        )
    array: Array = value
    return array


def plan_layout(
    arrays: Mapping[str, Array], headroom: float = 0.0, fixed: Collection[str] = frozenset()
) -> Layout:
    """Lay arrays side by side. `headroom` 0.5 leaves each array that has rows half its size to grow without
    preparing again; `fixed` names those that never grow."""
    if not arrays:
        raise InputError("the state is empty: pass a dict with at least one array")
    if len(arrays) > MAX_ENTRIES:
        raise InputError(f"{len(arrays)} arrays in one state: at most {MAX_ENTRIES}, put small ones together")
    entries, offset = [], 0
    for name, array in arrays.items():
        spare = int(array.nbytes * headroom) if array.ndim and name not in fixed else 0
        room = _aligned(array.nbytes + spare)
        entries.append(
            IndexEntry(
                name=name, dtype=array.dtype.str, shape=array.shape, offset_bytes=offset, room_bytes=room
            )
        )
        offset += room
    return Layout(entries=tuple(entries))


def fit(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Layout | None, str]:
    """Place a state, perhaps grown, into room that exists: (layout, "") or (None, why it does not fit)."""
    if len(layout.entries) != len(arrays) or any(entry.name not in arrays for entry in layout.entries):
        known = {entry.name for entry in layout.entries}
        return None, _describe("new", arrays.keys() - known) or _describe("missing", known - arrays.keys())
    placed, same = [], True
    for entry in layout.entries:
        array = arrays[entry.name]
        if array.nbytes > entry.room_bytes:
            return None, f"{entry.name} grew to {array.nbytes} bytes, of {entry.room_bytes} prepared"
        if entry.dtype != array.dtype.str or entry.shape != array.shape:
            entry, same = msgspec.structs.replace(entry, dtype=array.dtype.str, shape=array.shape), False
        placed.append(entry)
    return layout if same else Layout(entries=tuple(placed)), ""


def _describe(what: str, names: Any) -> str:
    names = sorted(names)
    return f"{what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" if names else ""


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
