"""The throughput model of one job: fit samples, predict any configuration with a 90 % interval, or say "not enough".

Fed by observations, feeds probing, decisions and `rover fit`. Two depths of one model: `statistics.fit_line` is the cheap
refit of every round; `ThroughputModel` adds the process on the residual for what a person reads and for choosing probes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.residual import Residual, fit_residual
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.statistics import Line, Statistics, fit_line

LEAST_CONFIGURATIONS = 3
# The process costs O(n^3): longer histories are thinned evenly to this many rows.
_MOST_ROWS = 400
_Z_95 = 1.6448536269514722
# Half-width in log units above which a prediction is a guess: a factor of two either way.
GUESS = math.log(2.0)
# Deviation of log throughput an e-fold beyond what was measured. On the measured tables, trained to 6 workers and asked for up to
# 20, 90 % intervals cover 0.48 to 0.85 without it, 0.79 to 0.97 at 0.3, 0.86 to 1.00 at 0.4 [ours; data].
BEYOND = 0.35
# A form this far off (log units) cannot fit: a cliff, a mode that is not its own.
MISFIT = 0.25


@dataclass(frozen=True, eq=False)
class Prediction:
    """Throughput in samples a second, shape (n,) each: median, and the 90 % interval of a new measurement.

    `guess` marks rows whose interval is wider than a factor of two either way: not to be acted upon.
    """

    throughput: FloatArray
    low_90: FloatArray
    high_90: FloatArray
    guess: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ThroughputModel:
    """One fitted form, and what it was fitted to."""

    form: Form
    residual: Residual
    used: Observations

    @property
    def measured(self) -> Configurations:
        """Where it was measured."""
        return self.used.configurations

    @property
    def samples(self) -> int:
        """How many measurements it was fitted to."""
        return len(self.used)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """In words, where it should not be believed: for people, so that what runs at each window does not work it out."""
        return _warnings(self.used, self.form, self.residual)

    def predict(self, at: Configurations, beyond: float = 0.0) -> Prediction:
        """Predict each configuration. Intervals are Student's, with three degrees of freedom spent on the fit.

        `beyond`: how much they grow with the distance from what was measured, where the form itself is a guess (BEYOND). A
        caller that approaches a size in bounded steps and measures each, as the Brain does, needs no such allowance.
        """
        mean, variance = self.residual.log_seconds(self.form.design(at), at.logs())
        spread = np.sqrt(variance + (beyond * self.beyond(at)) ** 2)
        half = student_95(max(self.samples - 3, 3)) * spread
        median = self.form.throughput(at, np.exp(mean))
        return Prediction(median, median * np.exp(-half), median * np.exp(half), half > GUESS)

    def sketch(self, at: Configurations) -> FloatArray:
        """Samples a second under the likeliest setting of the residual alone: a fraction of the cost."""
        return self.form.throughput(at, np.exp(self.residual.sketch(self.form.design(at), at.logs())))

    def beyond(self, at: Configurations) -> FloatArray:
        """Log distance of each configuration outside the range of each measured resource, summed; 0 inside."""
        return log_distance(self.measured, at)

    def coefficients(self) -> FloatArray:
        """Return the coefficients of the form's terms, seconds an iteration a unit of each term (k,)."""
        return self.residual.coefficients()


def fit_throughput(observations: Observations, form: Form) -> ThroughputModel | NotEnough:
    """Fit one form to samples. Needs three different configurations; says so when there are fewer."""
    if (few := too_few(observations.configurations)) is not None:
        return few
    used = _thinned(observations)
    at = used.configurations
    design, seconds = form.design(at), form.seconds(at, used.throughput)
    return ThroughputModel(form, fit_residual(design, at.logs(), seconds), used)


def too_few(measured: Configurations) -> NotEnough | None:
    """Say what is missing where fewer than three different configurations were measured."""
    distinct = measured.distinct()
    if distinct >= LEAST_CONFIGURATIONS:
        return None
    return NotEnough(
        f"{distinct} different configurations measured; three are the least", LEAST_CONFIGURATIONS - distinct
    )


def log_distance(measured: Configurations, at: Configurations) -> FloatArray:
    """Log distance of each configuration outside the range of each measured resource, summed (n,); 0 inside."""
    known, asked = measured.logs(), at.logs()
    outside = np.maximum(asked - known.max(axis=0), known.min(axis=0) - asked)
    return np.asarray(np.maximum(outside, 0.0).sum(axis=1))


def student_95(freedom: float) -> float:
    """Return the 95 % quantile of Student's t (Cornish-Fisher to the third order; within 2 % from 3 degrees on)."""
    z = _Z_95
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def _thinned(observations: Observations) -> Observations:
    n = len(observations)
    if n <= _MOST_ROWS:
        return observations
    return observations.take(np.linspace(0, n - 1, _MOST_ROWS).astype(np.int64))


def _warnings(used: Observations, form: Form, residual: Residual) -> tuple[str, ...]:
    at = used.configurations
    line = fit_line(Statistics.of(form.design(at), form.seconds(at, used.throughput)))
    said: list[str] = []
    for name, column in (("workers", at.workers), ("ps", at.ps)):
        if np.ptp(column) == 0:
            said.append(
                f"{name} was never varied: do not trust predictions at other {name} than {column[0]:g}"
            )
    if isinstance(line, Line) and not line.identified:
        said.append(
            f"the samples cannot tell all terms apart (condition {line.condition:.0e}): trust only predictions near them"
        )
    if residual.misfit() > MISFIT:
        said.append(
            f"the form misses by some {100 * residual.misfit():.0f} %: a cliff, or another mode; measure where you will run"
        )
    if residual.noise() > 0.1:
        said.append(f"measurements scatter by {100 * residual.noise():.0f} %: average longer windows")
    return tuple(said)
