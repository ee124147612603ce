"""Raw dense values -> what a model can digest: a signed logarithm, then zero mean and unit deviation.

Fed by `numbers`, feeds `columns`. It is apart because the same scaling must serve the training and the evaluation file: it is
taken once from a fixed sample of the training file (the same in every worker), and handed to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.events.job import Features

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Scaling:
    """z = (sign(x) log(1 + |x|) - mean) / deviation, column by column: float64[D] each. A missing value becomes 0, the mean.

    The logarithm is for counts with long tails (Criteo); over a narrow range, such as years, it is as good as linear.
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, features: Features) -> Scaling:
        """Return the scaling that was registered with a data set."""
        return cls(np.array(features.means, np.float64), np.array(features.deviations, np.float64))

    @property
    def features(self) -> Features:
        """What is registered of it: every bit of it, as a float64 is written in full."""
        return Features(means=self.mean.tolist(), deviations=self.deviation.tolist())

    @classmethod
    def fit(cls, values: Floats, missing: Flags) -> Scaling:
        """Take mean and deviation from a sample [n, D], leaving out what is missing; a constant column keeps deviation 1."""
        logs = np.where(missing, 0.0, _signed_log(values))
        counts = np.maximum((~missing).sum(0), 1)
        mean = logs.sum(0) / counts
        squares = np.where(missing, 0.0, (logs - mean) ** 2).sum(0) / counts
        return cls(mean, np.where(squares > 1e-12, np.sqrt(squares), 1.0))

    def apply(self, values: Floats, missing: Flags) -> NDArray[np.float32]:
        """Scale [n, D] values; 0 where missing."""
        scaled = (_signed_log(values) - self.mean) / self.deviation
        scaled[missing] = 0.0
        return scaled.astype(np.float32)


def _signed_log(values: Floats) -> Floats:
    logs: Floats = np.copysign(np.log1p(np.abs(values)), values)
    return logs
