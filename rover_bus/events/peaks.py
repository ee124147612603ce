"""What is used in the busiest tenths of a second: counters of processor seconds, read ten times a second.

Run by workers and servers of themselves and by a daemon of its members' control groups; feeds `cores_peak` of their samples.
A tenth of a second is the period in which the kernel counts the limit of a container: a member whose busiest ones stay below its
limit was not held back by it. The 95th percentile is taken: a rare burst (a cut that is staged, a garbage collection) is no peak.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

PERIOD_S = 0.1
LEAST_PERIODS = 10  # fewer tell no percentile
BUSIEST = 0.95

K = TypeVar("K", bound=Hashable)


class Peaks(Generic[K]):
    """Counters by key. One thread notes, another may take."""

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[K, float]] = (0.0, {})
        self._rates: dict[K, list[float]] = {}

    def note(self, seconds: Mapping[K, float], at_s: float) -> None:
        """Take in what each has used in all, in processor seconds, at a monotonic second."""
        (then_s, before), self._last = self._last, (at_s, seconds)
        passed_s = at_s - then_s
        if passed_s <= 0:
            return
        for key, used_s in seconds.items():
            if key in before:
                rate = max(used_s - before[key], 0.0) / passed_s
                self._rates.setdefault(key, []).append(rate)

    def take(self) -> dict[K, float]:
        """Return the cores that each used in its busiest periods since the last call; nothing of what was read too few times."""
        rates, self._rates = self._rates, {}
        return {key: _percentile(each) for key, each in rates.items() if len(each) >= LEAST_PERIODS}


async def follow(peaks: Peaks[K], read: Callable[[], Mapping[K, float]]) -> None:
    """Read counters ten times a second, for ever."""
    while True:
        peaks.note(read(), time.monotonic())
        await asyncio.sleep(PERIOD_S)


def _percentile(rates: list[float]) -> float:
    ordered = sorted(rates)
    return ordered[int(BUSIEST * (len(ordered) - 1) + 0.5)]
