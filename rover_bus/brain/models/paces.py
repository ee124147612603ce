"""How runs of one family differ: each has a pace of its own, a factor on what the family's model says.

Fed by the residuals of one fit to samples of all runs, feeds a second fit to samples that are levelled, and the intervals of what
is then predicted. Apart, because it knows runs and no sizes. A random-effects model in logs: a run's pace is the mean of its
residuals, shrunk towards 0 by what the runs were seen to differ by; little data leaves a prior of 5 % [ours; recurring production
jobs drift by some percent a run, `algorithms.md §4`].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rover_bus.brain.models.samples import FloatArray

PRIOR_SD, PRIOR_RUNS = 0.05, 3.0  # of the drift between runs
LEAST_NOISE = 0.03  # of one sample, in logs


@dataclass(frozen=True)
class Paces:
    """Log pace and its standard deviation by run; `drift` is the standard deviation of a run that was not seen yet."""

    drift: float = 0.0
    by_run: dict[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, run: str) -> tuple[float, float]:
        """Return a run's log pace and how sure it is."""
        return self.by_run.get(run, (0.0, self.drift))

    def level(self, runs: Sequence[str], throughput: Sequence[float]) -> FloatArray:
        """Return throughput as a run of no pace of its own would have had it (n,)."""
        paces = np.array([self.of(run)[0] for run in runs])
        return np.asarray(np.asarray(throughput) * np.exp(-paces))


def measure_paces(runs: Sequence[str], residuals: FloatArray) -> Paces:
    """Estimate the paces of runs from log residuals (n,) of one fit to all of them. `runs` names the run of each."""
    named = list(dict.fromkeys(runs))
    at = np.array([named.index(run) for run in runs])
    count = np.bincount(at).astype(np.float64)
    mean = np.bincount(at, weights=residuals) / count
    within = residuals - mean[at]
    noise = max(float(np.sum(within**2)) / max(len(runs) - len(named), 1), LEAST_NOISE**2)
    seen = np.maximum(mean**2 - noise / count, 0.0)  # what a run's mean owes to its own pace
    drift = (PRIOR_RUNS * PRIOR_SD**2 + float(np.sum(seen))) / (PRIOR_RUNS + len(named))
    shrink = count * drift / (count * drift + noise)
    sds = np.sqrt(drift * noise / (count * drift + noise))
    by_run = {run: (float(pace), float(sd)) for run, pace, sd in zip(named, shrink * mean, sds, strict=True)}
    return Paces(float(np.sqrt(drift)), by_run)
