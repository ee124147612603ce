"""What members really use of their cores: a bound on throughput that no form knows, and the size at which a container saturates.

Fed by observations with the cores that members used meanwhile (`profile.host.v1`), feeds decisions. Apart, because the forms know
cores only as given: a synchronous form says nothing of the servers' and lets a worker's cores help for ever. Two laws mend that:

    utilisation   throughput <= w*lw / kw  and  <= p*lp / ks     k: core-seconds a sample takes from all workers, all servers
    saturation    throughput = full(w, p) * min(1, lw/uw, lp/up)    u: cores that a member uses which nothing holds back

k and u change with the counts (more workers wait more and spin more), so both are power laws in w and p, shrunk towards constants.
The first law always holds (it is queueing theory's). The second does where a member's use is even; whether it is, what the member
used in bursts says (`bursts`): where that was measured, its law takes the second one's place, and the form is of counts alone.
Where it was not, both fits are cross-validated and the better one predicts. Measurements that the cores held back say nothing of a
form, only of the bound: the form is fitted on the others where these suffice [ours].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rover_bus.brain.models.bursts import Burst, Bursts, measure_bursts
from rover_bus.brain.models.forms import SYNCHRONOUS, Form, counts_of, of_counts
from rover_bus.brain.models.power_law import PowerLaw
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.selection import cross_validated_error
from rover_bus.brain.models.throughput import (
    LEAST_CONFIGURATIONS,
    Prediction,
    ThroughputModel,
    fit_throughput,
    too_few,
)

# A member that uses this share of its cores is held back by them: how many it would use is not known.
HELD_BACK = 0.85
_MOST_COMPARED = 24


@dataclass(frozen=True, eq=False)
class CoreUse:
    """One role's use: `a_sample` core-seconds a sample takes from all its members, `free` cores that a member uses which is not
    held back by its container, `bursts` those it uses at once. None: not measured."""

    a_sample: PowerLaw | None = None
    free: PowerLaw | None = None
    bursts: Bursts | None = None


@dataclass(frozen=True, eq=False)
class CoreUses:
    """Both roles' use."""

    workers: CoreUse = CoreUse()
    servers: CoreUse = CoreUse()

    @property
    def bursts_known(self) -> bool:
        """Whether bursts tell what cores do, so that no size has to vary them."""
        return self.workers.bursts is not None or self.servers.bursts is not None

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
        roles = ((self.workers, at.worker_cores), (self.servers, at.ps_cores))
        if self.bursts_known:
            longer = np.zeros(len(at))
            for use, cores in roles:
                longer += 0.0 if use.bursts is None else use.bursts.stretch(at, cores)
            return np.asarray(1.0 / (1.0 + longer))
        share = np.ones(len(at))
        for use, cores in roles:
            if use.free is not None:
                share = np.minimum(share, cores / use.free(at))
        return share


UNKNOWN_USE = CoreUses()


@dataclass(frozen=True, eq=False)
class CoreBoundModel:
    """A fitted form under the bound of the cores. `saturates`: the form is of counts alone, and `uses` says what containers do."""

    compute: ThroughputModel
    uses: CoreUses
    saturates: bool

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second: the form's, cut to what the cores can do."""
        said, pace = self.compute.predict(at), self.uses.pace(at) if self.saturates else np.ones(len(at))
        limit = self.uses.limit(at)
        low, middle, high = (
            np.minimum(x * pace, limit) for x in (said.low_90, said.throughput, said.high_90)
        )
        return Prediction(middle, low, high, said.guess)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        pace = self.uses.pace(at) if self.saturates else 1.0
        return np.minimum(self.compute.sketch(at) * pace, self.uses.limit(at))


def measure_core_use(
    observations: Observations,
    used: tuple[ArrayLike, ArrayLike],
    peaks: tuple[ArrayLike, ArrayLike] = (0, 0),
    form: Form = SYNCHRONOUS,
) -> CoreUses:
    """Core use from what one worker and one server used at each observation (n,), in cores; 0: not measured.

    `used`: on average. `peaks`: in their busiest tenths of a second. A synchronous step is its workers' bursts, its servers' and a
    rest, one after another; an asynchronous worker waits for servers that others keep busy, so there bursts tell nothing until a
    worker's were seen that met no limit.
    """
    at, speed = observations.configurations, observations.throughput
    means, highest = ([np.broadcast_to(np.asarray(x, float), len(at)) for x in xs] for xs in (used, peaks))
    given, counts = (at.worker_cores, at.ps_cores), (at.workers, at.ps)
    free = np.all([~_held(u, cores) & (u > 0) for u, cores in zip(means, given, strict=True)], axis=0)
    bursts = measure_bursts(at, [Burst(*each) for each in zip(given, means, highest, strict=True)])
    first = bursts[0] or bursts[1]
    if first is None or (first.assumed and form.mode == "async"):
        bursts = [None, None]
    return CoreUses(
        *(
            CoreUse(_fit(at, n * u / speed, u > 0), _fit(at, u, free), burst)
            for n, u, burst in zip(counts, means, bursts, strict=True)
        )
    )


def fit_core_bound(observations: Observations, uses: CoreUses, form: Form) -> CoreBoundModel | NotEnough:
    """Fit a form on counts alone where bursts say what cores do; else on cores as given, and on counts with containers that
    saturate: then what predicts left-out rows better is kept."""
    at = observations.configurations
    if uses.bursts_known:
        freed = _fit_counts(observations, uses, form)
        return freed if isinstance(freed, NotEnough) else CoreBoundModel(freed, uses, True)
    limit = uses.limit(at)
    free = observations.take(observations.throughput < HELD_BACK * limit)
    shown = free if free.configurations.distinct() >= LEAST_CONFIGURATIONS else observations
    given = fit_throughput(shown, form)
    saturating = _fit_counts(observations, uses, form) if uses.workers.free is not None else None
    if isinstance(given, NotEnough):
        return given
    if isinstance(saturating, ThroughputModel) and _saturates(observations, uses, form):
        return CoreBoundModel(saturating, uses, True)
    return CoreBoundModel(given, uses, False)


def _fit_counts(observations: Observations, uses: CoreUses, form: Form) -> ThroughputModel | NotEnough:
    """Fit a form of counts alone to speeds that are freed of what cores do.

    What the law of the cores gets wrong is left to the process on the residual, which knows the cores.
    """
    at = observations.configurations
    freed = Observations(at, observations.throughput / uses.pace(at))
    return too_few(counts_of(at)) or fit_throughput(freed, of_counts(form))


def _saturates(given: Observations, uses: CoreUses, form: Form) -> bool:
    """Whether saturating containers explain the last measurements better than cores as given."""
    counts = Observations(counts_of(given.configurations), given.throughput / uses.pace(given.configurations))
    last = np.arange(len(given))[-_MOST_COMPARED:]
    at = given.configurations.take(last)
    limit = uses.limit(at)
    errors = [
        cross_validated_error(seen.take(last), form, most)
        for seen, most in ((counts, limit / uses.pace(at)), (given, limit))
    ]
    return errors[0] < errors[1]


def _fit(at: Configurations, values: FloatArray, which: NDArray[np.bool_]) -> PowerLaw | None:
    return PowerLaw.fit(at.take(which), values[which])


def _held(used: FloatArray, given: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(used >= HELD_BACK * given)
