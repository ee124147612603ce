"""Slow workers: found by rate against their peers and against their own past, with hysteresis; smaller leases, then replace.

Fed by windows of samples a second a worker, feeds lease sizes and plans. Works with two workers, where a rule on the median of
all sees nothing (S18); the order of remedies is `algorithms.md §6` [ours]; Optimus' rule is `optimus.is_straggler` [paper].
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from rover_bus.brain.decisions.reasons import Reason

SLOW_SHARE = 0.6  # below this share of peers, or of its own past, a window is slow
RECOVERED_SHARE = 0.8  # above it a window is good again
SLOW_WINDOWS = 2  # so many slow windows in a row make a straggler: 10 s with windows of 5 s
GOOD_WINDOWS = 3  # so many good ones end it
REPLACE_WINDOWS = 12  # a straggler for so long is replaced: half of all straggling runs end before
REPLACE_TOGETHER_WINDOWS = (
    4  # of a synchronous job: all others wait for it, and none can take a part of its work
)
_MADS = 4.0
_MEMORY = 0.1  # how fast the own past follows, a window


class WorkerPace(msgspec.Struct, frozen=True):
    """One worker as seen so far. `past` is its usual rate in samples a second, 0 before the first window."""

    past: float = 0.0
    slow: int = 0
    good: int = 0
    straggling: int = 0  # windows since it was found, 0: not a straggler
    share: float = 1.0  # its rate as a share of what is expected of it


class StragglerRemedy(msgspec.Struct, frozen=True):
    """What shall happen to a straggler: leases of this share of the usual size, or a replacement."""

    worker: int
    reason: Reason
    lease_share: float


def evolve_paces(paces: Mapping[int, WorkerPace], rates: Mapping[int, float]) -> dict[int, WorkerPace]:
    """Take in one window of rates, samples a second by worker index. Workers without a rate are forgotten."""
    return {worker: _evolve(paces.get(worker, WorkerPace()), worker, rates) for worker in rates}


def decide_stragglers(paces: Mapping[int, WorkerPace], *, together: bool = False) -> list[StragglerRemedy]:
    """Remedies for the stragglers: their share of the work first, replacement when that lasts. By worker index.

    `together`: workers take each step together (a synchronous job), and have equal shares whatever their pace.
    """
    remedies = []
    first = Reason.STRAGGLER_HOLDS_UP_ALL if together else Reason.STRAGGLER_SMALLER_LEASES
    most = REPLACE_TOGETHER_WINDOWS if together else REPLACE_WINDOWS
    for worker, pace in sorted(paces.items()):
        if not pace.straggling:
            continue
        reason = Reason.STRAGGLER_REPLACE if pace.straggling >= most else first
        share = 1.0 if together else min(max(pace.share, 0.05), 1.0)
        remedies.append(StragglerRemedy(worker, reason, share))
    return remedies


def _evolve(pace: WorkerPace, worker: int, rates: Mapping[int, float]) -> WorkerPace:
    rate = rates[worker]
    share = _share(pace, worker, rates)
    slow = pace.slow + 1 if share < SLOW_SHARE else 0
    good = pace.good + 1 if share >= RECOVERED_SHARE else 0
    straggling = pace.straggling + 1 if pace.straggling else int(slow >= SLOW_WINDOWS)
    if straggling and good >= GOOD_WINDOWS:
        straggling = 0
    # The past must not learn to call slowness usual.
    learns = not straggling and not slow
    past = rate if not pace.past else pace.past + _MEMORY * (rate - pace.past) if learns else pace.past
    return WorkerPace(past, slow, good, straggling, share)


def _share(pace: WorkerPace, worker: int, rates: Mapping[int, float]) -> float:
    """Rate over what is expected: the peers' median (beyond their scatter), and its own past when peers kept theirs."""
    peers = [rate for other, rate in rates.items() if other != worker]
    rate = rates[worker]
    shares, middle = [1.0], 0.0
    if peers:
        middle = median(peers)
        scatter = 1.4826 * median([abs(each - middle) for each in peers])
        if middle > 0 and rate < middle - _MADS * scatter:
            shares.append(rate / middle)
    elif pace.past > 0:
        shares.append(rate / pace.past)
    if pace.past > 0 and peers and middle >= RECOVERED_SHARE * pace.past:
        shares.append(rate / pace.past)
    return min(shares)
