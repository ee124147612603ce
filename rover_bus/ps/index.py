"""Where the row of an id is: a vectorised open-addressing index for growing tables.

Fed by `growing.GrowingStore`; one index serves all tables of a family, told apart exactly by a tag. Buckets of eight keys fill
one cache line, so that nearly every search ends after one gather and one comparison of eight, for all ids at once. What finds
its bucket full goes into the next one, and the bucket bears a mark: searches go on there. What is removed leaves its lane to
others; marks stay until the index is built again.

A larger index is built beside the one in use, a little with every insertion, because building it at once would stop a server with
millions of rows for a second.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.ps.hashing import mix
from rover_bus.ps.memory import Pages, ZeroBytes

LANES = 8  # keys a bucket: 64 bytes
LOAD = 5  # rows a bucket at most, on average: more makes overflows common
TAG_SHIFT = 40  # a place is (tag + 1) << 40 | row: 0 is an empty lane, in memory that was never touched
NUMBER_BITS = (
    28  # of keys that are put in together; a bucket lies above them: one sort of both is the fastest
)
MOST_MARKED = 4  # a quarter of the buckets: with more marks, searches for what is not there take too long
BUILD_ROWS = 1 << 14  # rows at least that one insertion copies into a larger index
AHEAD = 1 << 15  # buckets: more than the rows of one answer of a move have built

Rows = npt.NDArray[np.int64]
_ROW_MASK = (1 << TAG_SHIFT) - 1
_NUMBERS = (1 << NUMBER_BITS) - 1
_FULL = (1 << LANES) - 1
_BITS = np.uint8(1) << np.arange(LANES, dtype=np.uint8)
_FREE = np.array([(~taken & (taken + 1)).bit_length() - 1 for taken in range(_FULL + 1)])  # the first lane


class Written(NamedTuple):
    """Keys with their places, and the lanes where they are now."""

    lanes: Rows
    keys: Rows
    places: Rows


class RowIndex:
    """(tag, key) -> row, for whole arrays. Rows are numbered by the caller, tags are below 2^22, keys are any int64."""

    def __init__(self, rows: int = 0) -> None:
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        buckets = 1 << max(4, (rows // LOAD).bit_length())
        self._mask = buckets - 1
        self._key_area, self._place_area = ZeroBytes(buckets, LANES * 8), ZeroBytes(buckets, LANES * 8)
        self._keys = self._key_area.bytes.view(np.int64)
        self._lines = self._key_area.bytes.view(f"V{LANES * 8}")
        self._places = self._place_area.bytes.view(np.int64)
        self._taken = np.zeros(buckets, np.uint8)  # a bit a lane
        self._marked = np.zeros(buckets, bool)  # something went into the next one
        self._marks = 0
        self._capacity = buckets * LOAD
        self.used = self._removed = 0  # lanes in use; how many were given back since it was built
        self._larger: RowIndex | None = None
        self._built = 0  # buckets below it are in the larger one
        self._asked = 0  # the memory that those below it need there was asked for
        self._room = 0  # pairs that `make_room` was last asked for, and that did not come yet

    @property
    def memory_bytes(self) -> int:
        own = self._keys.nbytes + self._places.nbytes + self._taken.nbytes + self._marked.nbytes
        return own + (self._larger.memory_bytes if self._larger is not None else 0)

    def _home(self, tags: Rows, keys: Rows) -> Rows:
        scrambled = mix(keys.view(np.uint64) + (tags.view(np.uint64) << np.uint64(TAG_SHIFT)))
        return scrambled.view(np.int64) & self._mask

    def find(self, tags: Rows, keys: Rows) -> Rows:
        """Return the row of each (tag, key), -1 where there is none."""
        lanes = self._lanes(tags, keys)
        rows = self._places.take(lanes, mode="clip")
        rows &= _ROW_MASK
        rows[lanes < 0] = -1
        return rows

    def _lanes(self, tags: Rows, keys: Rows) -> Rows:
        """Return where each (tag, key) is, -1 where it is not."""
        found = np.full(len(keys), -1, np.int64)
        buckets = self._home(tags, keys)
        pending: Any = slice(None)
        while len(buckets):
            lanes = self._search(buckets, tags[pending], keys[pending])
            found[pending] = lanes
            further = np.flatnonzero(lanes < 0)
            further = further[self._marked.take(buckets.take(further))]
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
        lanes = (buckets.take(which) << 3) + (hits & 7)
        right = (self._places.take(lanes) >> TAG_SHIFT) == tags.take(which) + 1  # an empty lane is 0: no tag
        if len(lanes) == len(keys) and right.all():
            return lanes  # one for each key
        found = np.full(len(keys), -1, np.int64)
        found[which[right]] = lanes[right]
        return found

    def make_room(self, count: int) -> None:
        """Have room for so many pairs more, which are inserted next. What is in does not change. Raises MemoryError.

        A larger index that cannot be built is dropped whole: one that is built in part would be given the same pairs again.
        """
        wanted = self.used + count
        try:
            begins = self._larger is None and (wanted > self._capacity or self._is_worn())
            if begins:
                self._larger, self._built, self._asked = RowIndex(self._next_rows(wanted)), 0, 0
            if self._larger is not None:
                self._go_on(self._larger, count, begins)
        except BaseException:
            self._larger = None
            raise
        if wanted > self._capacity + self._capacity // 2:
            self.make_room(count)  # the larger one was built for fewer; it is in use now
        self._room = count

    def _go_on(self, larger: RowIndex, count: int, begins: bool) -> None:
        """Build the larger index: all of it, or as much as keeps up with insertions of so many pairs."""
        wanted = self.used + count
        if wanted > self._capacity + self._capacity // 2 or wanted < BUILD_ROWS:
            self._build(larger, self._mask + 1)
        elif not begins:  # else its memory was never touched: there is time to populate it (`cold`)
            self._build(larger, max(BUILD_ROWS, 4 * count) // LOAD)

    def insert(self, tags: Rows, keys: Rows, rows: Rows) -> None:
        """Give these rows to (tag, key) pairs that are distinct and not yet in; the larger index follows (`make_room`)."""
        if self._room < len(keys):
            self.make_room(len(keys))
        self._room -= len(keys)
        for start in range(0, len(keys), BUILD_ROWS):  # what is worked with stays in the processor's caches
            some = slice(start, start + BUILD_ROWS)
            self._insert(keys[some], ((tags[some] + 1) << TAG_SHIFT) + rows[some])

    def _insert(self, keys: Rows, places: Rows) -> None:
        written = self._add(keys, places)
        if self._larger is not None:
            for lanes, some, where in written:
                passed = np.flatnonzero(lanes < self._built * LANES)
                self._larger._add(some.take(passed), where.take(passed))

    def _next_rows(self, wanted: int) -> int:
        """Return the rows that the next index is for: half as many again, and no fewer buckets than there are."""
        return max(wanted + wanted // 2, self._capacity - 1)

    def _is_worn(self) -> bool:
        """Whether too many buckets bear marks, and so much has left that others would be fewer."""
        return self._removed > self._capacity and self._marks > (self._mask + 1) // MOST_MARKED

    def cold(self) -> list[Pages]:
        """Return memory of a larger index that the next insertions will be the first to use (`memory.populate`).

        What lies in a bucket here will lie in the one of the same number there, or in those that many buckets behind it.
        """
        if self._larger is None or self._asked >= min(self._built + AHEAD // 2, self._mask + 1):
            return []
        first, self._asked = self._asked, min(self._built + AHEAD, self._mask + 1)
        starts = range(0, self._larger._mask + 1, self._mask + 1)
        areas = (self._larger._key_area, self._larger._place_area)
        return [
            pages
            for start in starts
            for area in areas
            for pages in area.pages(start + first, start + self._asked)
        ]

    def _add(self, keys: Rows, places: Rows) -> list[Written]:
        """Put keys and their places in; return them with the lanes where they are."""
        self.used += len(keys)
        return self._put(self._home((places >> TAG_SHIFT) - 1, keys), keys, places)

    def _build(self, larger: RowIndex, buckets: int) -> None:
        """Copy the next buckets; go over to the larger index when all are in it. Neighbours here are neighbours there: it reads and
        writes memory in order, which is several times as fast as row by row."""
        end = min(self._built + buckets, self._mask + 1)
        for start in range(self._built, end, BUILD_ROWS):
            lanes = slice(start * LANES, min(start + BUILD_ROWS, end) * LANES)
            places = self._places[lanes]
            kept = np.flatnonzero(places)
            larger._add(self._keys[lanes].take(kept), places.take(kept))
        self._built = end
        if end > self._mask:
            vars(self).update(vars(larger))

    def remove(self, tags: Rows, keys: Rows) -> None:
        """Take (tag, key) pairs out; those that are not in are passed over."""
        lanes = self._lanes(tags, keys)
        lanes = lanes[lanes >= 0]
        self._places[lanes] = 0
        np.subtract.at(self._taken, lanes >> 3, _BITS.take(lanes & 7))
        self.used -= len(lanes)
        self._removed += len(lanes)
        if self._larger is not None:
            self._larger.remove(tags, keys)

    def _put(self, buckets: Rows, keys: Rows, places: Rows) -> list[Written]:
        """Put into every bucket one key a round, in the order of buckets; where it is full, into the next one."""
        written = []
        while len(keys):
            numbered = np.sort((buckets << NUMBER_BITS) + np.arange(len(keys)))
            buckets, order = numbered >> NUMBER_BITS, numbered & _NUMBERS
            taken = self._taken.take(buckets)
            full = taken == _FULL
            fits = ~full
            fits[1:] &= buckets[1:] != buckets[:-1]
            now = np.flatnonzero(fits)
            heads, used, some = buckets.take(now), taken.take(now), order.take(now)
            written.append(Written((heads << 3) + _FREE.take(used), keys.take(some), places.take(some)))
            self._taken[heads] = used | (used + 1)
            self._write(written[-1])
            self._mark(buckets[full])
            later = np.flatnonzero(~fits)
            buckets = (buckets.take(later) + full.take(later)) & self._mask
            some = order.take(later)
            keys, places = keys.take(some), places.take(some)
        return written

    def _write(self, some: Written) -> None:
        self._keys[some.lanes] = some.keys
        self._places[some.lanes] = some.places

    def _mark(self, full: Rows) -> None:
        """Something goes past these buckets."""
        if len(full):
            self._marks += int(np.count_nonzero(~self._marked[full]))
            self._marked[full] = True
