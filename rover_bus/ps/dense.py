"""Dense arrays as lines of 64 elements, in chunks of 256 lines; a chunk lies in one slot.

`DenseStore` keeps the lines of the slots owned here (used by `tables`); `DenseLayout` packs a layer's weights into lines and
divides them over the servers (used by `outgoing` and `local`). The layout of some names follows from their declarations alone,
so lines travel without keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage, InputError
from rover_bus.ps.catalogue import Catalogue, Keys, TableEntry, stored_width
from rover_bus.ps.conversion import stored_as
from rover_bus.ps.hashing import SLOTS, chunk_slots
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.memory import SLACK_BYTES, Pages, look_for
from rover_bus.ps.rows import Places, RowBudget, Rows
from rover_bus.ps.spec import CHUNK_LINES, LINE, Dense
from rover_bus.ps.storage import CompleteRows, Int, Mask, Ownership, Scanned, changed_rows, places_of, runs_of


def owned_lines(entry: TableEntry, is_owned: npt.NDArray[np.bool_]) -> Int:
    """Return the line numbers of a dense array whose chunks lie in owned slots, ascending."""
    chunks = np.flatnonzero(is_owned[chunk_slots(entry.table.name, entry.chunks)])
    lines = (chunks[:, None] * CHUNK_LINES + np.arange(CHUNK_LINES)).ravel()
    return lines[lines < entry.lines]


class DenseStore(CompleteRows):
    """Dense arrays as lines of 64 elements, in chunks: a chunk lies in one slot. Keys are not sent: an array goes whole."""

    def __init__(self, family: Dense, owned: Int, seed: int, budget: RowBudget) -> None:
        self.rows = Rows(family, stored_width(family), budget)
        self._family, self._seed = family, seed
        self._slots_here = Ownership(owned)
        self._arrays: dict[str, _Lines] = {}
        self._located: dict[tuple[str, ...], Places] = {}
        self._free = np.empty(0, np.int64)  # places that may be used again

    def make_room_to_add(self, entry: TableEntry) -> None:
        slots = chunk_slots(entry.table.name, entry.chunks)
        rows = (
            int(np.count_nonzero(self._slots_here.held[slots])) * CHUNK_LINES
        )  # the last chunk may have fewer
        rows = min(rows, entry.lines)
        self.rows.check_budget(rows)
        self.rows.make_room(rows)
        look_for(SLACK_BYTES + rows * (48 * self.rows.width + 64) + 32 * entry.lines)

    def add(self, entry: TableEntry) -> None:
        slots = np.repeat(chunk_slots(entry.table.name, entry.chunks), CHUNK_LINES)[: entry.lines]
        array = _Lines(slots, np.full(entry.lines, -1, np.int64))
        lines = np.flatnonzero(self._slots_here.held[slots])
        array.places[lines] = self.rows.count + np.arange(len(lines))
        key = np.uint64(table_key(self._seed, entry.salt))
        self.rows.append(first_values(self._family.init, key, lines, self.rows.width, self._family.dtype))
        self._arrays[entry.table.name] = array

    def _owned(self, name: str) -> Int:
        return np.flatnonzero(self._slots_here.owned[self._arrays[name].slots])

    def slots(self, keys: Keys) -> Int:
        return np.concatenate([self._arrays[name].slots[self._owned(name)] for name in keys.names])

    def locate(self, keys: Keys) -> Places:
        places = self._located.get(keys.names)
        if places is None:
            every = np.concatenate([self._arrays[name].places[self._owned(name)] for name in keys.names])
            straight = (
                len(every) and every[-1] - every[0] == len(every) - 1 and bool(np.all(np.diff(every) == 1))
            )
            places = slice(int(every[0]), int(every[-1]) + 1) if straight else every
            if len(self._located) < 256:
                self._located[keys.names] = places
        return places

    def listing(self, name: str) -> tuple[Int, Int]:
        lines = self._owned(name)
        return lines, self._arrays[name].places[lines]

    # --- whole states (snapshots) ---

    def columns(self) -> list[npt.NDArray[Any]]:
        return self.rows.columns()

    def changed(self) -> Int | None:
        return changed_rows(self.rows)

    def layout(self) -> dict[str, list[int]]:
        return {name: runs_of(array.places[self._owned(name)]) for name, array in self._arrays.items()}

    def adopt(
        self, entries: list[TableEntry], layout: dict[str, list[int]], columns: list[npt.NDArray[Any]]
    ) -> None:
        for entry in entries:
            name = entry.table.name
            slots = np.repeat(chunk_slots(name, entry.chunks), CHUNK_LINES)[: entry.lines]
            array = self._arrays[name] = _Lines(slots, np.full(entry.lines, -1, np.int64))
            lines, places = self._owned(name), places_of(layout[name])
            if len(lines) != len(places) or np.any((places < 0) | (places >= len(columns[0]))):
                raise ValueError(f"array {name!r} lies outside its lines")
            array.places[lines] = places
        self.rows.adopt(columns)

    # --- slots that come and go ---

    def _lines_in(self, slots: Int) -> dict[str, Int]:
        wanted = np.zeros(SLOTS, bool)
        wanted[slots] = True
        return {name: np.flatnonzero(wanted[array.slots]) for name, array in self._arrays.items()}

    def rows_of(self, slots: Int) -> int:
        return sum(map(len, self._lines_in(slots).values()))

    def make_room_for(self, slots: Int) -> None:
        self.rows.make_room(self.rows_of(slots))

    def hold(self, slots: Int) -> None:
        lines = self._lines_in(slots)
        places = self._claim(sum(map(len, lines.values())))
        for name, some in lines.items():
            self._arrays[name].places[some], places = places[: len(some)], places[len(some) :]
        self._slots_here.held[slots] = True

    def _claim(self, count: int) -> Int:
        used, fresh = self._free[:count], max(0, count - len(self._free))
        self.rows.reclaim(used)
        self._free = self._free[count:]
        first = self.rows.extend(fresh)
        return np.concatenate((used, first + np.arange(fresh)))

    def own(self, slots: Int) -> None:
        self._slots_here.owned[slots] = True
        self._located.clear()

    def drop(self, slots: Int) -> None:
        self._slots_here.owned[slots] = self._slots_here.held[slots] = False
        self._located.clear()
        for array in self._arrays.values():
            gone = (array.places >= 0) & ~self._slots_here.held[array.slots]
            self.rows.release(array.places[gone])
            self._free = np.concatenate((self._free, array.places[gone]))
            array.places[gone] = -1

    def scan(self, slots: Int, cursor: int, most_rows: int) -> Scanned:
        wanted = np.zeros(SLOTS, bool)
        wanted[slots] = True
        lines = [np.flatnonzero(wanted[array.slots]) for array in self._arrays.values()]
        ends = np.cumsum([0, *map(len, lines)])
        whole = np.concatenate(lines) if lines else np.empty(0, np.int64)
        counts = np.diff(np.clip(ends, cursor, cursor + most_rows))
        keys = Keys(tuple(self._arrays), counts, whole[cursor : cursor + most_rows])
        done = cursor + most_rows >= len(whole)
        return Scanned(keys, self.find(keys), -1 if done else cursor + most_rows)

    def cold(self) -> list[Pages]:
        return self.rows.cold()

    def touched(self, keys: Keys, _places: Places, slots: Mask) -> Keys:
        lines = [np.flatnonzero(slots[self._arrays[name].slots]) for name in keys.names]
        return Keys(keys.names, np.array([len(some) for some in lines], np.int64), np.concatenate(lines))

    def find(self, keys: Keys, _fresh: bool = False) -> Int:
        parts = np.split(keys.keys, np.cumsum(keys.counts)[:-1])
        every = [self._arrays[name].at(part) for name, part in zip(keys.names, parts, strict=True)]
        places = np.concatenate(every) if every else np.empty(0, np.int64)
        if np.any(places < 0):
            raise BadMessage("keys name lines of dense arrays in slots that this server does not hold")
        return places


class _Lines(NamedTuple):
    """A dense array, line by line: the slot, and the place here (-1: not held)."""

    slots: Int
    places: Int

    def at(self, lines: Int) -> Int:
        """Return the places of lines, -1 for lines that the array has not."""
        known = (lines >= 0) & (lines < len(self.places))
        places = np.full(len(lines), -1, np.int64)
        places[known] = self.places[lines[known]]
        return places


class DenseLayout:
    """Dense arrays of one family, laid end to end as lines of 64 elements."""

    def __init__(self, catalogue: Catalogue, names: tuple[str, ...]) -> None:
        self.names = names
        self._entries: list[TableEntry] = [catalogue.entry(name) for name in names]
        self._firsts = np.cumsum([0, *(entry.lines for entry in self._entries)])
        self.lines = int(self._firsts[-1])
        self.dtype = self._entries[0].table.dtype

    def unpack(self, lines: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, as views of `lines` (lines, 64)."""
        flat, arrays = lines.reshape(-1), {}
        for entry, first in zip(self._entries, self._firsts, strict=False):
            table = entry.table
            assert isinstance(table, Dense)
            arrays[table.name] = flat[first * LINE : first * LINE + table.size].reshape(table.shape)
        return arrays

    def pack(self, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return gradients as lines; what pads the last line of an array is 0. Raises InputError for a wrong shape or type."""
        lines = np.zeros((self.lines, LINE), self.dtype)
        for name, view in self.unpack(lines).items():
            array = np.asarray(arrays[name])
            if array.shape != view.shape:
                raise InputError(
                    f"gradient of {name!r} has the shape {array.shape}; the array has {view.shape}"
                )
            view[...] = stored_as(self.dtype, array, name)
        return lines

    def members(self, owner: npt.NDArray[Any], servers: int) -> tuple[Int, ...]:
        """Return, for each server, which of the lines are there, in the order in which it holds them."""
        shares = []
        for server in range(servers):
            parts = [
                owned_lines(entry, owner == server) + first
                for entry, first in zip(self._entries, self._firsts, strict=False)
            ]
            shares.append(np.concatenate(parts))
        return tuple(shares)
