"""Memory for rows that grows where it lies: nothing is copied when a table doubles, and a server does not stop for it.

Used by `rows` and `growing`. A small array is an ordinary one. A large one is an address range as long as the machine's memory,
reserved and not used: pages cost when they are touched. Where the system reserves nothing, arrays grow by copying, as usual.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import NotEnoughMemory

SMALL_BYTES = 8 << 20  # below it a copy takes no time worth speaking of
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Stretch:
    """One array of `columns` values a row. `array` is replaced when it grows: do not keep it."""

    def __init__(self, columns: int, dtype: str) -> None:
        self._columns, self._dtype = columns, np.dtype(dtype)
        self.array: npt.NDArray[Any] = np.empty((0, columns), dtype)
        self._range: mmap.mmap | None = None

    def grow(self, rows: int) -> None:
        """Make room for this many rows in all, keeping what is there. Raises NotEnoughMemory, and has then changed nothing."""
        size = rows * self._columns * self._dtype.itemsize
        if self._range is not None and size <= len(self._range):
            self.array = self._shaped(self._range, rows)
            return
        larger = self._allocate(rows, size)
        larger[: len(self.array)] = self.array
        self.array = larger

    def adopt(self, array: npt.NDArray[Any]) -> None:
        """Be this very array: a state that was mapped from shared memory. It is copied when it grows."""
        self.array, self._range = array, None

    def _allocate(self, rows: int, size: int) -> npt.NDArray[Any]:
        if size >= SMALL_BYTES:
            self._range = _reserve(size)
            if self._range is not None:
                return self._shaped(self._range, rows)
        try:
            return np.empty((rows, self._columns), self._dtype)
        except MemoryError:
            message = f"{size >> 20} MiB for a table could not be had: use fewer rows or more servers"
            raise NotEnoughMemory(message) from None

    def _shaped(self, reserved: mmap.mmap, rows: int) -> npt.NDArray[Any]:
        return np.frombuffer(reserved, self._dtype, rows * self._columns).reshape(rows, self._columns)


def _reserve(size: int) -> mmap.mmap | None:
    """Return a private address range, as long as the machine's memory; None where `size` does not fit or nothing is to be had."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > most:
        return None
    try:
        reserved = mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError):
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            reserved.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return reserved
    return reserved
