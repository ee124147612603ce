"""Tables that grow by the first push of an id: one index and one block of rows for all tables of a family.

Used by `tables`. Pulls allocate nothing: an unknown id answers its first value, which is a pure function (protocol P4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.ps.catalogue import Keys, TableEntry
from rover_bus.ps.changes import indivisible
from rover_bus.ps.hashing import SLOTS, growing_slots
from rover_bus.ps.index import RowIndex
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.memory import SLACK_BYTES, Pages, Stretch, look_for
from rover_bus.ps.ranges import members_of
from rover_bus.ps.rows import Places, RowBudget, Rows
from rover_bus.ps.spec import Growing
from rover_bus.ps.storage import Int, Mask, Ownership, Scanned, TableColumns, changed_rows, only

SCAN_ROWS = 1 << 19  # looked at in one go: a fraction of a millisecond
SWEEP_ROWS = 1 << 13  # removed in one go
FIRST_ROWS = 1 << 12  # given their first values at a time
NUMBER_BITS = 40  # of rows looked at together; a tag lies above them


class GrowingStore:
    """Tables that grow by the first push of an id. One index and one block of rows for the family."""

    def __init__(self, family: Growing, owned: Int, seed: int, budget: RowBudget) -> None:
        self.rows = Rows(family, family.width, budget)
        self.family, self._seed = family, seed
        self._slots_here = Ownership(owned)
        self._index = RowIndex()
        self._stretches = [Stretch(1, kind) for kind in ("int64", "int64", "int16")]
        self._read_stretches()
        self._names: dict[int, str] = {}  # by tag
        self._columns = TableColumns()  # tag, salt (as int64), key of the first values (as int64)
        self._free: list[Int] = []  # places that may be used again
        self._dropped = np.zeros(SLOTS, bool)  # slots whose rows are still to be removed, below `_sweep_end`
        self._swept = self._sweep_end = 0

    def _read_stretches(self) -> None:
        """By row: its id, its table's tag (-1: not in use), its slot."""
        self._ids, self._tags, self._slot_of = (stretch.array[:, 0] for stretch in self._stretches)

    def make_room_to_add(self, entry: TableEntry) -> None:
        """A table takes room as it grows."""

    def add(self, entry: TableEntry) -> None:
        key = table_key(self._seed, entry.salt)
        signed = [int(np.uint64(number).view(np.int64)) for number in (entry.salt, key)]
        self._columns.put(entry.table.name, entry.tag, *signed)
        self._names[entry.tag] = entry.table.name

    @property
    def memory_bytes(self) -> int:
        return self.rows.memory_bytes + self._index.memory_bytes + 18 * self.rows.count

    def _tags_of(self, keys: Keys) -> Int:
        tags = self._columns.spread(keys)[0]
        return np.broadcast_to(tags, keys.keys.shape).astype(np.int64, copy=False)

    def slots(self, keys: Keys) -> Int:
        salts = np.broadcast_to(self._columns.spread(keys)[1], keys.keys.shape)
        return growing_slots(keys.keys, salts.view(np.uint64))

    def locate(self, keys: Keys) -> Int:
        return self._index.find(self._tags_of(keys), keys.keys)

    def _first_values(self, keys: Keys, which: Int) -> npt.NDArray[Any]:
        _, _, seeds = self._columns.spread(keys)
        seeds = np.broadcast_to(seeds, keys.keys.shape)[which].view(np.uint64)
        return first_values(self.family.init, seeds, keys.keys[which], self.rows.width, self.family.dtype)

    def pull(self, keys: Keys, places: Places) -> npt.NDArray[Any]:
        assert not isinstance(places, slice)
        missing = np.flatnonzero(places < 0)
        if len(missing) == len(keys.keys):
            return self._first_values(keys, missing)
        values = self.rows.take(places)
        if len(missing):
            values[missing] = self._first_values(keys, missing)
        return values

    def look_again(self, keys: Keys, places: Places) -> Places:
        assert not isinstance(places, slice)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return places
        if not self._slots_here.owned[self.slots(keys)[missing]].all():
            raise BadMessage(f"ids of {keys.names[0]!r} lie in slots that this server does not hold")
        places = places.copy()
        places[missing] = self._index.find(self._tags_of(keys)[missing], keys.keys[missing])
        return places

    def make_room(self, rows: int) -> None:
        fresh = max(0, rows - self.rows.freed)
        self.rows.make_room(fresh)
        if len(self._ids) < self.rows.count + fresh:
            try:
                for stretch in self._stretches:
                    stretch.grow(self.rows.capacity)
            finally:
                self._read_stretches()
        self._index.make_room(rows)

    def scratch_bytes(self, keys: int, rows: int) -> int:
        first_values = min(rows, FIRST_ROWS) * (48 * self.rows.width + 64)
        return 160 * keys + 480 * rows + first_values + self.rows.scratch_bytes(keys)

    def allocate(self, keys: Keys, places: Places) -> Places:
        assert not isinstance(places, slice)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return places
        places = places.copy()
        places[missing] = new = self._make(keys, missing, self.slots(keys)[missing])
        for start in range(0, len(new), FIRST_ROWS):
            some = slice(start, start + FIRST_ROWS)
            self.rows.begin(new[some], self._first_values(keys, missing[some]))
        return places

    @indivisible("a table that takes in rows")
    def _make(self, keys: Keys, missing: Int, slots: Int) -> Int:
        """Give keys that have none a place; its contents must be written next. There must be room."""
        tags, ids = self._tags_of(keys)[missing], keys.keys[missing]
        places = self._claim(len(ids))
        self._ids[places], self._tags[places], self._slot_of[places] = ids, tags, slots
        self._index.insert(tags, ids, places)
        return places

    def _claim(self, count: int) -> Int:
        """Return places that are not in use: freed ones first, then new ones."""
        if not self._free:
            return self._extend(count)
        used = self._unused(count)
        self.rows.reclaim(used)
        return np.concatenate((used, self._extend(count - len(used))))

    def _unused(self, count: int) -> Int:
        """Take up to so many places from the free ones, piece by piece: there may be millions of them."""
        taken: list[Int] = []
        while count and self._free:
            some = self._free.pop()
            if len(some) > count:
                self._free.append(some[count:])
            taken.append(some[:count])
            count -= len(taken[-1])
        return np.concatenate(taken)

    def _extend(self, count: int) -> Int:
        first = self.rows.extend(count)
        return np.arange(first, first + count)

    def listing(self, name: str) -> tuple[Int, Int]:
        tag, count = self._columns[name][0], self.rows.count
        rows = np.flatnonzero(self._tags[:count] == tag)
        rows = rows[self._slots_here.owned[self._slot_of[rows]]]
        rows = rows[np.argsort(self._ids[rows])]
        return self._ids[rows], rows

    # --- whole states (snapshots) ---

    def columns(self) -> list[npt.NDArray[Any]]:
        count = self.rows.count
        return [*self.rows.columns(), self._ids[:count], self._tags[:count], self._slot_of[:count]]

    def changed(self) -> Int | None:
        return changed_rows(self.rows)

    def layout(self) -> dict[str, list[int]]:
        return {name: [tag] for tag, name in self._names.items()}

    def adopt(
        self, entries: list[TableEntry], _layout: dict[str, list[int]], columns: list[npt.NDArray[Any]]
    ) -> None:
        *columns, ids, tags, slots = columns
        kinds = [(array.dtype.str, array.shape) for array in (ids, tags, slots)]
        if kinds != [(kind, (len(columns[0]),)) for kind in ("<i8", "<i8", "<i2")]:
            raise ValueError("ids of another kind of table")
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < SLOTS:
            raise ValueError("rows of slots that there are not")
        for entry in entries:
            self.add(entry)
        self.rows.adopt(columns)
        for stretch, array in zip(self._stretches, (ids, tags, slots), strict=True):
            stretch.adopt(array[:, None])
        self._read_stretches()
        known = np.isin(self._tags, list(self._names)) & self._slots_here.owned[self._slot_of]
        self._tags[~known] = -1  # rows of slots that were arriving, or leaving
        if len(free := np.flatnonzero(~known)):
            self.rows.release(free)
            self._free = [free]
        rows = np.flatnonzero(known)
        self._index.make_room(len(rows))
        self._index.insert(self._tags[rows], self._ids[rows], rows)

    # --- slots that come and go ---

    def rows_of(self, _slots: Int) -> int:
        return 0

    def make_room_for(self, slots: Int) -> None:
        """Rows of slots that arrive take room as they come (`find`)."""

    def hold(self, slots: Int) -> None:
        while self._dropped[slots].any() and self.sweep():
            pass
        self._slots_here.held[slots] = True

    def own(self, slots: Int) -> None:
        self._slots_here.owned[slots] = True

    def drop(self, slots: Int) -> None:
        self._slots_here.owned[slots] = self._slots_here.held[slots] = False
        self._dropped[slots] = True
        self._swept, self._sweep_end = 0, self.rows.count

    def sweep(self) -> bool:
        if self._swept >= self._sweep_end:
            self._dropped[:] = False
            return False
        end = min(self._swept + self._outlook(self._dropped, SWEEP_ROWS), self._sweep_end)
        gone = self._rows_between(self._swept, end, self._dropped)[:SWEEP_ROWS]
        self._swept = int(gone[-1]) + 1 if len(gone) == SWEEP_ROWS else end
        if len(gone):
            self._index.remove(self._tags[gone], self._ids[gone])
            self._tags[gone] = -1
            self.rows.touch(gone)
            self.rows.release(gone)
            self._free.append(gone)
        return True

    def _outlook(self, slots: Mask, rows: int) -> int:
        """Return how many rows to look at for so many of these slots, as far as one go may: slots are about equally large."""
        some, of = int(np.count_nonzero(slots)), int(np.count_nonzero(self._slots_here.held | slots))
        return min(SCAN_ROWS, rows * of // max(1, some) + 1)

    def _rows_between(self, first: int, end: int, slots: Mask) -> Int:
        """Return the rows of some slots among those from `first` to `end`."""
        rows = np.flatnonzero(members_of(self._slot_of[first:end], slots)) + first
        return rows[self._tags[rows] >= 0]

    def scan(self, slots: Int, cursor: int, most_rows: int) -> Scanned:
        wanted = np.zeros(SLOTS, bool)
        wanted[slots] = True
        end = min(cursor + self._outlook(wanted, most_rows), self.rows.count)
        rows = self._rows_between(cursor, end, wanted)[:most_rows]
        reached = int(rows[-1]) + 1 if len(rows) == most_rows else end
        return self._named(rows)._replace(cursor=reached if reached < self.rows.count else -1)

    def _named(self, rows: Int) -> Scanned:
        """Group rows by table: sorted as (tag, number) in one integer, which is far faster than a stable sort by tag."""
        tags = self._tags[rows]
        numbered = np.sort((tags << NUMBER_BITS) + np.arange(len(rows)))
        rows = rows[numbered & ((1 << NUMBER_BITS) - 1)]
        counts = np.bincount(tags)
        present = np.flatnonzero(counts)
        names = tuple(self._names[tag] for tag in present.tolist())
        return Scanned(Keys(names, counts[present], self._ids[rows]), rows, -1)

    def within(self, rows: Int, slots: Mask) -> Int:
        """Return those of some rows that lie in these slots."""
        return rows[members_of(self._slot_of[rows], slots)]

    def among(self, rows: Int, slots: Mask) -> Int:
        """Return those of some rows that are in use and lie in these slots."""
        rows = self.within(rows, slots)
        return rows[self._tags[rows] >= 0]

    def named(self, rows: Int) -> tuple[Keys, Int]:
        """Return the keys of rows, and the rows in the same order."""
        found = self._named(rows)
        return found.keys, found.places

    def cold(self) -> list[Pages]:
        own = [pages for stretch in self._stretches for pages in stretch.cold(self.rows.count)]
        return [*self.rows.cold(), *own, *self._index.cold()]

    def touched(self, keys: Keys, places: Places, slots: Mask) -> Keys:
        return only(slots[self._slot_of[places]], keys)

    def find(self, keys: Keys, fresh: bool = False) -> Int:
        places = np.full(len(keys.keys), -1) if fresh else self.locate(keys)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return places
        slots = self.slots(keys)[missing]
        if not self._slots_here.held[slots].all():
            raise BadMessage(f"ids of {keys.names[0]!r} lie in slots that this server does not hold")
        self.rows.check_budget(len(missing))
        self.make_room(len(missing))
        look_for(SLACK_BYTES + self.scratch_bytes(len(places), len(missing)))
        places[missing] = self._make(keys, missing, slots)
        return places
