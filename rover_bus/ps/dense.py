"""Dense arrays as lines of 64 elements, in chunks of 256 lines; a chunk lives in one slot.

`DenseStore` keeps the lines of the slots owned here (used by `tables`); `DenseLayout` packs a layer's weights into lines and
divides them over the servers (used by `outgoing` and `local`). The layout of some names follows from their declarations alone,
so lines travel without keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps.catalogue import Catalogue, Entry, Keys, stored_width
from rover_bus.ps.hashing import SLOTS, chunk_slots
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.rows import Budget, Places, Rows
from rover_bus.ps.spec import CHUNK_LINES, LINE, Dense
from rover_bus.ps.storage import Int


def owned_lines(entry: Entry, is_owned: npt.NDArray[np.bool_]) -> Int:
    """Return the line numbers of a dense array whose chunks lie in owned slots, ascending."""
    chunks = np.flatnonzero(is_owned[chunk_slots(entry.table.name, entry.chunks)])
    lines = (chunks[:, None] * CHUNK_LINES + np.arange(CHUNK_LINES)).ravel()
    return lines[lines < entry.lines]


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


class DenseLayout:
    """Dense arrays of one family, laid end to end as lines of 64 elements."""

    def __init__(self, catalogue: Catalogue, names: tuple[str, ...]) -> None:
        self.names = names
        self._entries: list[Entry] = [catalogue.entry(name) for name in names]
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
        """Return gradients as lines; what pads the last line of an array is 0. Raises InputError for a wrong shape."""
        lines = np.zeros((self.lines, LINE), self.dtype)
        for name, view in self.unpack(lines).items():
            array = np.asarray(arrays[name])
            if array.shape != view.shape:
                raise InputError(
                    f"gradient of {name!r} has the shape {array.shape}; the array has {view.shape}"
                )
            view[...] = array
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
