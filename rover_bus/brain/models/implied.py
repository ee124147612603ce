"""What one measured size implies of the sizes beside it, by what members use of their cores: a model from a job's first window.

Fed by the sizes of a family while too few were measured to tell the terms of a form apart; feeds the fit (`predicting`) with rows
that nothing measured. A member that keeps u of its L cores busy spends u/L of an iteration computing, and k times the cores make
that part k times shorter: the utilisation law, exact but for what is serial or waits in a queue (more cores then bring more than is
said). Of more workers no use tells: until their number was varied, twice as many are taken to bring half of the way to twice the
speed, in logs (Pollux assumes all of it until tried, `algorithms.md §7`). Twice the servers compute as twice the cores would, and
shorten what neither role computes half of the way. Where several sizes were measured and none of them varied an axis, that axis
alone rests on what is implied [ours; docs/design/0056, 0058]. Where bursts were measured, cores need no implied sizes; counts need
them until three were measured (`imply_counts`, docs/design/0084).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.core_use import CoreUses
from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.ingest import INPUT_BOUND_SHARE, BoundedModel
from rover_bus.brain.models.samples import Configurations, FloatArray, Observations
from rover_bus.brain.models.throughput import BEYOND, Prediction, log_distance

MORE = 2.0  # times the cores, or the workers, of the sizes that are implied
_MOST_BUSY = 0.98  # of an iteration: something is left that no core shortens
HALF_WAY = 0.5  # in logs, from no effect to a full one: of what nothing tells
LEAST_COUNTS = 3  # pairs of counts that tell the terms of a form apart, where cores are none of them
FREE_CORES = np.full(1, 1e6)  # that hold nothing back
CORES = (2, 3)  # of a worker, of a server, among the columns of a configuration
_Z_95 = 1.645


@dataclass(frozen=True, eq=False)
class ImpliedModel:
    """A model that rests on implied sizes too: its intervals grow with the distance from what was measured, of a `young` one along
    all axes, else along those that were never varied."""

    fitted: BoundedModel
    measured: Configurations
    young: bool = True

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        said = self.fitted.predict(at)
        wider = np.exp(_Z_95 * BEYOND * log_distance(self.measured, self._in_doubt(at)))
        return Prediction(said.throughput, said.low_90 / wider, said.high_90 * wider, said.guess)

    def _in_doubt(self, at: Configurations) -> Configurations:
        """The configurations as far from what was measured as they are in doubt: fewer cores are not, use says what these cost."""
        columns = [
            asked if self.young or np.ptp(known) == 0 else np.clip(asked, known.min(), known.max())
            for asked, known in zip(at.columns(), self.measured.columns(), strict=True)
        ]
        for axis in CORES:
            columns[axis] = np.maximum(columns[axis], self.measured.columns()[axis].min())
        return Configurations(*columns)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        return self.fitted.sketch(at)


def imply(
    seen: Observations,
    uses: tuple[ArrayLike, ArrayLike],
    input_wait_share: ArrayLike,
    form: Form,
    young: bool = True,
) -> Observations:
    """Return the sizes that measured ones imply (n,): none of those whose workers wait for input, none where no use was measured.

    `uses`: cores that one worker and one server used at each size, 0 where that was not measured. `young`: few sizes were measured;
    else something is implied only of what none of them varied, of which they tell nothing either.
    """
    at, computes = seen.configurations, np.asarray(input_wait_share) < INPUT_BOUND_SHARE
    seconds, found = form.seconds(at, seen.throughput), list[Observations]()
    shown = [np.asarray(used) * computes > 0 for used in uses]
    busy = [
        np.minimum(np.asarray(used) / at.columns()[axis], _MOST_BUSY)
        for axis, used in zip(CORES, uses, strict=True)
    ]
    for axis, share, which in zip(CORES, busy, shown, strict=True):
        rows = np.flatnonzero(which & (young or np.ptp(at.columns()[axis]) == 0))
        larger, shorter = _times(at.take(rows), axis), seconds[rows] * (1 - share[rows] * (1 - 1 / MORE))
        found.append(Observations(larger, form.throughput(larger, shorter)))
    if np.any(shown) and computes[-1]:
        if np.ptp(at.workers) == 0:
            found.append(Observations(_times(at.take([-1]), 0), seen.throughput[-1:] * MORE**HALF_WAY))
        if np.ptp(at.ps) == 0 and not young:
            more, rest = _times(at.take([-1]), 1), max(1 - busy[0][-1] - busy[1][-1], 0.0)
            left = 1 - busy[1][-1] * (1 - 1 / MORE) - rest * (1 - MORE**-HALF_WAY)
            found.append(Observations(more, form.throughput(more, seconds[-1:] * left)))
    return joined(found)


def imply_counts(seen: Observations, uses: CoreUses, input_wait_share: ArrayLike) -> Observations:
    """Return what the last size whose workers computed implies of twice the workers and servers, with all the cores that they like
    (n,).

    Of a free iteration bursts of servers are shorter by as many more servers, and what neither role computes half of the way; of
    workers half of the way is taken altogether. None once three pairs of counts were measured, but along an axis that none varied;
    none where workers waited for input at every size, which reading alone then limits.
    """
    at, computed = seen.configurations, np.flatnonzero(np.asarray(input_wait_share) < INPUT_BOUND_SHARE)
    if not len(computed):
        return seen.take([])
    last = at.take(computed[-1:])
    few = len({*zip(at.workers.tolist(), at.ps.tolist(), strict=True)}) < LEAST_COUNTS
    full = seen.throughput[computed[-1:]] / uses.pace(last)
    free = Configurations(last.workers, last.ps, FREE_CORES, FREE_CORES, last.batch_size)
    computes, serves = (
        0.0 if use.bursts is None else float(use.bursts.shares(last)[0])
        for use in (uses.workers, uses.servers)
    )
    rest = max(1 - computes - serves, 0.0)
    of_workers = MORE**HALF_WAY
    of_servers = 1 / (1 - serves * (1 - 1 / MORE) - rest * (1 - MORE**-HALF_WAY))
    workers, servers = few or np.ptp(at.workers) == 0, few or np.ptp(at.ps) == 0
    found = list[Observations]()
    if workers:
        found.append(Observations(_times(free, 0), full * of_workers))
    if servers:
        found.append(Observations(_times(free, 1), full * of_servers))
    if workers and servers:
        found.append(Observations(_times(_times(free, 0), 1), full * of_workers * of_servers))
    return joined(found) if found else seen.take([])


def joined(parts: list[Observations]) -> Observations:
    """All rows of several observations."""
    columns = zip(*(part.configurations.columns() for part in parts), strict=True)
    at = Configurations(*(np.concatenate(column) for column in columns))
    return Observations(at, np.concatenate([part.throughput for part in parts]))


def _times(at: Configurations, axis: int) -> Configurations:
    columns = list(at.columns())
    columns[axis] = columns[axis] * MORE
    return Configurations(*columns)
