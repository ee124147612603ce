"""Every declared table, as far as its slots are owned here. No admission, no wire.

Used by `core` (a server: the rows of its own slots), by `local` (one process: all slots) and by `parts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage, NotEnoughMemory
from rover_bus.flash.dirty import DirtyRows
from rover_bus.ps.catalogue import Catalogue, Entry
from rover_bus.ps.dense import DenseStore
from rover_bus.ps.growing import GrowingStore
from rover_bus.ps.hashed import HashedStore
from rover_bus.ps.hashing import SLOTS
from rover_bus.ps.memory import Pages
from rover_bus.ps.rows import Budget
from rover_bus.ps.spec import Dense, Growing, Hashed, Table
from rover_bus.ps.storage import Int, Store


class TableSet:
    """Every declared table, as far as its slots are owned here."""

    def __init__(self, owned: Int, seed: int, memory_limit_bytes: int = 0) -> None:
        self.owned, self.seed = owned, seed
        self._held = np.zeros(SLOTS, bool)  # those that arrive among them
        self._held[owned] = True
        self._budget = Budget(memory_limit_bytes)
        self.catalogue = Catalogue()
        self.follows_changes = False
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
            store = kind(family, self.owned, self.seed, self._budget)
            arriving = np.setdiff1d(np.flatnonzero(self._held), self.owned)
            if len(arriving):
                store.hold(arriving)
            store.rows.dirty = DirtyRows() if self.follows_changes else None
            self._stores[family] = store
        return self._stores[family]

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
        self.catalogue.withdraw([self.catalogue.entries[name]])
        del self._stores[family]

    # --- whole states (snapshots) ---

    def adopt(
        self, entries: list[Entry], layout: dict[str, list[int]], columns: list[npt.NDArray[Any]]
    ) -> None:
        """Hold the arrays of one family of a snapshot. Its declarations have been adopted by the catalogue."""
        self._store(self.catalogue.families[entries[0].table.name]).adopt(entries, layout, columns)

    def follow_changes(self) -> None:
        """From now on remember which rows change, until the next call: what was asked for before is forgotten."""
        self.follows_changes = True
        for store in self._stores.values():
            store.rows.dirty = DirtyRows()

    # --- slots that come and go ---

    def hold(self, slots: Int) -> None:
        """Make room for slots that arrive: nobody is served from them yet. Raises NotEnoughMemory, and then holds none of them."""
        for store in self._stores.values():
            try:
                store.hold(slots)
            except NotEnoughMemory:
                self.drop(slots)
                raise
        self._held[slots] = True

    def own(self, slots: Int) -> None:
        """Serve slots that are held."""
        self.owned = np.union1d(self.owned, slots)
        for store in self._stores.values():
            store.own(slots)

    def drop_arriving(self) -> None:
        """Hold nothing but what is served: moves that were on have been forgotten."""
        stray = np.setdiff1d(np.flatnonzero(self._held), self.owned)
        if len(stray):
            self.drop(stray)

    def drop(self, slots: Int) -> None:
        """Neither serve nor hold these slots any more; `sweep` removes what is left of them."""
        self.owned = np.setdiff1d(self.owned, slots)
        self._held[slots] = False
        for store in self._stores.values():
            store.drop(slots)

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
