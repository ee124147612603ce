"""A set of batch numbers as intervals: what has been applied, or committed.

Used by `admission`. A set, not a watermark (protocol P3): a refused push is retried behind later ones, so there are holes;
but few, and numbers arrive nearly in order, so that an epoch of any length costs a handful of bounds.
Not the ledger's set (master/intervals.py): admission keeps many former states of this one and asks where single numbers lie, so it
is immutable and searched; the ledger has one, changes it with every commit and never goes back, so that is changed in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Intervals:
    """An immutable set of integers, kept as ascending, disjoint, non-adjacent [first, end) pairs."""

    __slots__ = ("_bounds",)

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        bounds: list[int] = []
        for first, end in sorted(pairs):
            if first >= end:
                continue
            if bounds and first <= bounds[-1]:
                bounds[-1] = max(bounds[-1], end)
            else:
                bounds += (first, end)
        self._bounds = tuple(bounds)  # odd positions are ends: an odd insertion point lies inside an interval

    def __contains__(self, number: int) -> bool:
        return bool(bisect_right(self._bounds, number) & 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._bounds[::2], self._bounds[1::2], strict=True)

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self._bounds) // 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self._bounds == other._bounds

    def __hash__(self) -> int:
        return hash(self._bounds)

    def __repr__(self) -> str:
        return f"Intervals({list(self)})"

    @property
    def count(self) -> int:
        """Number of integers in the set."""
        return sum(end - first for first, end in self)

    def add(self, number: int) -> Intervals:
        """Return the set with one more number."""
        bounds, at = self._bounds, bisect_right(self._bounds, number)
        if at & 1:
            return self
        joins_left = at > 0 and bounds[at - 1] == number
        joins_right = at < len(bounds) and bounds[at] == number + 1
        middle: tuple[int, ...] = (
            () if joins_left and joins_right else (number + 1,) if joins_left else (number,)
        )
        if not joins_left and not joins_right:
            middle = (number, number + 1)
        grown = Intervals()
        grown._bounds = bounds[: at - joins_left] + middle + bounds[at + joins_right :]
        return grown

    def union(self, other: Iterable[tuple[int, int]]) -> Intervals:
        """Return the set with these intervals added."""
        return Intervals([*self, *other])


NOTHING = Intervals()
