"""Sufficient statistics of a regression: what a job's history weighs, in one small matrix.

Fed one sample at a time, feeds `fit_line`; kept in the Brain's own log, so that a restart replays no profiles (P22).
Rows are weighted by 1/T: the squared error is relative, close to RMSLE (`algorithms.md §1` [ours]); old samples are
forgotten exponentially. A refit therefore costs O(k^2) to O(k^3), never O(samples).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rover_bus.brain.models.nnls import solve_nonnegative
from rover_bus.brain.models.samples import FloatArray, NotEnough

# A priori one term explains about this share of an iteration: a weak pull to 0 that keeps collinear columns finite.
PRIOR_SHARE = 0.3
# The relative noise that this prior is weighed against.
PRIOR_NOISE = 0.03
# Above this condition number (correlation form, prior included) the columns do not tell the terms apart.
CONDITION_LIMIT = 1e4
_NOISE_FLOOR = 0.005


@dataclass(frozen=True, eq=False)
class Statistics:
    """Normal equations of rows x/T against 1: `gram` (k, k), `moment` (k,), `weight` the effective number of samples."""

    gram: FloatArray
    moment: FloatArray
    weight: float

    @classmethod
    def empty(cls, terms: int) -> Statistics:
        """No sample yet."""
        return cls(np.zeros((terms, terms)), np.zeros(terms), 0.0)

    @classmethod
    def of(cls, design: FloatArray, seconds: FloatArray) -> Statistics:
        """Statistics of many rows at once, unforgotten: design (n, k), seconds (n,)."""
        rows = design / seconds[:, None]
        return cls(rows.T @ rows, rows.sum(axis=0), float(len(seconds)))

    def observe(self, row: FloatArray, seconds: float, forgetting: float = 1.0) -> Statistics:
        """Add one sample: its design row (k,) and its seconds an iteration. `forgetting` in (0, 1] ages what was there."""
        x = row / seconds
        return Statistics(
            forgetting * self.gram + np.outer(x, x),
            forgetting * self.moment + x,
            forgetting * self.weight + 1.0,
        )


@dataclass(frozen=True, eq=False)
class Line:
    """A fitted sum of terms. Relative errors throughout.

    `coefficients` (k,) >= 0 in seconds a unit of each term; `covariance` (k, k) their posterior covariance; `noise` the
    relative residual standard deviation; `condition` of the scaled normal equations; `weight` effective samples.
    """

    coefficients: FloatArray
    covariance: FloatArray
    noise: float
    condition: float
    weight: float

    @property
    def identified(self) -> bool:
        """Whether the samples tell the terms apart; if not, only predictions near them may be believed."""
        return self.condition <= CONDITION_LIMIT

    def seconds(self, design: FloatArray) -> FloatArray:
        """Seconds an iteration, shape (n,)."""
        return np.asarray(design @ self.coefficients)

    def spread(self, design: FloatArray) -> FloatArray:
        """Relative standard deviation of a new measurement at each row: coefficients' uncertainty and noise."""
        seconds = np.maximum(self.seconds(design), 1e-300)
        variance = np.einsum("ij,jk,ik->i", design, self.covariance, design) / seconds**2
        return np.asarray(np.sqrt(variance + self.noise**2))


def fit_line(statistics: Statistics) -> Line | NotEnough:
    """Fit by non-negative least squares from the statistics alone (`algorithms.md §1` [paper: NNLS]).

    Needs a weight of at least 3. Costs some 0.1 ms whatever the history.
    """
    if statistics.weight < 3 - 1e-9:
        have = math.floor(statistics.weight + 1e-9)
        return NotEnough(f"{have} samples; three different configurations are the least", 3 - have)
    scale = np.sqrt(np.diagonal(statistics.gram) / statistics.weight)
    scale = np.where(scale > 0, scale, 1.0)
    gram = statistics.gram / np.outer(scale, scale)
    gram = gram + np.eye(len(scale)) * (PRIOR_NOISE / PRIOR_SHARE) ** 2
    shares = solve_nonnegative(gram, statistics.moment / scale)
    active = shares > 0
    misfit = statistics.weight - 2 * shares @ (statistics.moment / scale) + shares @ gram @ shares
    freedom = max(statistics.weight - active.sum(), 1.0)
    noise = max(math.sqrt(max(misfit, 0.0) / freedom), _NOISE_FLOOR)
    eigenvalues = np.linalg.eigvalsh(statistics.gram / np.outer(scale, scale) + np.eye(len(scale)) * 1e-9)
    covariance = np.zeros_like(gram)
    on = np.flatnonzero(active)
    covariance[np.ix_(on, on)] = noise**2 * np.linalg.inv(gram[np.ix_(on, on)])
    return Line(
        shares / scale,
        covariance / np.outer(scale, scale),
        noise,
        float(eigenvalues[-1] / eigenvalues[0]),
        statistics.weight,
    )
