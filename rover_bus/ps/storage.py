"""What a store of rows is, whatever decides where a row lies; and numbers by table, spread over the keys of a request.

Implemented by `hashed`, `growing` and `dense`; used by `tables`, `core` and `local`. The unit of ownership is the slot: every kind
keeps its rows so that a slot can later be given away.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rover_bus.ps.catalogue import Entry, Keys
from rover_bus.ps.rows import Places, Rows

Int = npt.NDArray[np.int64]


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


class Columns:
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
