"""Dense arrays as lines: packing a layer's weights into stored rows and back, and dividing them over the servers.

Used by `local` and `exchange`. The layout of some names follows from their declarations alone, so lines travel without keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps.catalogue import Catalogue, Entry
from rover_bus.ps.spec import LINE, Dense
from rover_bus.ps.tables import owned_lines

Int = npt.NDArray[np.int64]


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
