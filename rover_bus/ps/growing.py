"""Tables that grow by the first push of an id: one index and one block of rows for all tables of a family.

Used by `tables`. Pulls allocate nothing: an unknown id answers its first value, which is a pure function (protocol P4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.ps.catalogue import Entry, Keys
from rover_bus.ps.hashing import SLOTS, growing_slots
from rover_bus.ps.index import RowIndex
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.rows import Budget, Places, Rows
from rover_bus.ps.spec import Growing
from rover_bus.ps.storage import Columns, Int


class GrowingStore:
    """Tables that grow by the first push of an id. One index and one block of rows for the family."""

    def __init__(self, family: Growing, owned: Int, seed: int, budget: Budget) -> None:
        self.rows = Rows(family, family.width, budget)
        self._family, self._seed = family, seed
        self._is_owned = np.zeros(SLOTS, bool)
        self._is_owned[owned] = True
        self._index = RowIndex()
        self._ids, self._tags = np.empty(0, np.int64), np.empty(0, np.int64)
        self._columns = Columns()  # tag, salt (as int64), key of the first values (as int64)

    def add(self, entry: Entry) -> None:
        key = table_key(self._seed, entry.salt)
        signed = [int(np.uint64(number).view(np.int64)) for number in (entry.salt, key)]
        self._columns.put(entry.table.name, entry.tag, *signed)

    @property
    def memory_bytes(self) -> int:
        return self.rows.memory_bytes + self._index.memory_bytes + 16 * self.rows.count

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
        return first_values(self._family.init, seeds, keys.keys[which], self.rows.width, self._family.dtype)

    def pull(self, keys: Keys, places: Places) -> npt.NDArray[Any]:
        assert not isinstance(places, slice)
        missing = np.flatnonzero(places < 0)
        if len(missing) == len(keys.keys):
            return self._first_values(keys, missing)
        values = self.rows.take(places)
        if len(missing):
            values[missing] = self._first_values(keys, missing)
        return values

    def allocate(self, keys: Keys, places: Places) -> Places:
        assert not isinstance(places, slice)
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return places
        tags, ids, places = self._tags_of(keys)[missing], keys.keys[missing], places.copy()
        found = self._index.find(
            tags, ids
        )  # since these places were looked up, another push may have allocated them
        places[missing] = found
        if np.any(found >= 0):
            return self.allocate(keys, places)
        if not self._is_owned[self.slots(keys)[missing]].all():
            raise BadMessage(f"ids of {keys.names[0]!r} whose slots are not here")
        first, end = self.rows.count, self.rows.count + len(ids)
        self.rows.reserve(len(ids))
        for name, new in (("_ids", ids), ("_tags", tags)):
            held = getattr(self, name)
            if len(held) < end:
                setattr(self, name, held := np.resize(held, self.rows.capacity))
            held[first:end] = new
        self.rows.append(self._first_values(keys, missing))
        self._index.insert(tags, ids, first, self._tags[:end], self._ids[:end])
        places[missing] = np.arange(first, end)
        return places

    def listing(self, name: str) -> tuple[Int, Int]:
        tag = self._columns[name][0]
        rows = np.flatnonzero(self._tags[: self.rows.count] == tag)
        rows = rows[np.argsort(self._ids[rows])]
        return self._ids[rows], rows
