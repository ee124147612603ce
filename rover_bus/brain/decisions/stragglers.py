"""Slow workers: found by rate against their peers and against their own past, with hysteresis; smaller leases, then replace. And
the slowest of workers that wait for one another, which need not be a straggler to cost all of them its part.

Fed by windows of samples a second a worker, feeds lease sizes and plans. Works with two workers, where a rule on the median of
all sees nothing (S18); the order of remedies is `algorithms.md §6` [ours]; Optimus' rule is `optimus.is_straggler` [paper].
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import log, sqrt

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
_MOST_DOUBLED = 6
_MADS = 4.0
_MEMORY = 0.1  # how fast the own past follows, a window
LASTING_WINDOWS = 8  # from which what a worker differs by from its peers is told from noise
_LASTS = 0.05  # how fast that follows, a window
_SURE = 2.0  # standard deviations: each window asks again


class WorkerPace(msgspec.Struct, frozen=True):
    """One worker as seen so far. `past` is its usual rate in samples a second, 0 before the first window; `lasting` the mean log of
    its rate over the median of its peers, in so many good `windows`, and `scatter` the variance of one.
    """

    past: float = 0.0
    slow: int = 0
    good: int = 0
    straggling: int = 0  # windows since it was found, 0: not a straggler
    share: float = 1.0  # its rate as a share of what is expected of it
    lasting: float = 0.0
    windows: int = 0
    scatter: float = 0.0

    @property
    def doubt(self) -> float:
        """The variance of `lasting`."""
        return self.scatter / max(min(self.windows, 2 / _LASTS - 1), 1.0)


class SlowestWorker(msgspec.Struct, frozen=True):
    """The worker that all others wait for: by how much it is `behind` its peers, and what all `gain` by another one, in logs."""

    worker: int
    behind: float
    gain: float


class StragglerRemedy(msgspec.Struct, frozen=True):
    """What shall happen to a straggler: leases of this share of the usual size, or a replacement."""

    worker: int
    reason: Reason
    lease_share: float


def evolve_paces(paces: Mapping[int, WorkerPace], rates: Mapping[int, float]) -> dict[int, WorkerPace]:
    """Take in one window of rates, samples a second by worker index. Workers without a rate are forgotten."""
    peers = _Peers(rates.values())
    return {worker: _evolve(paces.get(worker, WorkerPace()), rate, peers) for worker, rate in rates.items()}


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


def is_due(pace: WorkerPace, replaced: int, *, together: bool = False) -> bool:
    """Whether a straggler is to be replaced: each time in a row that a successor stays slow too makes the next one wait twice as
    long. What slows them is not theirs then, and a job that is always being changed is never sized [ours].
    """
    most, in_vain = (
        REPLACE_TOGETHER_WINDOWS if together else REPLACE_WINDOWS,
        0 if was_well(pace) else replaced,
    )
    return pace.straggling >= most << min(in_vain, _MOST_DOUBLED)


def was_well(pace: WorkerPace) -> bool:
    """Whether a worker had been as fast as its peers for long: then it became slow, and its host need not be."""
    return pace.windows >= LASTING_WINDOWS


def find_slowest(paces: Mapping[int, WorkerPace], workers: int) -> SlowestWorker | None:
    """Return the slowest of workers that take each step together; None while a straggler is among them, or one is not known yet.

    A successor is taken to be any of the `workers` that there are: of n it is as slow as the slowest once, and leaves the second
    slowest to wait for otherwise [ours; docs/design/0086].
    """
    known = [(pace.lasting, index) for index, pace in paces.items() if pace.windows >= LASTING_WINDOWS]
    if workers < 2 or len(known) < workers or any(pace.straggling or pace.slow for pace in paces.values()):
        return None
    (slowest, worker), (second, other) = sorted(known)[:2]
    if second - slowest < _SURE * sqrt(paces[worker].doubt + paces[other].doubt):
        return None
    return SlowestWorker(worker, -slowest, (second - slowest) * (1 - 1 / workers))


class _Peers:
    """The rates of one window, sorted once: what each worker is compared with are the others."""

    def __init__(self, rates: Iterable[float]) -> None:
        self._rates = sorted(rates)
        self._distances: dict[float, list[float]] = {}  # by median: leaving one out gives three at most

    def __len__(self) -> int:
        return len(self._rates) - 1

    def median(self, rate: float) -> float:
        """The median of all but one that has this rate."""
        return _median_without(self._rates, rate)

    def scatter(self, rate: float, middle: float) -> float:
        """1.4826 MAD of all but one that has this rate, around their median."""
        distances = self._distances.get(middle)
        if distances is None:
            distances = self._distances[middle] = sorted(abs(each - middle) for each in self._rates)
        return 1.4826 * _median_without(distances, abs(rate - middle))


def _median_without(ordered: list[float], value: float) -> float:
    left_out, half = bisect_left(ordered, value), (len(ordered) - 1) // 2
    upper = ordered[half + (half >= left_out)]
    if len(ordered) % 2 == 0:
        return upper
    return (ordered[half - 1 + (half - 1 >= left_out)] + upper) / 2


def _evolve(pace: WorkerPace, rate: float, peers: _Peers) -> WorkerPace:
    middle = peers.median(rate) if peers else 0.0
    share = _share(pace, rate, peers, middle)
    slow = pace.slow + 1 if share < SLOW_SHARE else 0
    good = pace.good + 1 if share >= RECOVERED_SHARE else 0
    straggling = pace.straggling + 1 if pace.straggling else int(slow >= SLOW_WINDOWS)
    if straggling and good >= GOOD_WINDOWS:
        straggling = 0
    # The past must not learn to call slowness usual.
    learns = not straggling and not slow
    past = rate if not pace.past else pace.past + _MEMORY * (rate - pace.past) if learns else pace.past
    lasting, windows, scatter = pace.lasting, pace.windows, pace.scatter
    if learns and middle > 0 and rate > 0:  # how it compares with its peers, in a good window
        behind = log(rate) - log(middle)
        follows, step = max(_LASTS, 1 / (windows + 1)), behind - lasting
        lasting, windows = lasting + follows * step, windows + 1
        scatter = (1 - follows) * (scatter + follows * step * step)
    return WorkerPace(past, slow, good, straggling, share, lasting, windows, scatter)


def _share(pace: WorkerPace, rate: float, peers: _Peers, middle: float) -> float:
    """Rate over what is expected: the peers' median (`middle`, beyond their scatter), and its own past when peers kept theirs."""
    shares = [1.0]
    if 0 < middle > rate and rate < middle - _MADS * peers.scatter(rate, middle):
        shares.append(rate / middle)
    if pace.past > 0 and (not peers or middle >= RECOVERED_SHARE * pace.past):
        shares.append(rate / pace.past)
    return min(shares)
