"""A job is as slow as its slower half: throughput = min(compute, ingest), ingest = w * rows a second a worker reads.

Fed by observations with the share of time that workers waited for input, feeds decisions. Apart, because the form knows
nothing of storage: without this term an input-bound job looks like a flat curve, and more cores like a good idea
(`algorithms.md §1` [ours]).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rover_bus.brain.models.core_use import UNKNOWN_USE, CoreBoundModel, CoreUses, fit_core_bound
from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.throughput import Prediction, student_95

# Workers that wait for input this share of their time are limited by it: the measurement is of ingest.
INPUT_BOUND_SHARE = 0.3
REFUTES = 1.1  # times as fast a worker has to have read: noise does not make that


@dataclass(frozen=True)
class Ingest:
    """Samples a second that one worker can read; `spread` is the relative standard deviation over the measurements."""

    samples_per_worker_s: float
    spread: float
    samples: int

    def throughput(self, at: Configurations) -> FloatArray:
        """Samples a second that all workers together can read."""
        return at.workers * self.samples_per_worker_s


@dataclass(frozen=True, eq=False)
class BoundedModel:
    """Both halves. A half that was never the limit is unknown (None): it was never slower than what was measured.

    `uses`: what members use of their cores bounds the whole, where cores are limited and their use was measured; `compute` has the
    same ones.
    """

    compute: CoreBoundModel | None
    ingest: Ingest | None
    uses: CoreUses = UNKNOWN_USE

    def predict(self, at: Configurations) -> Prediction:
        """Predict min(compute, ingest) with the interval of the half that limits."""
        if self.compute is None:
            said, most = self._read(at), self.uses.limit(at)
            middle, low, high = (np.minimum(x, most) for x in (said.throughput, said.low_90, said.high_90))
            return Prediction(middle, low, high, said.guess)
        computed = self.compute.predict(at)  # within what its cores can do, and so is what is less
        if self.ingest is None:
            return computed
        read = self._read(at)
        return Prediction(
            np.minimum(computed.throughput, read.throughput),
            np.minimum(computed.low_90, read.low_90),
            np.minimum(computed.high_90, read.high_90),
            np.where(read.throughput < computed.throughput, read.guess, computed.guess),
        )

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        most = self.uses.limit(at) if self.compute is None else self.compute.sketch(at)
        return most if self.ingest is None else np.minimum(most, self.ingest.throughput(at))

    def input_bound(self, at: Configurations) -> NDArray[np.bool_]:
        """Say for each configuration whether reading limits it."""
        if self.ingest is None or self.compute is None:
            return np.full(len(at), self.ingest is not None)
        return np.asarray(self.ingest.throughput(at) < self.compute.predict(at).throughput)

    def _read(self, at: Configurations) -> Prediction:
        assert self.ingest is not None
        median = self.ingest.throughput(at)
        ratio = np.exp(student_95(max(self.ingest.samples - 1, 3)) * self.ingest.spread)
        return Prediction(median, median / ratio, median * ratio, np.zeros(len(at), dtype=np.bool_))


def fit_bounded(
    observations: Observations,
    input_wait_share: ArrayLike,
    form: Form,
    uses: CoreUses = UNKNOWN_USE,
    implied: int = 0,
) -> BoundedModel | NotEnough:
    """Fit both halves: rows whose workers waited for input tell ingest, the others compute (`fit_core_bound`).

    `input_wait_share` (n,) in 0..1: the share of workers' time that went into waiting for input. `implied`: so many of the last
    rows were not measured, and say nothing of reading.
    """
    waited = np.asarray(input_wait_share, dtype=np.float64) >= INPUT_BOUND_SHARE
    bound = waited & ~_refuted(observations, waited, len(observations) - implied)
    ingest = fit_ingest(observations.take(bound)) if bound.any() else None
    if bound.all() and ingest is not None:
        return BoundedModel(None, ingest, uses)
    compute = fit_core_bound(observations.take(~waited), uses, form)
    if isinstance(compute, NotEnough):
        # Compute was at least as fast as what reading let through: all rows together err on the safe side.
        compute = fit_core_bound(observations, uses, form)
    return compute if isinstance(compute, NotEnough) else BoundedModel(compute, ingest, uses)


def _refuted(observations: Observations, waited: NDArray[np.bool_], measured: int) -> NDArray[np.bool_]:
    """Which rows (n,) say that workers cannot read as fast as others did without waiting, as many of them or more; the first
    `measured` rows are what was seen, and the others, which are implied, have read nothing.

    Storage that is slow for a while, or for one run, is no limit of the family.
    """
    workers = observations.configurations.workers
    rates = observations.throughput / workers
    faster = rates[None, :] > REFUTES * rates[:, None]
    refutes = ~waited & (np.arange(len(observations)) < measured)
    return np.asarray((faster & refutes[None, :] & (workers[None, :] >= workers[:, None])).any(axis=1))


def fit_ingest(input_bound: Observations) -> Ingest:
    """Rate a worker from input-bound observations: the median, robust against one slow disk."""
    rates = input_bound.throughput / input_bound.configurations.workers
    middle = float(np.median(rates))
    spread = float(1.4826 * np.median(np.abs(rates / middle - 1.0)))
    return Ingest(middle, max(spread, 0.03), len(rates))
