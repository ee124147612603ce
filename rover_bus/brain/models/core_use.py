"""What members really use of their cores: a bound on throughput that no form knows, and the size at which a container saturates.

Fed by observations with the cores that members used meanwhile (`profile.host.v1`), feeds decisions. Apart, because the forms know
cores only as given: a synchronous form says nothing of the servers' and lets a worker's cores help for ever. Two laws mend that:

    utilisation   throughput <= w*lw / kw  and  <= p*lp / ks     k: core-seconds a sample takes from all workers, all servers
    saturation    throughput = full(w, p) * min(1, lw/uw, lp/up)    u: cores that a member uses which nothing holds back

k and u change with the counts (more workers wait more and spin more), so both are power laws in w and p, shrunk towards constants.
The first law always holds (it is queueing theory's). Whether the second does is for measurements to say: a worker may use few
cores on average and all of them in bursts. Both fits are cross-validated and the better one predicts. Measurements that the
cores held back say nothing of a form, only of the bound: the form is fitted on the others where these suffice [ours].
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
        scale, by_workers, by_servers = self.logs
        logs = at.logs()
        return np.asarray(np.exp(scale + by_workers * logs[:, 0] + by_servers * logs[:, 1]))


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

    def pace(self, at: Configurations) -> FloatArray:
        """What containers leave of the full speed of synchronous members (n,), in (0, 1]."""
        share = np.ones(len(at))
        for use, cores in ((self.workers, at.worker_cores), (self.servers, at.ps_cores)):
            if use.free is not None:
                share = np.minimum(share, cores / use.free(at))
        return share


UNKNOWN_USE = CoreUses()


@dataclass(frozen=True, eq=False)
class CoreBoundModel:
    """A fitted form under the bound of the cores. `saturates`: the form is of counts alone, and containers hold back or do not."""

    compute: ThroughputModel
    uses: CoreUses
    saturates: bool

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second: the form's, cut to what the cores can do."""
        said, pace = self.compute.predict(_counts(at) if self.saturates else at), np.ones(len(at))
        if self.saturates:
            pace = self.uses.pace(at)
        limit = self.uses.limit(at)
        low, middle, high = (
            np.minimum(x * pace, limit) for x in (said.low_90, said.throughput, said.high_90)
        )
        return Prediction(middle, low, high, said.guess)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        said = self.compute.sketch(_counts(at) if self.saturates else at)
        pace = self.uses.pace(at) if self.saturates else 1.0
        return np.minimum(said * pace, self.uses.limit(at))


def measure_core_use(
    observations: Observations, worker_cores_used: ArrayLike, server_cores_used: ArrayLike
) -> CoreUses:
    """Core use from what one worker and one server used on average at each observation (n,), in cores; 0: not measured."""
    at, speed = observations.configurations, observations.throughput
    worker, server = (np.asarray(used, dtype=np.float64) for used in (worker_cores_used, server_cores_used))
    free = ~(_held(worker, at.worker_cores) | _held(server, at.ps_cores)) & (worker > 0) & (server > 0)
    return CoreUses(
        CoreUse(_fit(at, at.workers * worker / speed, worker > 0), _fit(at, worker, free)),
        CoreUse(_fit(at, at.ps * server / speed, server > 0), _fit(at, server, free)),
    )


def fit_core_bound(observations: Observations, uses: CoreUses, form: Form) -> CoreBoundModel | NotEnough:
    """Fit a form on cores as given, and on counts alone with containers that saturate; keep what predicts left-out rows better."""
    at = observations.configurations
    limit = uses.limit(at)
    free = observations.take(observations.throughput < HELD_BACK * limit)
    shown = free if free.configurations.distinct() >= LEAST_CONFIGURATIONS else observations
    given = fit_throughput(shown, form)
    counts = Observations(_counts(at), observations.throughput / uses.pace(at))
    known = uses.workers.free is not None and counts.configurations.distinct() >= LEAST_CONFIGURATIONS
    saturating = fit_throughput(counts, form) if known else None
    if isinstance(given, NotEnough):
        return given
    if isinstance(saturating, ThroughputModel) and _saturates(observations, counts, uses, form):
        return CoreBoundModel(saturating, uses, True)
    return CoreBoundModel(given, uses, False)


def _saturates(given: Observations, counts: Observations, uses: CoreUses, form: Form) -> bool:
    """Whether saturating containers explain the last measurements better than cores as given."""
    last = np.arange(len(given))[-_MOST_COMPARED:]
    at = given.configurations.take(last)
    limit = uses.limit(at)
    errors = [
        cross_validated_error(seen.take(last), form, most)
        for seen, most in ((counts, limit / uses.pace(at)), (given, limit))
    ]
    return errors[0] < errors[1]


def _counts(at: Configurations) -> Configurations:
    ones = np.ones(len(at))
    return Configurations(at.workers, at.ps, ones, ones, at.batch_size)


def _rows(at: Configurations) -> FloatArray:
    return np.stack([np.ones(len(at)), np.log(at.workers), np.log(at.ps)], axis=1)


def _fit(at: Configurations, values: FloatArray, which: NDArray[np.bool_]) -> PowerLaw | None:
    return PowerLaw.fit(at.take(which), values[which])


def _held(used: FloatArray, given: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(used >= HELD_BACK * given)
