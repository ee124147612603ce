"""Which configuration to measure next: the one that shrinks the mean predictive variance over the plan space most.

Fed by the fit so far and the candidates, feeds `rover fit --choose` and cold starts. I-optimal, because D-optimal probes sit
in the corners, where the form is wrong (`algorithms.md §1` [ours]: 7.7 % against 9.3 % on seq2seq).

The variance has two parts: the coefficients' (through the terms' shares of an iteration) and the process on the residual;
one probe at x changes the covariance C of all candidates by -C[:, x] C[x, :] / (C[x, x] + noise^2).
"""

from __future__ import annotations

import numpy as np

from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.residual import matern
from rover_bus.brain.models.samples import Configurations, FloatArray, IntArray, Observations
from rover_bus.brain.models.statistics import Statistics, fit_line
from rover_bus.brain.models.throughput import LEAST_CONFIGURATIONS

# Vague on purpose: the design must not stake all on the form, nor on one noisy probe.
_AMPLITUDE, _LENGTH, _NOISE = 0.15, 1.0, 0.1
_LOG_COEFFICIENT_SD = 2.0
# No term is ruled out by a few samples: every share stays open at least this much.
_LEAST_SHARE = 0.02
_MOST_CANDIDATES = 2000


def next_probe(
    candidates: Configurations,
    form: Form,
    measured: Observations | None = None,
    cost: FloatArray | None = None,
) -> int:
    """Return the index of the candidate to measure next, never one already measured while others remain.

    `cost` (n,) above 0 makes dear probes earn their price: variance removed a unit of cost.
    """
    at = measured.configurations if measured is not None else candidates.take([])
    pool = _pool(len(candidates))
    covariance = _covariance(candidates.take(pool), at, form, measured)
    inside = slice(0, len(pool))
    gain = (covariance[inside, inside] ** 2).sum(axis=0) / (np.diagonal(covariance)[inside] + _NOISE**2)
    if cost is not None:
        gain = gain / cost[pool]
    fresh = ~_already(candidates.take(pool), at)
    return int(pool[np.argmax(np.where(fresh, gain, -1.0) if fresh.any() else gain)])


def _covariance(
    candidates: Configurations, at: Configurations, form: Form, measured: Observations | None
) -> FloatArray:
    """Posterior covariance of log seconds over the candidates, given probes at `at`."""
    both = Configurations(*(np.r_[a, b] for a, b in zip(candidates.columns(), at.columns(), strict=True)))
    shares = _shares(form.design(both), form, measured)
    points = both.logs() / _LENGTH
    prior = _AMPLITUDE**2 * matern(points, points) + _LOG_COEFFICIENT_SD**2 * shares @ shares.T
    n = len(candidates)
    if not len(at):
        return prior
    cross = prior[:n, n:]
    probes = prior[n:, n:] + _NOISE**2 * np.eye(len(at))
    return np.asarray(prior[:n, :n] - cross @ np.linalg.solve(probes, cross.T))


def _shares(design: FloatArray, form: Form, measured: Observations | None) -> FloatArray:
    """Each term's share of an iteration at every row: d log T / d log c, from the fit or, before one, all equal."""
    coefficients = 1.0 / np.maximum(design.mean(axis=0), 1e-300)  # a term that no candidate has is 0
    if measured is not None and measured.configurations.distinct() >= LEAST_CONFIGURATIONS:
        at = measured.configurations
        rows, seconds = form.design(at), form.seconds(at, measured.throughput)
        line = fit_line(Statistics.of(rows, seconds))
        least = _LEAST_SHARE / np.maximum(np.sqrt(np.mean((rows / seconds[:, None]) ** 2, axis=0)), 1e-300)
        coefficients = np.maximum(getattr(line, "coefficients", least), least)
    terms = design * coefficients
    return np.asarray(terms / terms.sum(axis=1, keepdims=True))


def _pool(n: int) -> IntArray:
    """A plan space too large for a covariance matrix is thinned evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_CANDIDATES)).astype(np.int64))


def _already(candidates: Configurations, at: Configurations) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    seen = {tuple(row) for row in np.stack(at.columns(), axis=1)}
    return np.array([tuple(row) in seen for row in np.stack(candidates.columns(), axis=1)], dtype=np.bool_)
