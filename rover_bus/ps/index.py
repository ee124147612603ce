"""Where the row of an id is: a vectorised open-addressing index for growing tables.

Fed by `growing.GrowingStore`; one index serves all tables of a family, told apart exactly by a tag. Buckets of eight keys fill
one cache line, so that nearly every search ends after one gather and one comparison of eight, for all ids at once. Full
buckets overflow into the next one. Nothing is ever removed: slots that leave a server are rebuilt without them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.ps.hashing import mix

LANES = 8  # keys a bucket: 64 bytes
LOAD = LANES // 2  # rows a bucket at most, on average: more makes overflows common
TAG_SHIFT = 40  # a place is tag << 40 | row

Rows = npt.NDArray[np.int64]
_ROW_MASK = (1 << TAG_SHIFT) - 1


class RowIndex:
    """(tag, key) -> row, for whole arrays. Rows are numbered by the caller, tags are below 2^22, keys are any int64."""

    def __init__(self, rows: int = 0) -> None:
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        buckets = 1 << max(4, (rows // LOAD).bit_length())
        self._mask = buckets - 1
        self._keys = np.zeros((buckets, LANES), np.int64)
        self._lines = self._keys.view(f"V{LANES * 8}").ravel()
        self._places = np.full(buckets * LANES, -1, np.int64)
        self._fill = np.zeros(buckets, np.uint8)
        self._capacity = buckets * LOAD
        self.used = 0

    @property
    def memory_bytes(self) -> int:
        return self._keys.nbytes + self._places.nbytes + self._fill.nbytes

    def _home(self, tags: Rows, keys: Rows) -> Rows:
        scrambled = mix(keys.view(np.uint64) + (tags.view(np.uint64) << np.uint64(TAG_SHIFT)))
        return scrambled.view(np.int64) & self._mask

    def find(self, tags: Rows, keys: Rows) -> Rows:
        """Return the row of each (tag, key), -1 where there is none."""
        found = np.full(len(keys), -1, np.int64)
        buckets = self._home(tags, keys)
        pending: Any = slice(None)
        while len(buckets):
            rows = self._search(buckets, tags[pending], keys[pending])
            found[pending] = rows
            further = np.flatnonzero((rows < 0) & (self._fill.take(buckets) == LANES))
            buckets = (buckets[further] + 1) & self._mask
            pending = further if isinstance(pending, slice) else pending[further]
        return found

    def _search(self, buckets: Rows, tags: Rows, keys: Rows) -> Rows:
        """Look into one bucket for each key."""
        lanes = self._lines.take(buckets, mode="clip").view(np.int64).reshape(-1, LANES)
        hits = np.flatnonzero(
            lanes == keys[:, None]
        )  # also stale zeros and equal ids of other tables: the tag decides
        which = hits >> 3
        places = self._places.take((buckets.take(which) << 3) + (hits & 7))
        right = (places >> TAG_SHIFT) == tags.take(which)  # an empty lane is -1: no tag
        rows = np.full(len(keys), -1, np.int64)
        rows[which[right]] = places[right] & _ROW_MASK
        return rows

    def insert(self, tags: Rows, keys: Rows, first_row: int, all_tags: Rows, all_keys: Rows) -> None:
        """Give the rows first_row, first_row + 1, ... to (tag, key) pairs that are distinct and not yet in.

        `all_tags`, `all_keys` list what is in by row, these included: what a larger index is built from.
        """
        if self.used + len(keys) > self._capacity:
            self._allocate(2 * len(all_keys))
            tags, keys, first_row = all_tags, all_keys, 0
        self.used += len(keys)
        self._put(
            self._home(tags, keys), keys, (tags << TAG_SHIFT) + np.arange(first_row, first_row + len(keys))
        )

    def _put(self, buckets: Rows, keys: Rows, places: Rows) -> None:
        while len(keys):
            order = np.argsort(buckets)
            buckets, keys, places = buckets[order], keys[order], places[order]
            firsts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
            counts = np.diff(np.r_[firsts, len(keys)])
            lanes = np.arange(len(keys)) - np.repeat(firsts, counts) + self._fill[buckets]
            fits = lanes < LANES
            self._keys[buckets[fits], lanes[fits]] = keys[fits]
            self._places[(buckets[fits] << 3) + lanes[fits]] = places[fits]
            heads = buckets[firsts]
            self._fill[heads] = np.minimum(self._fill[heads] + counts, LANES)
            buckets, keys, places = (buckets[~fits] + 1) & self._mask, keys[~fits], places[~fits]
