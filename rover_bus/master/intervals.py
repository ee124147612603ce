"""A set of batches as half-open intervals, for the committed set of an epoch (protocol P3: a set, not a watermark).

Fed and asked by the ledger. Additions are disjoint (a batch is committed once), nearly in order and constant in time: a prefix
[0, low) takes what comes in order, two dictionaries keep the islands above it. Memory grows with the islands, not with the set.
Why it is not the servers' set either: see ps/intervals.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class IntervalSet:
    """Disjoint half-open intervals of non-negative integers."""

    __slots__ = ("_ends", "_starts", "low", "total")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self.low = 0
        self.total = 0
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for first, end in intervals:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add [first, end), which must be disjoint from the set. Empty intervals are ignored."""
        if first >= end:
            return
        self.total += end - first
        starts = self._starts
        if first == self.low:
            if starts:
                while (further := starts.pop(end, None)) is not None:
                    del self._ends[further]
                    end = further
            self.low = end
            return
        ends = self._ends
        left = ends.pop(first, first)
        right = starts.pop(end, end)
        starts[left] = right
        ends[right] = left

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the intervals in order."""
        if self.low:
            yield 0, self.low
        yield from sorted(self._starts.items())

    def __contains__(self, batch: int) -> bool:
        return batch < self.low or any(first <= batch < end for first, end in self._starts.items())

    def covers(self, first: int, end: int) -> bool:
        """True when all of [first, end) is in the set."""
        if end <= self.low:
            return True
        first = max(first, self.low)
        return any(start <= first and end <= stop for start, stop in self._starts.items())

    def missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [first, end) that are not in the set, in order."""
        first = max(first, self.low)
        if self._starts:
            for start, stop in sorted(self._starts.items()):
                if stop <= first:
                    continue
                if start >= end:
                    break
                if first < start:
                    yield first, start
                first = stop
        if first < end:
            yield first, end

    @property
    def islands(self) -> int:
        """How many intervals lie above the prefix: what the memory grows with."""
        return len(self._starts)
