"""What a store of rows is, whatever decides where a row lies; and numbers by table, spread over the keys of a request.

Implemented by `hashed`, `growing` and `dense`; used by `tables`, `core` and `local`. The unit of ownership is the slot: every kind
keeps its rows so that a slot can be given away and taken in while the others are served.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rover_bus.ps.catalogue import Keys, TableEntry
from rover_bus.ps.hashing import SLOTS
from rover_bus.ps.memory import Pages
from rover_bus.ps.rows import Places, Rows

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]  # (4096,) some slots


class Ownership:
    """Which slots a store keeps rows of (`held`), and which of them it serves (`owned`): slots that arrive are held first."""

    def __init__(self, owned: Int) -> None:
        self.owned = np.zeros(SLOTS, bool)
        self.owned[owned] = True
        self.held = self.owned.copy()


class Scanned(NamedTuple):
    """Some rows of some slots, and where to go on; `cursor` is -1 at the end."""

    keys: Keys
    places: Int
    cursor: int


class Store(Protocol):
    """All tables of one family, as far as their slots are owned here."""

    rows: Rows

    def make_room_to_add(self, entry: TableEntry) -> None:
        """Have memory for a table. No row changes. Raises NotEnoughMemory, MemoryError."""

    def add(self, entry: TableEntry) -> None:
        """Begin to hold a table. There must be room (`make_room_to_add`)."""

    def locate(self, keys: Keys) -> Places:
        """Return the place of each key; -1 where a growing table has none yet. Raises BadMessage for keys that are not ours."""

    def slots(self, keys: Keys) -> Int:
        """Return the slot of each key; of each line held here, for dense arrays."""

    def pull(self, keys: Keys, places: Places, /) -> npt.NDArray[Any]:
        """Return the values, (keys, width)."""

    def look_again(self, keys: Keys, places: Places, /) -> Places:
        """Return the places once more: another push may have made rows that were missing. Raises BadMessage for slots not ours."""

    def make_room(self, rows: int, /) -> None:
        """Have memory for so many rows more. No row changes. Raises NotEnoughMemory, MemoryError."""

    def allocate(self, keys: Keys, places: Places, /) -> Places:
        """Give missing rows of distinct keys a place with first values; return the places, all of them trainable.

        There must be room (`make_room`), and as much memory to work with as `scratch_bytes` says.
        """

    def scratch_bytes(self, keys: int, rows: int, /) -> int:
        """Return what it takes for a while, at most, to allocate `rows` rows of so many keys and train them all."""

    def listing(self, name: str) -> tuple[Int, Int]:
        """Return (ids ascending, their places) of what is owned here; for a dense array ids are line numbers."""

    # --- slots that come and go ---

    def rows_of(self, slots: Int, /) -> int:
        """Return how many rows these slots take at once, whatever is in them."""

    def make_room_for(self, slots: Int) -> None:
        """Have memory for slots that arrive. No row changes. Raises NotEnoughMemory."""

    def hold(self, slots: Int) -> None:
        """Keep rows of slots that arrive. There must be room (`make_room_for`)."""

    def own(self, slots: Int) -> None:
        """Serve slots that are held."""

    def drop(self, slots: Int) -> None:
        """Neither serve nor hold these slots any more. Their rows may go later (`sweep`)."""

    def sweep(self) -> bool:
        """Remove some rows of dropped slots; False when none are left."""

    def scan(self, slots: Int, cursor: int, most_rows: int) -> Scanned:
        """Return some rows of these slots, from a cursor on (0: the first)."""

    def cold(self) -> list[Pages]:
        """Return memory that is about to be used for the first time."""

    def touched(self, keys: Keys, places: Places, slots: Mask, /) -> Keys:
        """Return those of some trained keys that lie in these slots; for dense arrays every line that does."""

    def find(self, keys: Keys, fresh: bool = False, /) -> Int:
        """Return the places of keys in held slots; those that have none get one, whose contents must be written next.

        `fresh`: none of them was ever written here, so that a growing table need not look. Keys of dense arrays are line numbers.
        Raises BadMessage for keys of other slots, NotEnoughMemory, and has then changed nothing.
        """

    # --- whole states (snapshots) ---

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return everything that is held, as arrays: a part of a snapshot."""

    def changed(self) -> Int | None:
        """Return the rows changed since the last cut, in every column; None: any may have."""

    def layout(self) -> dict[str, list[int]]:
        """Return where each table's owned rows lie: pairs (first, count) of runs, and what else `adopt` needs to know."""

    def adopt(
        self, entries: list[TableEntry], layout: dict[str, list[int]], columns: list[npt.NDArray[Any]], /
    ) -> None:
        """Hold the arrays of a snapshot as they are. Raises ValueError when they do not fit."""


class CompleteRows:
    """What fixed tables and dense arrays do alike: every row of a slot held here is there, so that none is ever missing."""

    rows: Rows

    def pull(self, _keys: Keys, places: Places) -> npt.NDArray[Any]:
        return self.rows.take(places)

    def look_again(self, _keys: Keys, places: Places) -> Places:
        return places

    def make_room(self, rows: int) -> None:
        """Every row is there."""

    def allocate(self, _keys: Keys, places: Places) -> Places:
        return places

    def scratch_bytes(self, keys: int, _rows: int) -> int:
        return 64 * keys + self.rows.scratch_bytes(keys)

    def sweep(self) -> bool:
        return False


def missing(places: Places) -> int:
    """Return how many rows have no place yet."""
    return 0 if isinstance(places, slice) else int(np.count_nonzero(places < 0))


def changed_rows(rows: Rows) -> Int | None:
    """Return the rows changed since the last cut; None: any may have."""
    return None if rows.dirty is None or rows.dirty.whole else rows.dirty.ids


def runs_of(places: Int, step: int = 1) -> list[int]:
    """Return numbers as runs: first, count, first, count, ... where each run ascends by `step`."""
    if not len(places):
        return []
    starts = np.flatnonzero(np.r_[True, np.diff(places) != step])
    counts = np.diff(np.r_[starts, len(places)])
    return np.stack((places[starts], counts), axis=1).ravel().tolist()


def places_of(runs: list[int], step: int = 1) -> Int:
    """Return the numbers of `runs_of`. Raises ValueError for what are no runs."""
    if len(runs) % 2 or any(count < 0 for count in runs[1::2]) or sum(runs[1::2]) > 1 << 40:
        raise ValueError("runs of places that cannot be")
    parts = [first + step * np.arange(count) for first, count in zip(runs[::2], runs[1::2], strict=True)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def only(kept: Mask, keys: Keys) -> Keys:
    """Return some of the keys. `kept`: (keys,)."""
    counts = np.diff(np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], np.cumsum(keys.counts)))])
    return Keys(keys.names, counts, keys.keys[kept])


class TableColumns:
    """Numbers that each table of a family has, spread over the keys of a request."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, ...]] = {}
        self._cached: dict[tuple[str, ...], npt.NDArray[np.int64]] = {}

    def put(self, name: str, *numbers: int) -> None:
        self._of[name] = numbers

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._of[name]

    def spread(self, keys: Keys) -> list[Any]:
        """Return each number as an array as long as the keys, or as a scalar where one table is asked for."""
        if len(keys.names) == 1:
            return [np.int64(number) for number in self._of[keys.names[0]]]
        columns = self._cached.get(keys.names)
        if columns is None:
            columns = np.array([self._of[name] for name in keys.names], np.int64).T.copy()
            if len(self._cached) < 256:  # names come from workers: bounded
                self._cached[keys.names] = columns
        return [np.repeat(column, keys.counts) for column in columns]
