"""Slots as [first, end) ranges: what tables of routing, orders and applied sets speak of. Used by `admission` and `moving`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage
from rover_bus.ps.hashing import SLOTS

FEW_RANGES = 8  # that many comparisons of all slots cost less than looking each slot up
Ranges = tuple[tuple[int, int], ...]


def mask_of(ranges: Iterable[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return (4096,) which slots lie in the ranges. Raises BadMessage for ranges that no table could have."""
    mask = np.zeros(SLOTS, bool)
    for first, end in ranges:
        if not 0 <= first < end <= SLOTS:
            raise BadMessage(f"[{first}, {end}) is no range of slots")
        mask[first:end] = True
    return mask


def ranges_of(mask: npt.NDArray[np.bool_]) -> Ranges:
    """Return the ranges of a mask, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2))


def common(some: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    """Return the slots that lie in both."""
    return ranges_of(mask_of(some) & mask_of(others))


def members_of(slots: npt.NDArray[np.int16], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of many slots are in a mask: by comparison while the mask is a few ranges."""
    ranges = ranges_of(mask)
    if not 0 < len(ranges) <= FEW_RANGES:
        return mask[slots]
    first, end = ranges[0]
    chosen = (slots - np.int16(first)).view(np.uint16) < np.uint16(end - first)
    for first, end in ranges[1:]:
        chosen |= (slots - np.int16(first)).view(np.uint16) < np.uint16(end - first)
    return chosen
