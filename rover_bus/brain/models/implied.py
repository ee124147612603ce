"""What one measured size implies of the sizes beside it, by what members use of their cores: a model from a job's first window.

Fed by the sizes of a family while too few were measured to tell the terms of a form apart; feeds the fit (`predicting`) with rows
that nothing measured. A member that keeps u of its L cores busy spends u/L of an iteration computing, and k times the cores make
that part k times shorter: the utilisation law, exact but for what is serial or waits in a queue (more cores then bring more than is
said). Of more workers no use tells: until their number was varied, twice as many are taken to bring half of the way to twice the
speed, in logs (Pollux assumes all of it until tried, `algorithms.md §7`) [ours; docs/design/0056].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.ingest import INPUT_BOUND_SHARE, BoundedModel
from rover_bus.brain.models.samples import Configurations, FloatArray, Observations
from rover_bus.brain.models.throughput import BEYOND, Prediction, log_distance

MORE = 2.0  # times the cores, or the workers, of the sizes that are implied
_MOST_BUSY = 0.98  # of an iteration: something is left that no core shortens
_TWICE_AS_MANY = 0.5  # power of the number of workers
_Z_95 = 1.645


@dataclass(frozen=True, eq=False)
class ImpliedModel:
    """A model that rests on implied sizes too: its intervals grow with the distance from what was measured."""

    fitted: BoundedModel
    measured: Configurations

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        said = self.fitted.predict(at)
        wider = np.exp(_Z_95 * BEYOND * log_distance(self.measured, self._no_fewer_cores(at)))
        return Prediction(said.throughput, said.low_90 / wider, said.high_90 * wider, said.guess)

    def _no_fewer_cores(self, at: Configurations) -> Configurations:
        """The configurations with the least cores that were measured where they have less: use says what these cost."""
        least = self.measured.worker_cores.min(), self.measured.ps_cores.min()
        cores = np.maximum(at.worker_cores, least[0]), np.maximum(at.ps_cores, least[1])
        return Configurations(at.workers, at.ps, *cores, at.batch_size)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        return self.fitted.sketch(at)


def imply(
    seen: Observations, uses: tuple[ArrayLike, ArrayLike], input_wait_share: ArrayLike, form: Form
) -> Observations:
    """Return the sizes that measured ones imply (n,): none of those whose workers wait for input, none where no use was measured.

    `uses`: cores that one worker and one server used at each size, 0 where that was not measured.
    """
    at, computes = seen.configurations, np.asarray(input_wait_share) < INPUT_BOUND_SHARE
    seconds, found = form.seconds(at, seen.throughput), list[Observations]()
    for axis, used in zip((2, 3), uses, strict=True):
        rows = np.flatnonzero(computes & (np.asarray(used) > 0))
        larger = _times(at.take(rows), axis)
        busy = np.minimum(np.asarray(used)[rows] / at.columns()[axis][rows], _MOST_BUSY)
        shorter = seconds[rows] * (1 - busy * (1 - 1 / MORE))
        found.append(Observations(larger, form.throughput(larger, shorter)))
    if any(map(len, found)) and np.ptp(at.workers) == 0 and computes[-1]:
        found.append(Observations(_times(at.take([-1]), 0), seen.throughput[-1:] * MORE**_TWICE_AS_MANY))
    return joined(found)


def joined(parts: list[Observations]) -> Observations:
    """All rows of several observations."""
    columns = zip(*(part.configurations.columns() for part in parts), strict=True)
    at = Configurations(*(np.concatenate(column) for column in columns))
    return Observations(at, np.concatenate([part.throughput for part in parts]))


def _times(at: Configurations, axis: int) -> Configurations:
    columns = list(at.columns())
    columns[axis] = columns[axis] * MORE
    return Configurations(*columns)
