"""Fixed tables: a place is arithmetic, without an index.

Used by `tables`. 4096 consecutive rows of a table visit every slot once (`hashing.hashed_slots`), so that the rows of a slot are an
arithmetic series, stored side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.ps.catalogue import Keys, TableEntry
from rover_bus.ps.hashing import SLOT_BITS, SLOTS, hashed_slots
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.memory import SLACK_BYTES, Pages, look_for
from rover_bus.ps.rows import Places, RowBudget, Rows
from rover_bus.ps.spec import Hashed
from rover_bus.ps.storage import (
    CompleteRows,
    Int,
    Mask,
    Ownership,
    Scanned,
    TableColumns,
    changed_rows,
    only,
    places_of,
    runs_of,
)

BUILD_ROWS = 1 << 16  # rows given their first values at a time


class HashedStore(CompleteRows):
    """Fixed tables. The rows of a slot are an arithmetic series (`hashed_slots`), side by side from the slot's first place on."""

    def __init__(self, family: Hashed, owned: Int, seed: int, budget: RowBudget) -> None:
        self.rows = Rows(family, family.width, budget)
        self._family, self._seed = family, seed
        self._slots_here = Ownership(owned)
        self._columns = TableColumns()  # rows, salt, tables before it * SLOTS
        self._tables: list[_Fixed] = []
        self._served = np.empty(0, np.int64)  # (tables * SLOTS,) first place of a slot that is owned, else -1
        self._held = np.empty((0, SLOTS), np.int64)  # the same of those that are held
        self._free: dict[int, list[Int]] = {}  # first places of blocks that may be used again, by length

    def make_room_to_add(self, entry: TableEntry) -> None:
        rows = int(np.count_nonzero(self._slots_here.held)) * _Fixed.of(entry).depth
        self.rows.check_budget(rows)
        self.rows.make_room(rows)
        look_for(SLACK_BYTES + min(rows, BUILD_ROWS) * (48 * self.rows.width + 64) + 3 * self._held.nbytes)

    def add(self, entry: TableEntry) -> None:
        table, fixed = entry.table, _Fixed.of(entry)
        slots = np.flatnonzero(self._slots_here.held)
        self._columns.put(table.name, fixed.rows, fixed.salt, len(self._tables) * SLOTS)
        self._tables.append(fixed)
        places = np.full(SLOTS, -1, np.int64)
        places[slots] = self.rows.count + np.arange(len(slots)) * fixed.depth
        self._held = np.vstack((self._held, places))
        key = np.uint64(table_key(self._seed, entry.salt))
        for start in range(0, len(slots) * fixed.depth, BUILD_ROWS):
            rank, nth = np.divmod(
                np.arange(start, min(start + BUILD_ROWS, len(slots) * fixed.depth)), fixed.depth
            )
            ids = fixed.row(slots[rank], nth)
            self.rows.append(first_values(self._family.init, key, ids, self.rows.width, table.dtype))
        self._serve()

    def _serve(self) -> None:
        self._served = np.where(self._slots_here.owned, self._held, -1).ravel()

    def slots(self, keys: Keys) -> Int:
        return hashed_slots(keys.keys, self._columns.spread(keys)[1])

    def locate(self, keys: Keys) -> Int:
        rows, salts, tables = self._columns.spread(keys)
        slots = hashed_slots(keys.keys, salts)
        slots += tables
        places: Int = self._served.take(slots)
        if np.any(keys.keys.view(np.uint64) >= rows) or np.any(places < 0):
            raise BadMessage(
                f"rows of {keys.names[0]!r} lie in a table or in slots that this server does not hold"
            )
        places += keys.keys >> SLOT_BITS
        return places

    def listing(self, name: str) -> tuple[Int, Int]:
        at = self._columns[name][2] // SLOTS
        ids, places = self._rows_of(at, np.flatnonzero(self._slots_here.owned), 0, None)
        order = np.argsort(ids)
        return ids[order], places[order]

    def _rows_of(self, at: int, slots: Int, first: int, end: int | None) -> tuple[Int, Int]:
        """Return (ids, places) of the rows first .. end of these slots in a table, counted slot by slot."""
        table = self._tables[at]
        most = len(slots) * table.depth
        rank, nth = np.divmod(np.arange(first, most if end is None else min(end, most)), table.depth)
        ids = table.row(slots[rank], nth)
        kept = ids < table.rows  # the last rows of some slots lie behind the table's end
        return ids[kept], (self._held[at][slots[rank]] + nth)[kept]

    # --- whole states (snapshots) ---

    def columns(self) -> list[npt.NDArray[Any]]:
        return self.rows.columns()

    def changed(self) -> Int | None:
        return changed_rows(self.rows)

    def layout(self) -> dict[str, list[int]]:
        slots = np.flatnonzero(self._slots_here.owned)
        return {
            table.name: runs_of(self._held[at][slots], table.depth) for at, table in enumerate(self._tables)
        }

    def adopt(
        self, entries: list[TableEntry], layout: dict[str, list[int]], columns: list[npt.NDArray[Any]]
    ) -> None:
        slots = np.flatnonzero(self._slots_here.owned)
        for entry in entries:
            table, fixed = entry.table, _Fixed.of(entry)
            firsts = places_of(layout[table.name], fixed.depth)
            if (
                len(firsts) != len(slots)
                or np.any(firsts < 0)
                or np.any(firsts + fixed.depth > len(columns[0]))
            ):
                raise ValueError(f"table {table.name!r} lies outside its rows")
            self._columns.put(table.name, fixed.rows, fixed.salt, len(self._tables) * SLOTS)
            self._tables.append(fixed)
            places = np.full(SLOTS, -1, np.int64)
            places[slots] = firsts
            self._held = np.vstack((self._held, places))
        self.rows.adopt(columns)
        self._serve()

    # --- slots that come and go ---

    def rows_of(self, slots: Int) -> int:
        return len(slots) * sum(table.depth for table in self._tables)

    def make_room_for(self, slots: Int) -> None:
        """More than it takes where blocks are free: to count these is not worth it."""
        self.rows.make_room(self.rows_of(slots))

    def hold(self, slots: Int) -> None:
        for at, table in enumerate(self._tables):
            self._held[at, slots] = self._claim(len(slots), table.depth)
        self._slots_here.held[slots] = True

    def _claim(self, blocks: int, depth: int) -> Int:
        """Return first places of blocks that are not in use: freed ones first, then new ones. There must be room."""
        freed = self._free.get(depth, [])
        every = np.concatenate(freed) if freed else np.empty(0, np.int64)
        used, kept = every[:blocks], every[blocks:]
        fresh = blocks - len(used)
        self.rows.reclaim(_spread(used, depth))
        self._free[depth] = [kept]
        first = self.rows.extend(fresh * depth)
        return np.concatenate((used, first + np.arange(fresh) * depth))

    def _release(self, blocks: Int, depth: int) -> None:
        self.rows.release(_spread(blocks, depth))
        self._free.setdefault(depth, []).append(blocks)

    def own(self, slots: Int) -> None:
        self._slots_here.owned[slots] = True
        self._serve()

    def drop(self, slots: Int) -> None:
        slots = slots[self._slots_here.held[slots]]
        for at, table in enumerate(self._tables):
            self._release(self._held[at][slots], table.depth)
        self._held[:, slots] = -1
        self._slots_here.owned[slots] = self._slots_here.held[slots] = False
        self._serve()

    def scan(self, slots: Int, cursor: int, most_rows: int) -> Scanned:
        names, counts, ids, places = [], [], [], []
        ends = np.cumsum([len(slots) * table.depth for table in self._tables])
        left = most_rows
        for at, table in enumerate(self._tables):
            first = cursor - int(ends[at] - len(slots) * table.depth)
            if cursor >= ends[at] or left <= 0:
                continue
            some, where = self._rows_of(at, slots, first, first + left)
            names.append(table.name)
            counts.append(len(some))
            ids.append(some)
            places.append(where)
            step = min(left, int(ends[at]) - cursor)
            cursor, left = cursor + step, left - step
        none = [np.empty(0, np.int64)]
        keys = Keys(tuple(names), np.array(counts, np.int64), np.concatenate(ids or none))
        done = not len(ends) or cursor >= ends[-1]
        return Scanned(keys, np.concatenate(places or none), -1 if done else cursor)

    def cold(self) -> list[Pages]:
        return self.rows.cold()

    def touched(self, keys: Keys, _places: Places, slots: Mask) -> Keys:
        return only(slots[self.slots(keys)], keys)

    def among(self, rows: Int, slots: Mask) -> Int:
        """Return those of some places that hold rows of these slots."""
        return self._named(rows, slots)[1]

    def named(self, rows: Int) -> tuple[Keys, Int]:
        """Return the keys of places that hold rows, and the places in the same order."""
        return self._named(rows, self._slots_here.held)

    def _named(self, rows: Int, slots: Mask) -> tuple[Keys, Int]:
        """What `locate` computes, backwards: a place lies in the last block that begins before it, if that is long enough."""
        firsts, blocks = self._blocks()
        rows = rows if len(firsts) else rows[:0]
        block = blocks[np.maximum(np.searchsorted(firsts, rows, side="right") - 1, 0)]
        at, slot = np.divmod(block, SLOTS)
        nth = rows - self._held[at, slot]
        depths, salts, lengths = (
            np.array([getattr(table, name) for table in self._tables], np.int64)
            for name in ("depth", "salt", "rows")
        )
        ids = ((slot - salts[at]) & (SLOTS - 1)) + nth * SLOTS
        kept = np.flatnonzero((nth >= 0) & (nth < depths[at]) & (ids < lengths[at]) & slots[slot])
        kept = kept[np.argsort(at[kept], kind="stable")]
        counts = np.bincount(at[kept], minlength=len(self._tables))
        return Keys(tuple(table.name for table in self._tables), counts, ids[kept]), rows[kept]

    def _blocks(self) -> tuple[Int, Int]:
        """Return where blocks of rows begin, ascending, and whose they are: table * SLOTS + slot."""
        held = self._held.ravel()
        blocks = np.flatnonzero(held >= 0)
        order = np.argsort(held[blocks])
        return held[blocks][order], blocks[order]

    def find(self, keys: Keys, _fresh: bool = False) -> Int:
        rows, salts, tables = self._columns.spread(keys)
        places = self._held.ravel().take(hashed_slots(keys.keys, salts) + tables)
        if np.any(keys.keys.view(np.uint64) >= rows) or np.any(places < 0):
            raise BadMessage(
                f"rows of {keys.names[0]!r} lie in a table or in slots that this server does not hold"
            )
        found: Int = places + (keys.keys >> SLOT_BITS)
        return found


class _Fixed(NamedTuple):
    """A table: `depth` rows a slot, some of the last behind its end."""

    name: str
    rows: int
    salt: int
    depth: int

    @classmethod
    def of(cls, entry: TableEntry) -> _Fixed:
        """Return what is needed of a declaration."""
        table = entry.table
        assert isinstance(table, Hashed)
        return cls(table.name, table.rows, entry.salt & (SLOTS - 1), -(-table.rows // SLOTS))

    def row(self, slots: Int, nth: Int) -> Int:
        """Return the nth rows of slots."""
        row: Int = ((slots - self.salt) & (SLOTS - 1)) + nth * SLOTS
        return row


def _spread(firsts: Int, depth: int) -> Int:
    return (firsts[:, None] + np.arange(depth)).ravel()
