"""What a master remembers but never logs: when each member was last heard (P19), how fast it is and when it last moved.

Fed by the shell before a decision; asked by the decider on ticks. A master's own pause is not the members' silence: when the
gap between two of its looks exceeds one interval, or while the bus is away, all silence clocks stand still.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rover_bus.events.identity import Member

SILENT_INTERVALS = 3
REPORT_EVERY_S = 5.0
FASTEST_BATCHES_PER_S = 1e6  # a rate above it, or none that is a number, is a mistake of the worker


def is_known(rate: float) -> bool:
    """Whether a rate is one that was measured: 0 says that none is known yet."""
    return 0 < rate < FASTEST_BATCHES_PER_S


class Liveness:
    """Silence clocks. All times are seconds of one monotonic clock, passed in."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._heard: dict[Member, float] = {}
        self._looked: float | None = None
        self._away_since: float | None = None
        self._reported: tuple[int, float] | None = None  # samples done, and when that was said
        self._rates: dict[int, float] = {}  # batches a second, by worker index, where one is known
        self._total_rate = 0.0
        self._moved: dict[int, float] = {}  # when a worker last got or committed something
        self.readable: dict[str, int] = {}  # records of a stream's partition that some worker has reported

    def note_readable(self, high_water: Mapping[str, int]) -> None:
        """A worker says how many records of each partition it can read; others may see fewer."""
        for partition, records in high_water.items():
            self.readable[partition] = max(records, self.readable.get(partition, 0))

    def touch(self, worker: int, now: float) -> None:
        """A worker reported progress between its lease requests."""
        self._moved[worker] = now

    def move(self, worker: int, rate: float, now: float) -> None:
        """A worker got or committed something, and says how fast it is."""
        self._moved[worker] = now
        if self._rates.get(worker, 0.0) != rate:
            self._total_rate -= self._rates.pop(worker, 0.0)
            if is_known(rate):
                self._rates[worker] = rate
                self._total_rate += rate

    def part(self, worker: int, rate: float, workers: int) -> float:
        """Return which part of what all workers do is this one's. As long as a rate is unknown, all count alike."""
        theirs = self._rates.get(worker)
        others = len(self._rates) - (theirs is not None)
        if not is_known(rate) or others < workers - 1:
            return 1 / max(workers, 1)
        return rate / (rate + max(self._total_rate - (theirs or 0.0), 0.0))

    def rate_to_beat(self, holder: int, left: int, now: float) -> float:
        """Return how fast an idle worker has to be to do `left` batches much sooner than their holder; inf when none would.

        Late is a holder that has not moved for twice the time that the rest should take (then any worker is faster, -1.0), or that
        is less than half as fast.
        """
        theirs = self._rates.get(holder, 0.0)
        expected = left / theirs if theirs > 0 else self.interval_s
        moved = self._moved.setdefault(holder, now)  # a new master's count begins when it first asks
        if now - moved > max(2 * expected, SILENT_INTERVALS * self.interval_s):
            return -1.0
        return 2 * left / (expected - self.interval_s) if expected > self.interval_s else math.inf

    def progress(self, samples: int, now: float) -> float | None:
        """Return samples a second since the last report when one is due, else None.

        The first call only begins to count, and so does the first one after a rewind.
        """
        if self._reported is None or samples < self._reported[0]:
            self._reported = (samples, now)
        former, at = self._reported
        if now - at < REPORT_EVERY_S or samples == former:
            return None
        self._reported = (samples, now)
        return (samples - former) / (now - at)

    def look(self, now: float) -> None:
        """Say that the master is awake. After a gap of more than one interval the clocks are set forward by it."""
        if self._looked is not None and now - self._looked > self.interval_s:
            self._forgive(now - self._looked)
        self._looked = now
        self._total_rate = sum(self._rates.values())  # what was added and taken away in between is rounded

    def observe(self, member: Member, now: float) -> None:
        self._heard[member] = now

    def forget(self, member: Member) -> None:
        self._heard.pop(member, None)
        if member.role == "worker":
            self._total_rate -= self._rates.pop(member.index, 0.0)
            self._moved.pop(member.index, None)

    def lose_bus(self, now: float) -> None:
        if self._away_since is None:
            self._away_since = now

    def regain_bus(self, now: float) -> None:
        """The clocks stood still while the bus was away; every member has one interval more to reconnect."""
        if self._away_since is not None:
            self._forgive(now - self._away_since + self.interval_s)
            self._away_since = None

    def silent(self, now: float) -> list[Member]:
        """Return the members whose last three intervals were silent while the master was awake and connected."""
        if self._away_since is not None:
            return []
        limit = SILENT_INTERVALS * self.interval_s
        return [member for member, heard in self._heard.items() if now - heard > limit]

    def _forgive(self, seconds: float) -> None:
        for member in self._heard:
            self._heard[member] += seconds
