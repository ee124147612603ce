"""What members really use of their cores: a bound on throughput that no form knows, and the size at which a container saturates.

Fed by observations with the cores that members used meanwhile (`profile.host.v1`), feeds decisions. Apart, because the forms know
cores only as given: a synchronous form says nothing of the servers' and lets a worker's cores help for ever. Two laws mend that:

    utilisation   throughput <= w*lw / kw  and  <= p*lp / ks     k: core-seconds a sample takes from all workers, all servers
    saturation    a member that used u < lw cores is not faster with more: the form is fitted on min(lw/u, 1), min(lp/u, 1)

k and u change with the counts (more workers wait more and spin more), so both are power laws in w and p, shrunk towards constants.
The first law always holds (it is queueing theory's). Whether the second does is for measurements to say: a worker may use few
cores on average and all of them in bursts. Both fits are cross-validated and the better one predicts [ours].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.selection import cross_validated_error
from rover_bus.brain.models.throughput import (
    LEAST_CONFIGURATIONS,
    Prediction,
    ThroughputModel,
    fit_throughput,
)

# A member that uses this share of its cores is held back by them: how many it would use is not known.
HELD_BACK = 0.85
_EXPONENT_SD = 0.4
_NOISE = 0.1
_MOST_COMPARED = 24


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """scale * w^a * p^b, fitted in logs with exponents shrunk towards 0. `logs` (3,): log scale, a, b."""

    logs: FloatArray

    @classmethod
    def fit(cls, at: Configurations, values: FloatArray) -> PowerLaw | None:
        """Fit values (n,) above 0; None without any."""
        if not len(values):
            return None
        rows, y = _rows(at), np.log(values)
        prior = np.diag([1e-6, _EXPONENT_SD**-2, _EXPONENT_SD**-2]) * _NOISE**2
        # Exponents bend around the middle of what was measured, not around one worker and one server.
        middle = np.array([0.0, *rows[:, 1:].mean(axis=0)])
        moved = rows - middle
        a, b, c = np.linalg.solve(moved.T @ moved + prior, moved.T @ y)
        return cls(np.array([a - b * middle[1] - c * middle[2], b, c]))

    def __call__(self, at: Configurations) -> FloatArray:
        """Values at configurations (n,)."""
        return np.asarray(np.exp(_rows(at) @ self.logs))


@dataclass(frozen=True, eq=False)
class CoreUse:
    """One role's use: `a_sample` core-seconds a sample takes from all its members, `free` cores that a member uses which is not
    held back by its container. None: not measured."""

    a_sample: PowerLaw | None = None
    free: PowerLaw | None = None


@dataclass(frozen=True, eq=False)
class CoreUses:
    """Both roles' use."""

    workers: CoreUse = CoreUse()
    servers: CoreUse = CoreUse()

    def limit(self, at: Configurations) -> FloatArray:
        """Samples a second that the cores of a configuration can do at most (n,); inf where nothing is known."""
        most = np.full(len(at), np.inf)
        for use, cores in (
            (self.workers, at.workers * at.worker_cores),
            (self.servers, at.ps * at.ps_cores),
        ):
            if use.a_sample is not None:
                most = np.minimum(most, cores / use.a_sample(at))
        return most

    def saturated(self, at: Configurations) -> Configurations:
        """The same configurations with cores as shares of what their members would use, 1 at most."""
        shares = [
            np.ones(len(at)) if use.free is None else np.minimum(cores / use.free(at), 1.0)
            for use, cores in ((self.workers, at.worker_cores), (self.servers, at.ps_cores))
        ]
        return Configurations(at.workers, at.ps, shares[0], shares[1], at.batch_size)


@dataclass(frozen=True, eq=False)
class CoreBoundModel:
    """A fitted form under the bound of the cores. `saturates`: the form was fitted on the cores that members use."""

    compute: ThroughputModel
    uses: CoreUses
    saturates: bool

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second: the form's, cut to what the cores can do."""
        said = self.compute.predict(self.uses.saturated(at) if self.saturates else at)
        limit = self.uses.limit(at)
        return Prediction(
            np.minimum(said.throughput, limit),
            np.minimum(said.low_90, limit),
            np.minimum(said.high_90, limit),
            said.guess,
        )


def measure_core_use(
    observations: Observations, worker_cores_used: ArrayLike, server_cores_used: ArrayLike
) -> CoreUses:
    """Core use from what one worker and one server used on average at each observation (n,), in cores; 0: not measured."""
    at, speed = observations.configurations, observations.throughput
    worker, server = (np.asarray(used, dtype=np.float64) for used in (worker_cores_used, server_cores_used))
    free = _free(worker, at.worker_cores) & _free(server, at.ps_cores)
    return CoreUses(
        CoreUse(_fit(at, at.workers * worker / speed, worker > 0), _fit(at, worker, free)),
        CoreUse(_fit(at, at.ps * server / speed, server > 0), _fit(at, server, free)),
    )


def fit_core_bound(observations: Observations, uses: CoreUses, form: Form) -> CoreBoundModel | NotEnough:
    """Fit a form on cores as given and on cores as used; keep the one that predicts left-out configurations better."""
    given = fit_throughput(observations, form)
    if isinstance(given, NotEnough):
        return given
    cut = Observations(uses.saturated(observations.configurations), observations.throughput)
    known = uses.workers.free is not None and cut.configurations.distinct() >= LEAST_CONFIGURATIONS
    if not known or not _is_better(cut, observations, form, uses.limit(observations.configurations)):
        return CoreBoundModel(given, uses, False)
    used = fit_throughput(cut, form)
    return (
        CoreBoundModel(given, uses, False)
        if isinstance(used, NotEnough)
        else CoreBoundModel(used, uses, True)
    )


def _rows(at: Configurations) -> FloatArray:
    return np.stack([np.ones(len(at)), np.log(at.workers), np.log(at.ps)], axis=1)


def _fit(at: Configurations, values: FloatArray, which: NDArray[np.bool_]) -> PowerLaw | None:
    return PowerLaw.fit(at.take(which), values[which])


def _free(used: FloatArray, given: FloatArray) -> NDArray[np.bool_]:
    return np.asarray((used > 0) & (used < HELD_BACK * given))


def _is_better(cut: Observations, given: Observations, form: Form, most: FloatArray) -> bool:
    """Whether cores as used explain the last measurements better than cores as given."""
    last = np.arange(len(given))[-_MOST_COMPARED:]
    errors = [cross_validated_error(seen.take(last), form, most[last]) for seen in (cut, given)]
    return errors[0] < errors[1]
