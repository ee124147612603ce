"""Memory for rows that grows where it lies: nothing is copied when a table doubles, and a server does not stop for it.

Used by `rows` and `growing`. A small array is an ordinary one. A large one is an address range as long as the machine's memory,
reserved and not used: pages cost when they are touched. Where the system reserves nothing, arrays grow by copying, as usual.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from ctypes import CDLL, c_int, c_size_t, c_void_p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import NotEnoughMemory

SMALL_BYTES = 8 << 20  # below it a copy takes no time worth speaking of
WARM_AHEAD_BYTES = 4 << 20  # of every array: more than one answer of a move brings
HUGE_BYTES = 2 << 20  # of a page at most
SLACK_BYTES = 1 << 20  # for what is not counted: small objects, and what the allocator rounds up
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_POPULATE_WRITE = 23  # Linux 5.14 on; mmap does not name it


class Pages(NamedTuple):
    """Some of a reserved range that was never used: bytes `first` to `end`."""

    range: mmap.mmap
    first: int
    end: int


def populate(cold: Iterable[Pages]) -> None:
    """Have the system give pages their memory, without changing what is in them, and without the interpreter's lock.

    On a virtual machine the first touch of a page may cost milliseconds a MiB (`bench/pages.py`): a thread that serves workers must
    not be the one to touch it. Where the system cannot do it ahead, nothing happens here.
    """
    advise = CDLL(None).madvise
    advise.argtypes = [c_void_p, c_size_t, c_int]
    for reserved, first, end in cold:
        address = np.frombuffer(reserved, np.uint8).ctypes.data
        for at in range(first, end, HUGE_BYTES):
            if advise(address + at, min(HUGE_BYTES, end - at), _POPULATE_WRITE):
                return


class Stretch:
    """One array of `columns` values a row. `array` is replaced when it grows: do not keep it."""

    def __init__(self, columns: int, dtype: str) -> None:
        self._columns, self._dtype = columns, np.dtype(dtype)
        self.array: npt.NDArray[Any] = np.empty((0, columns), dtype)
        self._range: mmap.mmap | None = None
        self._warm_bytes = 0

    def cold(self, rows: int) -> list[Pages]:
        """Return the pages of the first `rows` rows, and of some more, that were not asked for yet."""
        if self._range is None:
            return []
        size = rows * self._columns * self._dtype.itemsize
        first = self._warm_bytes
        if first >= min(size + WARM_AHEAD_BYTES // 2, len(self._range)):
            return []
        end = min(-(-(size + WARM_AHEAD_BYTES) // HUGE_BYTES) * HUGE_BYTES, len(self._range))
        self._warm_bytes = end
        return [Pages(self._range, first, end)]

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
        self.array, self._range, self._warm_bytes = array, None, 0

    def _allocate(self, rows: int, size: int) -> npt.NDArray[Any]:
        if size >= SMALL_BYTES:
            self._range, self._warm_bytes = _reserve(size), 0
            if self._range is not None:
                return self._shaped(self._range, rows)
        try:
            return np.empty((rows, self._columns), self._dtype)
        except MemoryError:
            message = f"{size >> 20} MiB for a table could not be had: use fewer rows or more servers"
            raise NotEnoughMemory(message) from None

    def _shaped(self, reserved: mmap.mmap, rows: int) -> npt.NDArray[Any]:
        return np.frombuffer(reserved, self._dtype, rows * self._columns).reshape(rows, self._columns)


def look_for(size_bytes: int) -> None:
    """Raise NotEnoughMemory unless so much memory can be had now. It is given back at once: the caller uses it next.

    An address range of its own, untouched: it costs two calls of the system whatever its size, and leaves the allocator as it is.
    """
    try:
        mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, ValueError, MemoryError):
        message = (
            f"{-(-size_bytes >> 20)} MiB to work with could not be had: use smaller batches or more servers"
        )
        raise NotEnoughMemory(message) from None


class ZeroBytes:
    """Zeros as bytes, `row_bytes` a row: a large area is untouched memory whose pages can be named, to be populated ahead.

    Raises MemoryError.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._range = _anonymous(rows * row_bytes, 0) if rows * row_bytes >= SMALL_BYTES else None
        self.bytes: npt.NDArray[np.uint8] = (
            np.zeros(rows * row_bytes, np.uint8)
            if self._range is None
            else np.frombuffer(self._range, np.uint8)
        )

    def pages(self, first: int, end: int) -> list[Pages]:
        """Return the pages of rows `first` to `end`."""
        if self._range is None:
            return []
        start = first * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        return [Pages(self._range, start, min(end * self._row_bytes, len(self._range)))]


def _reserve(size: int) -> mmap.mmap | None:
    """Return a private address range, as long as the machine's memory; None where `size` does not fit or nothing is to be had."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > most:
        return None
    return _anonymous(most, _NO_RESERVE)


def _anonymous(size: int, flags: int) -> mmap.mmap | None:
    try:
        reserved = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    except (OSError, ValueError):
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            reserved.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            return reserved
    return reserved
