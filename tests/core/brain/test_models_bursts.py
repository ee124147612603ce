"""What bursts make of cores: known from a size that nothing held back, assumed of one that met its limit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rover_bus.brain.models.bursts import MORE, Burst, measure_bursts
from rover_bus.brain.models.core_use import CoreBoundModel, fit_core_bound, measure_core_use
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.implied import FREE_CORES, imply_counts
from rover_bus.brain.models.samples import (
    Configuration,
    Configurations,
    FloatArray,
    NotEnough,
    Observations,
)
from rover_bus.brain.predicting import fit_family
from rover_bus.brain.state import FamilySample

CORES, SHARE = (3.0, 1.5), (0.4, 0.3)  # of a worker's and of a server's bursts, free


def measured(at: Configurations, bend: float = 1.0) -> tuple[FloatArray, list[FloatArray], list[FloatArray]]:
    """A job whose members work in bursts: samples a second, means, peaks. `bend`: a burst stretches to this power."""
    given = at.worker_cores, at.ps_cores
    longer = sum(b * (np.maximum(P / c, 1) ** bend - 1) for b, P, c in zip(SHARE, CORES, given, strict=True))
    free = at.batch_size / (4.0 / at.workers + 0.2 + 0.05 * at.workers / at.ps)
    means = [b * P / (1 + longer) for b, P in zip(SHARE, CORES, strict=True)]
    return free / (1 + longer), means, [np.minimum(P, c) for P, c in zip(CORES, given, strict=True)]


def grid(workers: list[int], servers: list[int], cores: list[float]) -> Configurations:
    w, p, lw, lp = (x.ravel() for x in np.meshgrid(workers, servers, cores, cores, indexing="ij"))
    return Configurations.of(w, p, lw, lp, 256)


def test_one_size_that_nothing_held_back_tells_what_any_cores_would_do() -> None:
    one, all_cores = grid([4], [2], [4.0]), grid([4], [2], [0.5, 1.0, 2.0, 4.0, 8.0])
    speed, means, peaks = measured(one)
    uses = measure_core_use(Observations.of(one, speed), tuple(means), tuple(peaks))  # type: ignore[arg-type]
    full = speed / uses.pace(one)
    assert uses.pace(all_cores) * full == pytest.approx(measured(all_cores)[0], rel=1e-6)


def test_a_burst_that_met_its_limit_is_taken_for_several_times_as_large() -> None:
    """As bold as the law of utilisation, as far as that goes: more cores shorten what the member was busy with."""
    one = grid([4], [2], [1.0])
    speed, means, peaks = measured(one)
    uses = measure_core_use(Observations.of(one, speed), tuple(means), tuple(peaks))  # type: ignore[arg-type]
    more = Configurations.of([4.0], [2.0], [2.0], [1.0], 256)
    busy = means[0] / peaks[0]
    assert uses.pace(more) / uses.pace(one) == pytest.approx(1 / (1 - busy / 2), rel=1e-6)
    most = Configurations.of([4.0, 4.0], [2.0, 2.0], [MORE, 2 * MORE], [1.0, 1.0], 256)
    assert np.ptp(uses.pace(most)) == 0.0, "no member is believed to use any number of cores"


def test_a_size_at_which_one_role_was_held_back_tells_the_other_ones_share() -> None:
    at = Configurations.of([4.0, 4.0], [2.0, 2.0], [1.0, 4.0], [4.0, 1.0], 256)
    _, means, peaks = measured(at)
    given = at.worker_cores, at.ps_cores
    bursts = measure_bursts(at, [Burst(*each) for each in zip(given, means, peaks, strict=True)])
    for role, cores, share in zip(bursts, CORES, SHARE, strict=True):
        assert role is not None
        assert role.cores(at) == pytest.approx(cores, rel=1e-6)
        assert role.shares(at) == pytest.approx(share, rel=1e-6)


def test_a_role_whose_bursts_were_not_measured_leaves_the_other_one_unasked() -> None:
    at = grid([4], [2], [1.0])
    _, means, peaks = measured(at)
    none = np.zeros(len(at))
    workers, servers = (
        Burst(given, mean, peak)
        for given, mean, peak in zip((at.worker_cores, at.ps_cores), means, peaks, strict=True)
    )
    assert measure_bursts(at, [workers, Burst(servers.given, servers.mean, none)]) == [None, None]
    limited, unlimited = measure_bursts(at, [workers, Burst(servers.given, none, none)])
    assert limited is not None
    assert unlimited is None, "no container limits it, so that its use was not asked for"


def test_bursts_of_more_than_all_of_the_time_stay_within_it() -> None:
    """Asynchronous workers and their servers are busy at once."""
    at = grid([4], [2], [1.0])
    ones = np.ones(len(at))
    for role in measure_bursts(at, [Burst(ones, 0.9 * ones, ones), Burst(ones, 0.8 * ones, ones)]):
        assert role is not None
        assert np.all((role.shares(at) > 0) & (role.shares(at) < 1))


def test_three_counts_make_a_model_of_all_cores() -> None:
    seen_at = Configurations.of([1.0, 4.0, 8.0], [1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [2.0, 2.0, 2.0], 256)
    space = grid([1, 2, 4, 8], [1, 2, 4], [0.5, 1.0, 2.0, 4.0])
    speed, means, peaks = measured(seen_at)
    seen = Observations.of(seen_at, speed)
    uses = measure_core_use(seen, tuple(means), tuple(peaks))  # type: ignore[arg-type]
    fitted = fit_core_bound(seen, uses, SYNCHRONOUS)
    assert isinstance(fitted, CoreBoundModel)
    assert fitted.saturates
    error = np.abs(np.log(fitted.predict(space).throughput / measured(space)[0]))
    assert np.median(error) < 0.1
    without = fit_core_bound(seen, measure_core_use(seen, tuple(means)), SYNCHRONOUS)  # type: ignore[arg-type]
    assert isinstance(without, CoreBoundModel)
    assert np.median(error) < 0.5 * np.median(
        np.abs(np.log(without.predict(space).throughput / measured(space)[0]))
    )


@pytest.mark.parametrize("bend", [0.7, 1.4])
def test_what_the_law_of_bursts_gets_wrong_is_learned_from_sizes_of_other_cores(bend: float) -> None:
    space = grid([1, 2, 4, 8], [1, 2, 4], [0.5, 1.0, 2.0, 4.0])
    some = np.random.default_rng(7).permutation(len(space))[:24]
    speed, means, peaks = measured(space, bend)
    seen = Observations.of(space.take(some), speed[some])
    uses = measure_core_use(seen, tuple(x[some] for x in means), tuple(x[some] for x in peaks))  # type: ignore[arg-type]
    fitted = fit_core_bound(seen, uses, SYNCHRONOUS)
    assert isinstance(fitted, CoreBoundModel)
    assert fitted.saturates
    error = np.abs(np.log(fitted.predict(space).throughput / speed))
    assert np.median(error) < 0.08, "0.17 and 0.30 where the law alone spoke of cores"


def sample(workers: int, servers: int, cores: float, peak: tuple[float, float] | None = None) -> FamilySample:
    at = Configuration(workers, servers, cores, cores, 256.0)
    speed, means, peaks = measured(Configurations.from_list([at]))
    told = peak or (float(peaks[0][0]), float(peaks[1][0]))
    used = float(means[0][0]), float(means[1][0])
    return FamilySample("run", at, float(speed[0]), 0.0, *used, False, *told)


def test_a_first_window_says_that_more_cores_than_bursts_use_bring_nothing() -> None:
    model = fit_family([sample(4, 2, 4.0)], ASYNCHRONOUS)
    assert not hasattr(model, "missing")
    held, more, fewer = (Configurations.of([4.0], [2.0], [c], [c], 256) for c in (4.0, 8.0, 1.0))
    said = [float(model.of("run").predict(at).throughput[0]) for at in (held, more, fewer)]  # type: ignore[union-attr]
    assert said[1] == pytest.approx(said[0], rel=0.02)
    assert said[2] / said[0] == pytest.approx(float((measured(fewer)[0] / measured(held)[0])[0]), rel=0.05)


def test_counts_are_implied_until_three_were_measured() -> None:
    def implied(*samples: FamilySample) -> Observations:
        at = Configurations.from_list([each.at for each in samples])
        seen = Observations.of(at, [each.throughput for each in samples])
        used = [each.worker_cores for each in samples], [each.server_cores for each in samples]
        peaks = [each.worker_peak for each in samples], [each.server_peak for each in samples]
        return imply_counts(seen, measure_core_use(seen, used, peaks), [each.input_share for each in samples])

    first = implied(sample(2, 1, 2.0))
    assert first.configurations.workers.tolist() == [4.0, 2.0, 4.0]
    assert first.configurations.ps.tolist() == [1.0, 2.0, 2.0]
    assert np.all(first.configurations.worker_cores == FREE_CORES)
    assert np.all(first.throughput > sample(2, 1, 4.0).throughput)
    of_servers = implied(sample(2, 1, 2.0), sample(4, 1, 2.0), sample(8, 1, 2.0))
    assert of_servers.configurations.ps.tolist() == [2.0], "no size varied them"
    assert len(implied(sample(2, 1, 2.0), sample(4, 1, 2.0), sample(4, 2, 2.0))) == 0


def test_a_job_that_waits_for_input_since_its_cores_were_varied_has_a_model() -> None:
    """Its counts were never varied and its last size is limited by reading: it stayed at one worker for hours (W2, seed 3)."""
    computes, reads = sample(1, 1, 1.0), sample(1, 1, 2.0)
    reads = replace(reads, throughput=computes.throughput * 1.04, input_share=0.4)
    wider = replace(reads, at=replace(reads.at, ps_cores=3.0))
    model = fit_family([computes, reads, wider], SYNCHRONOUS)
    assert not isinstance(model, NotEnough), model
    at = Configurations.of([1.0, 2.0, 2.0], [1.0, 1.0, 2.0], 2.0, 2.0, 256)
    one, two, more = model.of("run").predict(at).throughput
    assert 1.2 * one < two <= more <= 2.01 * reads.throughput, (
        "more workers read more, as far as they compute"
    )


def test_asynchronous_workers_that_met_their_limit_tell_nothing_by_their_bursts() -> None:
    """They wait for servers that others keep busy: their time is no sum of both."""
    held, free = grid([4], [2], [1.0]), grid([4], [2], [4.0])
    for at, form, tell in (
        (held, SYNCHRONOUS, True),
        (held, ASYNCHRONOUS, False),
        (free, ASYNCHRONOUS, True),
    ):
        speed, means, peaks = measured(at)
        uses = measure_core_use(Observations.of(at, speed), tuple(means), tuple(peaks), form)  # type: ignore[arg-type]
        assert uses.bursts_known is tell
