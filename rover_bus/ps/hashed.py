"""Fixed tables: a place is arithmetic, without an index.

Used by `tables`. 4096 consecutive rows of a table visit every slot once (`hashing.hashed_slots`), so that the rows of a slot are an
arithmetic series, stored side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.ps.catalogue import Entry, Keys
from rover_bus.ps.hashing import SLOTS, hashed_slots
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.rows import Budget, Places, Rows
from rover_bus.ps.spec import Hashed
from rover_bus.ps.storage import Columns, Int

BUILD_ROWS = 1 << 16  # rows given their first values at a time


class HashedStore:
    """Fixed tables. The rows of a slot are an arithmetic series (`hashed_slots`): a place is arithmetic, without an index."""

    def __init__(self, family: Hashed, owned: Int, seed: int, budget: Budget) -> None:
        self.rows = Rows(family, family.width, budget)
        self._family, self._owned, self._seed = family, owned, seed
        self._rank = np.full(SLOTS, -1, np.int64)
        self._rank[owned] = np.arange(len(owned))
        self._columns = Columns()  # rows, salt, first place, places a slot

    def add(self, entry: Entry) -> None:
        table = entry.table
        assert isinstance(table, Hashed)
        salt, depth = entry.salt & (SLOTS - 1), -(-table.rows // SLOTS)
        self.rows.reserve(len(self._owned) * depth)
        self._columns.put(table.name, table.rows, salt, self.rows.count, depth)
        key = np.uint64(table_key(self._seed, entry.salt))
        for start in range(0, len(self._owned) * depth, BUILD_ROWS):
            place = np.arange(start, min(start + BUILD_ROWS, len(self._owned) * depth))
            ids = self._row_at(place, salt, depth)
            self.rows.append(first_values(self._family.init, key, ids, self.rows.width, table.dtype))

    def _row_at(self, place: Int, salt: int, depth: int) -> Int:
        """Return the row stored at a place of a table; some of the last lie behind its end."""
        rank, nth = np.divmod(place, depth)
        row: Int = ((self._owned[rank] - salt) & (SLOTS - 1)) + nth * SLOTS
        return row

    def slots(self, keys: Keys) -> Int:
        return hashed_slots(keys.keys, self._columns.spread(keys)[1])

    def locate(self, keys: Keys) -> Int:
        rows, salts, firsts, depths = self._columns.spread(keys)
        ranks = self._rank.take(hashed_slots(keys.keys, salts))
        if np.any(keys.keys.view(np.uint64) >= rows) or np.any(ranks < 0):
            raise BadMessage(f"rows of {keys.names[0]!r} that no table or no slot here has")
        ranks *= depths
        ranks += firsts
        ranks += keys.keys >> 12
        return ranks

    def pull(self, keys: Keys, places: Places) -> npt.NDArray[Any]:
        return self.rows.take(places)

    def allocate(self, keys: Keys, places: Places) -> Places:
        return places

    def listing(self, name: str) -> tuple[Int, Int]:
        rows, salt, first, depth = self._columns[name]
        ids = self._row_at(np.arange(len(self._owned) * depth), salt, depth)
        order = np.argsort(ids)
        order = order[: np.searchsorted(ids, rows, sorter=order)]
        return ids[order], order + first
