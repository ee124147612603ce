"""Which rows of a slot are older than the state: everything touched since that slot's own cut (P12).

Fed with the ids that training touched between two saves; feeds copying and the delta chains. Pure. Kept as the
lists of ids they came as: at 1 % of the rows a bitmap costs more to read than the rows cost to copy
(bench/checkpoint.py), and sorting or making unique buys nothing. Only when ids repeat a lot are they merged,
through a bitmap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.flash.layout import Array, IndexEntry

Ids = npt.NDArray[np.int64]
Rows = Mapping[str, Ids]  # by array

WHOLE_SHARE = 0.2  # scattered rows cost five times a plain copy: from here on the plain copy is faster
MERGE_SHARE = 1 / 16  # beyond this many ids a row, repeats are worth finding


def as_ids(name: str, touched: Any, rows: int) -> Ids:
    """Check what a caller says was touched: integer ids in any order, repeats allowed, or a boolean mask of all
    rows."""
    ids = np.asarray(touched)
    if ids.dtype == np.bool_:
        if ids.shape != (rows,):
            raise InputError(
                f"the mask of {name!r} has shape {ids.shape}: it needs one value a row, ({rows},)"
            )
        return np.flatnonzero(ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise InputError(f"the touched rows of {name!r} are {ids.dtype}: pass integer ids or a boolean mask")
    flat: Ids = np.array(ids, np.int64).ravel()  # ours: the caller may go on using its own
    if len(flat) and flat.view(np.uint64).max() >= rows:  # negative ones are huge, seen so
        raise InputError(
            f"a touched row of {name!r} is outside 0..{rows - 1}: were ids hashed or sharded before?"
        )
    return flat


def check_touched(touched: Mapping[str, Any], arrays: Mapping[str, Array]) -> Rows:
    """Ids by array. Arrays that were given the same object (values and their optimizer state) share the result."""
    rows: dict[str, Ids] = {}
    known: dict[tuple[int, int], Ids] = {}
    for name, ids in touched.items():
        if name not in arrays or not arrays[name].ndim:
            raise InputError(f"touched names {name!r}, which is no array with rows in this state")
        key = id(ids), len(arrays[name])
        if key not in known:
            known[key] = as_ids(name, ids, len(arrays[name]))
        rows[name] = known[key]
    return rows


class DirtyRows:
    """The stale rows of one array in one slot."""

    def __init__(self) -> None:
        self._lists: list[Ids] = []
        self.count = 0  # ids, repeats counted
        self.whole = False

    def add(self, ids: Ids, rows: int) -> None:
        """Note touched rows of an array that has `rows` now."""
        if self.whole or not len(ids):
            return
        self._lists.append(ids)
        self.count += len(ids)
        if self.count > rows * MERGE_SHARE:
            self._lists = [merge(self._lists, rows)]
            self.count = len(self._lists[0])
        if self.count > rows * WHOLE_SHARE:
            self.add_whole()

    def add_whole(self) -> None:
        self.whole, self._lists, self.count = True, [], 0

    def cost_bytes(self, array: Array) -> int:
        return array.nbytes if self.whole else self.count * (array.nbytes // max(1, len(array)))

    @property
    def ids(self) -> Ids:
        """All stale rows, perhaps with repeats; meaningless if `whole`."""
        if len(self._lists) != 1:
            self._lists = [np.concatenate(self._lists)] if self._lists else []
        return self._lists[0] if self._lists else np.empty(0, np.int64)


class DirtySet:
    """The stale rows of all arrays of a slot. `everything` until its first save."""

    def __init__(self) -> None:
        self.everything = True
        self._rows: dict[str, DirtyRows] = {}

    def clean(self) -> None:
        self.everything, self._rows = False, {}

    @property
    def is_clean(self) -> bool:
        """Whether the slot holds the state as it was last noted."""
        return not self.everything and not any(rows.whole or rows.count for rows in self._rows.values())

    def clean_rows(self, name: str) -> None:
        """Forget the touched rows of an array: they were copied."""
        self._rows.pop(name, None)

    def soil(self) -> None:
        self.everything, self._rows = True, {}

    def note(self, touched: Mapping[str, Ids], arrays: Mapping[str, Array]) -> None:
        """Note what changed since the last save; an array that is not named may have changed anywhere."""
        if self.everything:
            return
        for name, array in arrays.items():
            rows = self._rows.get(name)
            if rows is None:
                rows = self._rows[name] = DirtyRows()
            ids = touched.get(name)
            if ids is None:
                rows.add_whole()
            else:
                rows.add(ids, len(array))

    def add(self, name: str, ids: Ids, rows: int) -> None:
        """Some rows of an array that has `rows` in the slot are stale there, for whatever reason."""
        if not self.everything:
            self._rows.setdefault(name, DirtyRows()).add(ids, rows)

    def cost_bytes(self, arrays: Mapping[str, Array]) -> int:
        """About how many bytes must be copied, growth not counted."""
        if self.everything:
            return sum(array.nbytes for array in arrays.values())
        return sum(self._rows[name].cost_bytes(array) for name, array in arrays.items() if name in self._rows)

    def stale(self, entry: IndexEntry | None, array: Array) -> Ids | None:
        """Rows of `array` to copy into a slot that held it as `entry`; None: all of it."""
        rows = self._rows.get(entry.name) if entry else None
        if self.everything or entry is None or (rows and rows.whole) or entry.dtype != array.dtype.str:
            return None
        ids = rows.ids if rows else np.empty(0, np.int64)
        if entry.shape == array.shape:
            return ids
        if not array.ndim or entry.shape[1:] != array.shape[1:] or len(array) < entry.shape[0]:
            return None
        return np.concatenate([ids, np.arange(entry.shape[0], len(array))])


def merge(lists: list[Ids], rows: int) -> Ids:
    """The distinct ids of all lists, ascending. Some may come from a time at which the array had more than `rows`."""
    seen = np.zeros(max([rows, *(1 + int(ids.max()) for ids in lists if len(ids))]), np.bool_)
    for ids in lists:
        seen[ids] = True
    return np.flatnonzero(seen)
