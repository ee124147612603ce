"""How a member's memory grows, how much it may need, and when it meets its limit.

Fed by (samples consumed, bytes) pairs of one server or worker, feeds OOM forecasts and memory limits.

Fixed tables are flat after warm-up; growing tables follow Heaps' law K*n^h, h about 0.5 to 0.9, with jumps when a feature
is launched. The published rule is linear, rate * remaining [paper]; ours fits both (linear is h = 1), takes the upper
confidence bound, and starts anew where the slope changes (`algorithms.md §3` [ours]).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.samples import BoolArray, FloatArray, IntArray, NotEnough
from rover_bus.brain.models.throughput import student_95

EXPONENTS: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_LEAST_POINTS = 4
# The recent points that are tried for a slope of their own, and how far (in sds) they must leave the old curve.
_RECENT = 5
_CHANGE_SDS = 4.0
# Measurements of resident memory jump by allocator arenas: never believe them closer than this.
_NOISE_FLOOR = 0.002
_HORIZON = 1e6
# How far ahead the limit is looked for, as shares of n: first in steps of so many, then in each of one step.
_AHEAD = np.r_[0.0, np.geomspace(1e-4, _HORIZON, 600)]
_COARSE = 25
# Points that lie closer together than this share of their count are one point.
_STANDSTILL = 1e-6


class MemoryForecast(msgspec.Struct, frozen=True):
    """Bytes at some future sample count: expected, and the 95 % upper bound."""

    expected_bytes: float
    upper_bytes: float


@dataclass(frozen=True, eq=False)
class Growth:
    """bytes(n) = base + rate * (n/unit)^h, for each exponent h of the grid with its weight.

    Arrays have shape (h,): `rate_variances` about the centre `middles` of (n/unit)^h, `noise_variances` of one measurement
    and the centre. `samples` is n of the last point, `used_bytes` the memory there, `points` how many were used;
    `changed` says whether an older slope was left behind.
    """

    exponents: FloatArray
    weights: FloatArray
    bases: FloatArray
    rates: FloatArray
    middles: FloatArray
    rate_variances: FloatArray
    noise_variances: FloatArray
    unit: float
    samples: float
    used_bytes: float
    points: int
    changed: bool

    def forecast(self, samples: float) -> MemoryForecast:
        """Memory once `samples` are consumed in total: never less than is used now."""
        expected, upper = self._at(np.array([samples]))
        return MemoryForecast(float(expected[0]), float(upper[0]))

    def samples_to_limit(self, limit_bytes: float) -> float:
        """Samples left until the upper bound meets the limit; infinite when it does not within a million times n."""
        if self.used_bytes >= limit_bytes:
            return 0.0
        n = max(self.samples, 1.0)
        met = int(np.searchsorted(self._at(self.samples + n * _AHEAD[::_COARSE])[1], limit_bytes))
        if met == len(_AHEAD[::_COARSE]):
            return float("inf")
        if met == 0:
            return 0.0
        # The bound rises with n, so it meets the limit between these two. Sums of other shapes may differ by their last bit.
        ahead = n * _AHEAD[(met - 1) * _COARSE : met * _COARSE + 1]
        upper = self._at(self.samples + ahead)[1]
        last = min(max(int(np.searchsorted(upper, limit_bytes)), 1), len(ahead) - 1)
        share = (limit_bytes - upper[last - 1]) / (upper[last] - upper[last - 1])
        return float(ahead[last - 1] + share * (ahead[last] - ahead[last - 1]))

    def seconds_to_limit(self, limit_bytes: float, samples_per_s: float) -> float:
        """Time left at a rate of consumption; infinite when nothing is consumed."""
        left = self.samples_to_limit(limit_bytes)
        return left / samples_per_s if samples_per_s > 0 else (0.0 if left == 0 else float("inf"))

    def _at(self, samples: FloatArray) -> tuple[FloatArray, FloatArray]:
        x = (samples / self.unit)[None, :] ** self.exponents[:, None]
        means = self.bases[:, None] + self.rates[:, None] * x
        away = (x - self.middles[:, None]) ** 2
        variances = away * self.rate_variances[:, None] + self.noise_variances[:, None]
        mean = self.weights @ means
        spread = np.sqrt(self.weights @ (variances + (means - mean) ** 2))
        expected = np.maximum(mean, self.used_bytes)
        upper = np.maximum(expected + student_95(max(self.points - 3, 3)) * spread, self.used_bytes)
        return expected, np.maximum.accumulate(upper)


def fit_growth(samples: ArrayLike, used_bytes: ArrayLike) -> Growth | NotEnough:
    """Fit growth to memory (n,) in bytes at increasing counts of consumed samples (n,). Needs four points."""
    n, used = np.asarray(samples, dtype=np.float64), np.asarray(used_bytes, dtype=np.float64)
    if len(n) < _LEAST_POINTS or not _advances(n):
        return NotEnough(f"{len(n)} memory samples; four are the least", max(_LEAST_POINTS - len(n), 1))
    start = _last_change(n, used)
    return _fit(n[start:], used[start:], changed=start > 0)


def _advances(n: FloatArray) -> bool:
    """Whether samples were consumed between the points: memory over one and the same count has no slope."""
    return bool(np.ptp(n) > _STANDSTILL * max(float(n[-1]), 1.0))


def _last_change(n: FloatArray, used: FloatArray) -> int:
    """Index from which the present slope holds: 0 unless the newest points left the curve of the older ones."""
    if len(n) < _RECENT + _LEAST_POINTS:
        return 0
    starts = [
        start
        for start in range(len(n) - _RECENT, _LEAST_POINTS - 1, -_RECENT)
        if _advances(n[:start]) and _advances(n[start:])  # else the job stood still: that tells no slope
    ]
    if not starts:
        return 0
    leave = _leave(n, used, np.array(starts))
    return next((start for start, leaves in zip(starts, leave, strict=True) if leaves), 0)


def _leave(n: FloatArray, used: FloatArray, starts: IntArray) -> BoolArray:
    """Return, for each start (s,), whether the points from there on leave the curve of those before it.

    As `_fit` and `Growth._at` do it one by one, for all at once: arrays have shape (s, h) and (s, h, point).
    """
    size = starts.astype(np.float64)
    inside = np.arange(len(n)) < starts[:, None]
    exponents = np.array(EXPONENTS)
    units = np.maximum(n[starts - 1], 1.0)[:, None] ** exponents
    x = n ** exponents[:, None] / units[:, :, None]
    middles = (x * inside[:, None, :]).sum(axis=2) / size[:, None]
    centred = (x - middles[:, :, None]) * inside[:, None, :]
    square = np.maximum((centred**2).sum(axis=2), 1e-300)
    rates = np.maximum(centred @ used / square, 0.0)
    bases = (inside @ used / size)[:, None] - rates * middles
    floor = _NOISE_FLOOR * np.maximum.accumulate(used)[starts - 1]
    apart = (used - bases[:, :, None] - rates[:, :, None] * x) * inside[:, None, :]
    errors = (apart**2).sum(axis=2) + (floor**2 * size)[:, None]
    freedom = np.maximum(size - 2, 1)[:, None]
    weights = (errors / errors.min(axis=1, keepdims=True)) ** (-0.5 * freedom)
    weights = (weights / weights.sum(axis=1, keepdims=True))[:, :, None]
    noise = errors / freedom
    recent = starts[:, None] + np.arange(_RECENT)
    there = np.take_along_axis(x, recent[:, None, :], axis=2)
    means = bases[:, :, None] + rates[:, :, None] * there
    variances = (there - middles[:, :, None]) ** 2 * (noise / square)[:, :, None]
    variances = variances + (noise * (1 + 1 / size[:, None]))[:, :, None]
    mean = (weights * means).sum(axis=1)
    spread = np.sqrt((weights * (variances + (means - mean[:, None, :]) ** 2)).sum(axis=1))
    last, sure = used[starts - 1][:, None], np.array([[student_95(max(int(at) - 3, 3))] for at in starts])
    expected = np.maximum(mean, last)
    upper = np.maximum.accumulate(np.maximum(expected + sure * spread, last), axis=1)
    sd = np.maximum((upper - expected) / sure, _NOISE_FLOOR * used[starts][:, None])
    away = (used[recent] - expected) / sd
    return np.asarray(np.all(away[:, -3:] > _CHANGE_SDS, axis=1))


def _fit(n: FloatArray, used: FloatArray, changed: bool) -> Growth:
    """Fit all exponents at once: a line in n^h each, its rate held at 0 or above."""
    exponents = np.array(EXPONENTS)
    # In units of the last n, so that n^h stays near 1 and the normal equations stay well scaled.
    unit = max(float(n[-1]), 1.0)
    x = (n / unit)[None, :] ** exponents[:, None]
    middle = x.mean(axis=1)
    centred = x - middle[:, None]
    square = np.maximum((centred**2).sum(axis=1), 1e-300)
    rates = np.maximum(centred @ used / square, 0.0)
    bases = used.mean() - rates * middle
    floor = _NOISE_FLOOR * float(used.max())
    errors = ((used - bases[:, None] - rates[:, None] * x) ** 2).sum(axis=1) + floor**2 * len(n)
    freedom = max(len(n) - 2, 1)
    weights = (errors / errors.min()) ** (-0.5 * freedom)
    noise = np.sqrt(errors / freedom)
    return Growth(
        exponents,
        weights / weights.sum(),
        bases,
        rates,
        middle,
        noise**2 / square,
        noise**2 * (1 + 1 / len(n)),
        unit,
        float(n[-1]),
        float(used[-1]),
        len(n),
        changed,
    )
