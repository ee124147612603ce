"""A set of batches as half-open intervals: what of an epoch is committed, what was given back (P3: a set, no watermark).

Fed and asked by the ledger. Additions are disjoint (a batch is committed once) and nearly in order: a prefix [0, low) takes what
comes in order, in constant time; the islands above it lie in two ascending lists and are found by bisection. Memory grows with the
islands, not with the set. Why it is not the servers' set either: see ps/intervals.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import msgspec


class IntervalSet(msgspec.Struct, array_like=True):
    """Disjoint half-open intervals of non-negative integers. `low`: end of the one that begins at 0; `total`: how many integers."""

    low: int = 0
    total: int = 0
    starts: list[int] = []  # of the islands above `low`, ascending, never adjacent
    ends: list[int] = []

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int]]) -> IntervalSet:
        """Return the set of some disjoint intervals."""
        made = cls()
        for first, end in intervals:
            made.add(first, end)
        return made

    def add(self, first: int, end: int) -> None:
        """Add [first, end), which must be disjoint from the set. Empty intervals are ignored."""
        if first >= end:
            return
        self.total += end - first
        starts, ends = self.starts, self.ends
        if first == self.low:
            self.low = end
            if starts and starts[0] == end:
                self.low = ends[0]
                del starts[0], ends[0]
            return
        at = bisect_left(starts, first)
        joins_left = at > 0 and ends[at - 1] == first
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            del ends[at - 1], starts[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = first
        else:
            starts.insert(at, first)
            ends.insert(at, end)

    def remove(self, first: int, end: int) -> bool:
        """Remove [first, end), which must lie within one interval; False when it does not, and then nothing changes."""
        if not self.covers(first, end):
            return False
        self.total -= end - first
        starts, ends = self.starts, self.ends
        if first < self.low:
            rest = [(end, self.low)] if end < self.low else []
            self.low = first
            at = 0
        else:
            at = bisect_right(starts, first) - 1
            pieces = ((starts[at], first), (end, ends[at]))
            rest = [(low, high) for low, high in pieces if low < high]
            del starts[at], ends[at]
        starts[at:at] = [low for low, _ in rest]
        ends[at:at] = [high for _, high in rest]
        return True

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the intervals in order."""
        if self.low:
            yield 0, self.low
        yield from zip(self.starts, self.ends, strict=True)

    def __contains__(self, batch: int) -> bool:
        return self.covers(batch, batch + 1)

    def covers(self, first: int, end: int) -> bool:
        """True when all of [first, end) is in the set."""
        if end <= self.low:
            return True
        at = bisect_right(self.starts, max(first, self.low)) - 1
        return at >= 0 and end <= self.ends[at]

    def missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [first, end) that are not in the set, in order."""
        first = max(first, self.low)
        starts, ends = self.starts, self.ends
        at = bisect_right(ends, first)
        while first < end and at < len(starts) and starts[at] < end:
            if first < starts[at]:
                yield first, starts[at]
            first = ends[at]
            at += 1
        if first < end:
            yield first, end
