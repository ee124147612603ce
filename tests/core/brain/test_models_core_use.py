"""What members use of their cores: a bound that no form knows, and containers that saturate."""

from __future__ import annotations

import numpy as np
import pytest

from rover_bus.brain.models.core_use import (
    CoreBoundModel,
    CoreUses,
    fit_core_bound,
    measure_core_use,
)
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.power_law import PowerLaw
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations

WORKER_USE, SERVER_USE = 1.2, 0.6


def grid(workers: list[int], servers: list[int], cores: list[float], batch: float) -> Configurations:
    w, p, lw, lp = (x.ravel() for x in np.meshgrid(workers, servers, cores, cores, indexing="ij"))
    return Configurations.of(w, p, lw, lp, batch)


def saturating_job(at: Configurations) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Synchronous, in lock step: throughput and what members use; containers below their use hold everybody back."""
    full = at.batch_size / (4.0 / at.workers + 0.2 + 0.05 * at.workers / at.ps)
    held = np.minimum(1.0, np.minimum(at.worker_cores / WORKER_USE, at.ps_cores / SERVER_USE))
    return full * held, WORKER_USE * held, SERVER_USE * held


def test_a_container_that_saturates_is_understood_from_a_dozen_samples() -> None:
    space = grid([1, 2, 4, 8], [1, 2, 4], [0.5, 1, 2, 4], 256)
    speed, worker, server = saturating_job(space)
    some = np.random.default_rng(0).permutation(len(space))[:12]
    seen = Observations.of(space.take(some), speed[some])
    fitted = fit_core_bound(seen, measure_core_use(seen, (worker[some], server[some])), SYNCHRONOUS)
    assert isinstance(fitted, CoreBoundModel)
    assert fitted.saturates
    error = np.abs(np.log(fitted.predict(space).throughput / speed))
    assert np.median(error) < 0.05
    assert np.quantile(error, 0.9) < 0.25


def test_no_prediction_passes_what_the_cores_can_do() -> None:
    # Utilisation law: k core-seconds a sample, w*lw cores: throughput <= w*lw/k, whatever was fitted.
    at = grid([1, 2, 4], [1, 2], [1, 2], 100)
    a_sample = 0.01
    speed = at.workers * at.worker_cores / a_sample
    seen = Observations.of(at, speed)
    uses = measure_core_use(seen, (at.worker_cores, np.full(len(at), 0.01)))
    fitted = fit_core_bound(seen, uses, ASYNCHRONOUS)
    assert isinstance(fitted, CoreBoundModel)
    far = grid([1, 8, 32], [1, 8], [1, 8], 100)
    assert np.all(fitted.predict(far).throughput <= uses.limit(far) * (1 + 1e-9))
    assert uses.limit(far) == pytest.approx(far.workers * far.worker_cores / a_sample, rel=0.3)


def test_nothing_measured_bounds_nothing() -> None:
    at = grid([1, 2], [1, 2], [1], 10)
    seen = Observations.of(at, np.ones(len(at)))
    uses = measure_core_use(seen, (np.zeros(len(at)), np.zeros(len(at))))
    assert np.all(np.isinf(uses.limit(at)))
    assert np.all(uses.pace(at) == 1.0)
    assert np.all(np.isinf(CoreUses().limit(at)))


def test_a_worker_that_bursts_is_not_taken_for_one_that_saturates() -> None:
    # On average it uses a third of its cores, yet more cores make it faster: the parallel part of a batch.
    at = grid([2, 4, 8], [2, 4], [1, 2, 4, 8], 512)
    seconds = 0.5 + 1.5 / at.worker_cores + 0.02 * at.workers / (at.ps * at.ps_cores)
    speed = at.workers * at.batch_size / seconds
    seen = Observations.of(at, speed)
    fitted = fit_core_bound(
        seen,
        measure_core_use(seen, (2.0 / seconds, np.full(len(at), 0.02))),
        ASYNCHRONOUS,
    )
    assert isinstance(fitted, CoreBoundModel)
    assert not fitted.saturates


def test_a_power_law_leans_on_constants_where_nothing_was_varied() -> None:
    one = Configurations.of([4.0], [2.0])
    law = PowerLaw.fit(one, np.array([3.0]))
    assert law is not None
    assert law(Configurations.of([8.0], [4.0])) == pytest.approx(3.0, rel=1e-6)
    assert PowerLaw.fit(one.take([]), np.array([])) is None


def test_two_configurations_are_not_enough() -> None:
    at = Configurations.of([1.0, 2.0], [1.0, 1.0])
    seen = Observations.of(at, [1.0, 2.0])
    assert isinstance(fit_core_bound(seen, measure_core_use(seen, ([1, 1], [1, 1])), SYNCHRONOUS), NotEnough)
