"""Every declared table, as far as its slots are owned here. No admission, no wire.

Used by `core` (a server: the rows of its own slots), by `local` (one process: all slots) and by `parts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.flash.dirty import DirtyRows
from rover_bus.ps.catalogue import Catalogue, TableEntry, family_of
from rover_bus.ps.changes import indivisible
from rover_bus.ps.dense import DenseStore
from rover_bus.ps.growing import GrowingStore
from rover_bus.ps.hashed import BUILD_ROWS, HashedStore
from rover_bus.ps.hashing import SLOTS
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.memory import SLACK_BYTES, Pages, look_for
from rover_bus.ps.rows import RowBudget
from rover_bus.ps.spec import Dense, Growing, Hashed, Table
from rover_bus.ps.storage import Int, Store


class TableSet:
    """Every declared table, as far as its slots are owned here."""

    def __init__(self, owned: Int, seed: int, memory_limit_bytes: int = 0) -> None:
        self.owned, self.seed = owned, seed
        self._held = np.zeros(SLOTS, bool)  # those that arrive among them
        self._held[owned] = True
        self._budget = RowBudget(memory_limit_bytes)
        self.catalogue = Catalogue()
        self.follows_changes = False
        self._stores: dict[Table, Store] = {}

    def declare(self, tables: Iterable[Table]) -> None:
        """Add tables and give them their first values. Raises Refused, InputError, and NotEnoughMemory or MemoryError: then tables
        before the one that found no room are declared, and all may be declared again."""
        for entry in self.catalogue.new(tables):
            family = family_of(entry.table)
            store = self._stores.get(family) or self._new_store(family)
            store.make_room_to_add(entry)
            self._add(family, store, entry)

    @indivisible("a table that is declared")
    def _add(self, family: Table, store: Store, entry: TableEntry) -> None:
        store.add(entry)
        self._stores[family] = store  # not before it has a table: an empty one could not be read from a cut
        self.catalogue.add(entry)

    def _new_store(self, family: Table) -> Store:
        kind: Any = {Dense: DenseStore, Hashed: HashedStore, Growing: GrowingStore}[type(family)]
        store: Store = kind(family, self.owned, self.seed, self._budget)
        arriving = np.setdiff1d(np.flatnonzero(self._held), self.owned)
        if len(arriving):
            store.hold(arriving)  # no rows: it has no table yet
        store.rows.dirty = DirtyRows() if self.follows_changes else None
        return store

    def bound(self, limit_bytes: int, more_bytes: int = 0) -> None:
        """Let rows use so many bytes from now on, and at most so many more than they do; 0: no such bound."""
        self._budget.bound(limit_bytes, more_bytes)

    def store(self, names: tuple[str, ...]) -> Store:
        """Return the store that holds all of these tables. Raises InputError if one is unknown, BadMessage if they differ."""
        if not names:
            raise BadMessage("a section names no table")
        families = {self.catalogue.families[self.catalogue.entry(name).table.name] for name in names}
        if len(families) > 1:
            raise BadMessage(f"{', '.join(names)} are not stored together")
        return self._stores[families.pop()]

    def forget(self, name: str) -> None:
        """Know nothing of a table any more; where others are stored with it, it begins again with zeros."""
        family = self.catalogue.families[name]
        if sum(other == family for other in self.catalogue.families.values()) > 1:
            store = self._stores[family]
            _, places = store.listing(name)
            store.rows.zero(places)
            return
        self.catalogue.withdraw(self.catalogue.entries[name])
        del self._stores[family]

    # --- whole states (snapshots) ---

    def adopt(
        self, entries: list[TableEntry], layout: dict[str, list[int]], columns: list[npt.NDArray[Any]]
    ) -> None:
        """Hold the arrays of one family of a snapshot. Its declarations have been adopted by the catalogue."""
        family = self.catalogue.families[entries[0].table.name]
        store = self._stores[family] = self._new_store(family)
        store.adopt(entries, layout, columns)

    def follow_changes(self) -> None:
        """From now on remember which rows change, until the next call: what was asked for before is forgotten."""
        self.follows_changes = True
        for store in self._stores.values():
            store.rows.dirty = DirtyRows()

    # --- slots that come and go ---

    def hold(self, slots: Int) -> None:
        """Keep rows of slots that arrive: none is served yet. Raises NotEnoughMemory, and has then changed nothing."""
        stores = self._stores.values()
        self._budget.check(sum(store.rows_of(slots) * store.rows.row_bytes for store in stores))
        for store in stores:
            store.make_room_for(slots)
        look_for(SLACK_BYTES + sum(32 * store.rows_of(slots) for store in stores))
        self._hold(slots)

    @indivisible("slots that arrive")
    def _hold(self, slots: Int) -> None:
        for store in self._stores.values():
            store.hold(slots)
        self._held[slots] = True

    @indivisible("slots that are given to us")
    def own(self, slots: Int) -> None:
        """Serve slots that are held."""
        self.owned = np.union1d(self.owned, slots)
        for store in self._stores.values():
            store.own(slots)

    def begin(self, names: Collection[str], slots: Int) -> None:
        """Give rows of these tables in slots that are held their first values (P4). Raises NotEnoughMemory."""
        for name in names:
            family, key = (
                self.catalogue.families[name],
                np.uint64(table_key(self.seed, self.catalogue.entry(name).salt)),
            )
            store, cursor = self._stores[family], 0
            look_for(SLACK_BYTES + BUILD_ROWS * (48 * store.rows.width + 64))
            while cursor >= 0:
                keys, places, cursor = store.scan(slots, cursor, BUILD_ROWS)
                ends = np.cumsum(keys.counts)
                for at in (at for at, each in enumerate(keys.names) if each == name):
                    some = slice(int(ends[at] - keys.counts[at]), int(ends[at]))
                    first = first_values(family.init, key, keys.keys[some], store.rows.width, family.dtype)
                    store.rows.begin(places[some], first)

    def drop_arriving(self) -> None:
        """Hold nothing but what is served: moves that were on have been forgotten."""
        stray = np.setdiff1d(np.flatnonzero(self._held), self.owned)
        if len(stray):
            self.drop(stray)

    @indivisible("slots that leave")
    def drop(self, slots: Int) -> None:
        """Neither serve nor hold these slots any more; `sweep` removes what is left of them."""
        self.owned = np.setdiff1d(self.owned, slots)
        self._held[slots] = False
        for store in self._stores.values():
            store.drop(slots)

    @indivisible("the rows of slots that have left")
    def sweep(self) -> bool:
        """Remove some rows of dropped slots, in a few milliseconds; False when none are left."""
        return any(store.sweep() for store in self._stores.values())

    def cold(self) -> list[Pages]:
        """Return memory that is about to be used for the first time (`memory.populate`)."""
        return [pages for store in self._stores.values() for pages in store.cold()]

    def families(self) -> list[tuple[Table, Store]]:
        """Return what is stored together, in the order of declaration."""
        return list(self._stores.items())

    def export(self, name: str) -> tuple[Int, npt.NDArray[Any]]:
        """Return (ids ascending, values) of the part of a table that is held here."""
        store = self.store((name,))
        ids, places = store.listing(name)
        return ids, store.rows.take(places)

    def check_budget(self, rows: Iterable[tuple[Store, int]]) -> None:
        """Raise NotEnoughMemory unless so many more rows of each store may be in use together."""
        self._budget.check(sum(count * store.rows.row_bytes for store, count in rows))

    @property
    def memory_bytes(self) -> int:
        """Bytes in use by rows, optimizer state and indexes."""
        return sum(getattr(store, "memory_bytes", store.rows.memory_bytes) for store in self._stores.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of rows and optimizer state alone: what a move carries."""
        return sum(store.rows.memory_bytes for store in self._stores.values())

    @property
    def rows(self) -> int:
        """Rows in use: what grows."""
        return sum(store.rows.used for store in self._stores.values())
