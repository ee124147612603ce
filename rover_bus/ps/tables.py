"""The stores: where each kind of table keeps its rows. No admission, no wire.

Used by `core` (a server: the rows of its own slots) and by `local` (one process: all slots). The unit of ownership is the
slot; a hashed table keeps the rows of a slot side by side, a growing one notes the slot of every row, a dense one keeps
whole chunks: each can later give a slot away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage, NotEnoughMemory
from rover_bus.ps.catalogue import Catalogue, Entry, Keys, stored_width
from rover_bus.ps.hashing import SLOTS, chunk_slots, growing_slots, hashed_slots
from rover_bus.ps.index import RowIndex
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.rows import Budget, Places, Rows
from rover_bus.ps.spec import CHUNK_LINES, Dense, Growing, Hashed, Table

Int = npt.NDArray[np.int64]
BUILD_ROWS = 1 << 16  # rows given their first values at a time


class Store(Protocol):
    """All tables of one family, as far as their slots are owned here."""

    rows: Rows

    def add(self, entry: Entry) -> None:
        """Begin to hold a table."""

    def locate(self, keys: Keys) -> Places:
        """Return the place of each key; -1 where a growing table has none yet. Raises BadMessage for keys that are not ours."""

    def slots(self, keys: Keys) -> Int:
        """Return the slot of each key; of each line held here, for dense arrays."""

    def pull(self, keys: Keys, places: Places) -> npt.NDArray[Any]:
        """Return the values, (keys, width)."""

    def allocate(self, keys: Keys, places: Places) -> Places:
        """Give missing rows of distinct keys a place with first values; return the places, all of them trainable.

        Raises BadMessage or NotEnoughMemory and has then changed no value: a push is refused before it trains anything.
        """

    def listing(self, name: str) -> tuple[Int, Int]:
        """Return (ids ascending, their places) of what is owned here; for a dense array ids are line numbers."""


class _Columns:
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


class HashedStore:
    """Fixed tables. The rows of a slot are an arithmetic series (`hashed_slots`): a place is arithmetic, without an index."""

    def __init__(self, family: Hashed, owned: Int, seed: int, budget: Budget) -> None:
        self.rows = Rows(family, family.width, budget)
        self._family, self._owned, self._seed = family, owned, seed
        self._rank = np.full(SLOTS, -1, np.int64)
        self._rank[owned] = np.arange(len(owned))
        self._columns = _Columns()  # rows, salt, first place, places a slot

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


class GrowingStore:
    """Tables that grow by the first push of an id. One index and one block of rows for the family."""

    def __init__(self, family: Growing, owned: Int, seed: int, budget: Budget) -> None:
        self.rows = Rows(family, family.width, budget)
        self._family, self._seed = family, seed
        self._is_owned = np.zeros(SLOTS, bool)
        self._is_owned[owned] = True
        self._index = RowIndex()
        self._ids, self._tags = np.empty(0, np.int64), np.empty(0, np.int64)
        self._columns = _Columns()  # tag, salt (as int64), key of the first values (as int64)

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


class DenseStore:
    """Dense arrays as lines of 64 elements, in chunks: a chunk lives in one slot. Keys are not sent: an array goes whole."""

    def __init__(self, family: Dense, owned: Int, seed: int, budget: Budget) -> None:
        self.rows = Rows(family, stored_width(family), budget)
        self._family, self._seed = family, seed
        self._is_owned = np.zeros(SLOTS, bool)
        self._is_owned[owned] = True
        self._lines: dict[str, tuple[Int, int]] = {}  # line numbers held here, first place
        self._located: dict[tuple[str, ...], Places] = {}

    def add(self, entry: Entry) -> None:
        name = entry.table.name
        lines = owned_lines(entry, self._is_owned)
        self._lines[name] = lines, self.rows.count
        self.rows.reserve(len(lines))
        key = np.uint64(table_key(self._seed, entry.salt))
        self.rows.append(first_values(self._family.init, key, lines, self.rows.width, self._family.dtype))

    def slots(self, keys: Keys) -> Int:
        held = (
            chunk_slots(name, -(-int(n) // CHUNK_LINES))[lines // CHUNK_LINES]
            for name, lines, n in self._sized(keys)
        )
        return np.concatenate(list(held))

    def _sized(self, keys: Keys) -> Iterator[tuple[str, Int, int]]:
        for name in keys.names:
            lines = self._lines[name][0]
            yield name, lines, int(lines[-1]) + 1 if len(lines) else 0

    def locate(self, keys: Keys) -> Places:
        places = self._located.get(keys.names)
        if places is None:
            runs = [
                np.arange(first, first + len(lines))
                for lines, first in map(self._lines.__getitem__, keys.names)
            ]
            every = np.concatenate(runs)
            straight = (
                len(every) and every[-1] - every[0] == len(every) - 1 and bool(np.all(np.diff(every) == 1))
            )
            places = slice(int(every[0]), int(every[-1]) + 1) if straight else every
            if len(self._located) < 256:
                self._located[keys.names] = places
        return places

    def pull(self, keys: Keys, places: Places) -> npt.NDArray[Any]:
        return self.rows.take(places)

    def allocate(self, keys: Keys, places: Places) -> Places:
        return places

    def listing(self, name: str) -> tuple[Int, Int]:
        lines, first = self._lines[name]
        return lines, np.arange(first, first + len(lines))


def owned_lines(entry: Entry, is_owned: npt.NDArray[np.bool_]) -> Int:
    """Return the line numbers of a dense array whose chunks lie in owned slots, ascending."""
    chunks = np.flatnonzero(is_owned[chunk_slots(entry.table.name, entry.chunks)])
    lines = (chunks[:, None] * CHUNK_LINES + np.arange(CHUNK_LINES)).ravel()
    return lines[lines < entry.lines]


class TableSet:
    """Every declared table, as far as its slots are owned here."""

    def __init__(self, owned: Int, seed: int, memory_limit_bytes: int = 0) -> None:
        self.owned, self.seed = owned, seed
        self._budget = Budget(memory_limit_bytes)
        self.catalogue = Catalogue()
        self._stores: dict[Table, Store] = {}

    def declare(self, tables: Iterable[Table]) -> None:
        """Add tables and give them their first values. Raises Refused, InputError, NotEnoughMemory."""
        added = self.catalogue.declare(tables)
        while added:
            try:
                self._store(self.catalogue.families[added[0].table.name]).add(added[0])
            except NotEnoughMemory:
                self.catalogue.withdraw(added)
                raise
            del added[0]

    def _store(self, family: Table) -> Store:
        if family not in self._stores:
            kind: Any = {Dense: DenseStore, Hashed: HashedStore, Growing: GrowingStore}[type(family)]
            self._stores[family] = kind(family, self.owned, self.seed, self._budget)
        return self._stores[family]

    def store(self, names: tuple[str, ...]) -> Store:
        """Return the store that holds all of these tables. Raises InputError if one is unknown, BadMessage if they differ."""
        if not names:
            raise BadMessage("a section names no table")
        families = {self.catalogue.families[self.catalogue.entry(name).table.name] for name in names}
        if len(families) > 1:
            raise BadMessage(f"{', '.join(names)} are not stored together")
        return self._stores[families.pop()]

    def export(self, name: str) -> tuple[Int, npt.NDArray[Any]]:
        """Return (ids ascending, values) of the part of a table that is held here."""
        store = self.store((name,))
        ids, places = store.listing(name)
        return ids, store.rows.take(places)

    @property
    def memory_bytes(self) -> int:
        """Bytes in use by rows, optimizer state and indexes."""
        return sum(getattr(store, "memory_bytes", store.rows.memory_bytes) for store in self._stores.values())

    @property
    def rows(self) -> int:
        """Rows in use: what grows."""
        return sum(store.rows.count for store in self._stores.values())
