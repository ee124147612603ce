"""The throughput model: forms, statistics, intervals, probes. Each formula quotes its source line and mark."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.models.forms import ASYNCHRONOUS, FORMS, OPTIMUS_ASYNC, OPTIMUS_SYNC, SYNCHRONOUS, Form
from rover_bus.brain.models.ingest import fit_bounded
from rover_bus.brain.models.probing import next_probe
from rover_bus.brain.models.residual import fit_residual, matern
from rover_bus.brain.models.samples import Configurations, NotEnough, Observations
from rover_bus.brain.models.selection import fit_best, select_form
from rover_bus.brain.models.statistics import Line, Statistics, fit_line
from rover_bus.brain.models.throughput import ThroughputModel, fit_throughput, student_95
from rover_bus.events.errors import InputError


def grid(form: Form, coefficients: list[float], cores: bool = False) -> Observations:
    rng = np.random.default_rng(3)
    at = Configurations.of(
        rng.integers(1, 21, 40),
        rng.integers(1, 11, 40),
        rng.choice([1.0, 2, 4, 8], 40) if cores else 1.0,
        rng.choice([1.0, 2, 4], 40) if cores else 1.0,
        64,
    )
    return Observations.of(at, form.throughput(at, form.design(at) @ np.array(coefficients)))


def row(form: Form, w: float, p: float, lw: float, lp: float, m: float) -> list[float]:
    return form.design(Configurations.of(w, p, lw, lp, m))[0].tolist()


def test_the_asynchronous_form_is_the_recalled_one_with_its_constants_collapsed() -> None:
    # algorithms.md §1: "T_iter = α1·m/λw + α2·w/(p·λp) + α3·(M/B)·w/p + α4·m·D/p + β" [recalled; shape: data]
    assert row(ASYNCHRONOUS, 6, 2, 4, 8, 100) == [100 / 4, 6 / (2 * 8), 6 / 2, 100 / 2, 1]


def test_asynchronous_throughput_is_workers_times_batch_over_iteration_time() -> None:
    # algorithms.md §1: "throughput Ψ = w·m / T_iter" [recalled; shape: data]
    at = Configurations.of(6, 2, batch_size=100)
    assert ASYNCHRONOUS.throughput(at, np.array([3.0])) == pytest.approx(6 * 100 / 3)


def test_the_synchronous_form_is_optimus_five_and_a_sixth() -> None:
    # algorithms.md §1: "For synchronous training use Optimus' five (§2) and a sixth, 1/p" [ours]
    five = row(OPTIMUS_SYNC, 6, 2, 1, 1, 96)
    assert row(SYNCHRONOUS, 6, 2, 1, 1, 96) == [*five, 1 / 2]


def test_optimus_forms_are_the_papers() -> None:
    # algorithms.md §2 [paper]: "f(p,w) = w·(θ0 + θ1·w/p + θ2·w + θ3·p)^-1"
    at, theta = Configurations.of(6, 2), np.array([0.1, 0.2, 0.3, 0.4])
    expected = 6 / (0.1 + 0.2 * 3 + 0.3 * 6 + 0.4 * 2)
    assert OPTIMUS_ASYNC.throughput(at, OPTIMUS_ASYNC.design(at) @ theta) == pytest.approx(expected)
    # algorithms.md §2 [paper]: "f(p,w) = (θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p)^-1   M here: the global batch"
    at, theta = Configurations.of(6, 2, batch_size=96), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    steps = 1 / (0.1 * 96 / 6 + 0.2 + 0.3 * 3 + 0.4 * 6 + 0.5 * 2)
    assert OPTIMUS_SYNC.throughput(at, OPTIMUS_SYNC.design(at) @ theta) == pytest.approx(96 * steps)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_truth_of_the_form_is_found_again(form: Form) -> None:
    observed = grid(form, [0.3, 0.05, 0.2, 0.01, 0.1, 0.4][: len(form.terms)], cores=True)
    model = fit_throughput(observed.take(np.arange(20)), form)
    assert isinstance(model, ThroughputModel)
    unseen = observed.take(np.arange(20, 40))
    error = np.abs(model.predict(unseen.configurations).throughput / unseen.throughput - 1)
    assert np.median(error) < 0.01


def test_errors_are_relative_so_slow_configurations_do_not_outweigh_fast_ones() -> None:
    # algorithms.md §1: "Weight each row by 1/T (relative error, close to RMSLE)" [ours]
    design, seconds = np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 100.0])
    line = fit_line(Statistics.of(design, seconds))
    assert isinstance(line, Line)
    assert line.coefficients[0] < 2.0


def test_statistics_sample_by_sample_equal_statistics_of_all_rows() -> None:
    # algorithms.md §1: "Keep sufficient statistics (normal equations with forgetting)" [ours]
    observed = grid(SYNCHRONOUS, [0.3, 0.05, 0.2, 0.01, 0.1, 0.4])
    design = SYNCHRONOUS.design(observed.configurations)
    seconds = SYNCHRONOUS.seconds(observed.configurations, observed.throughput)
    one_by_one = Statistics.empty(6)
    for x, s in zip(design, seconds, strict=True):
        one_by_one = one_by_one.observe(x, float(s))
    at_once = Statistics.of(design, seconds)
    np.testing.assert_allclose(one_by_one.gram, at_once.gram)
    np.testing.assert_allclose(one_by_one.moment, at_once.moment)
    assert one_by_one.weight == at_once.weight == 40


def test_forgetting_follows_a_job_that_slowed_down() -> None:
    statistics = Statistics.empty(1)
    for seconds in [1.0] * 50 + [2.0] * 50:
        statistics = statistics.observe(np.ones(1), seconds, forgetting=0.9)
    line = fit_line(statistics)
    assert isinstance(line, Line)
    assert line.coefficients[0] == pytest.approx(2.0, rel=0.03)


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(1e-3, 1e3), order=st.randoms(use_true_random=False))
def test_a_fit_does_not_depend_on_units_or_on_the_order_of_samples(scale: float, order: object) -> None:
    observed = grid(SYNCHRONOUS, [0.3, 0.05, 0.2, 0.01, 0.1, 0.4]).take(np.arange(12))
    mixed = list(range(12))
    order.shuffle(mixed)  # type: ignore[attr-defined]
    other = Observations.of(observed.configurations, observed.throughput * scale).take(mixed)
    models = [fit_throughput(o, SYNCHRONOUS) for o in (observed, other)]
    at = Configurations.of([1, 7, 20], [1, 3, 9], batch_size=64)
    first, second = (m.predict(at) for m in models if isinstance(m, ThroughputModel))
    np.testing.assert_allclose(second.throughput, first.throughput * scale, rtol=1e-6)
    np.testing.assert_allclose(second.high_90, first.high_90 * scale, rtol=1e-6)


def test_two_configurations_are_not_enough_however_often_measured() -> None:
    at = Configurations.of([1, 2] * 10, 1)
    answer = fit_throughput(Observations.of(at, np.arange(1.0, 21.0)), SYNCHRONOUS)
    assert isinstance(answer, NotEnough)
    assert answer.missing == 1


def test_what_was_never_varied_is_said_and_not_extrapolated_with_confidence() -> None:
    observed = grid(ASYNCHRONOUS, [0.3, 0.05, 0.2, 0.01, 0.1])
    at = Configurations.of(observed.configurations.workers, 4, batch_size=64)
    truth = ASYNCHRONOUS.throughput(at, ASYNCHRONOUS.design(at) @ np.array([0.3, 0.05, 0.2, 0.01, 0.1]))
    model = fit_throughput(Observations.of(at, truth).take(np.arange(8)), ASYNCHRONOUS)
    assert isinstance(model, ThroughputModel)
    assert any("ps was never varied" in warning for warning in model.warnings)
    assert any("cannot tell all terms apart" in warning for warning in model.warnings)
    near, far = (model.predict(Configurations.of(8, ps, batch_size=64)) for ps in (4, 40))
    assert far.high_90 / far.low_90 > 2 * near.high_90 / near.low_90


def test_a_cliff_that_no_form_can_follow_is_called_a_misfit() -> None:
    w = np.arange(1.0, 33.0)
    at = Configurations.of(w, 4)
    model = fit_throughput(Observations.of(at, np.where(w > 16, 0.2 * w, w)), ASYNCHRONOUS)
    assert isinstance(model, ThroughputModel)
    assert any("misses" in warning for warning in model.warnings)


def test_intervals_cover_a_truth_that_is_not_the_form(
    w1: Callable[[int, int], tuple[np.ndarray, np.ndarray]],
) -> None:
    covered = []
    for seed in range(12):
        table, speed = w1(seed, 60)
        at = Configurations.of(*table.T, batch_size=512)
        observed = Observations.of(at, speed)
        model = fit_throughput(observed.take(np.arange(12)), ASYNCHRONOUS)
        assert isinstance(model, ThroughputModel)
        predicted = model.predict(at.take(np.arange(12, 60)))
        unseen = speed[12:]
        covered.append(np.mean((predicted.low_90 <= unseen) & (unseen <= predicted.high_90)))
    assert 0.85 <= float(np.mean(covered)) <= 0.98


def test_a_long_history_is_fitted_at_bounded_cost_and_closer_than_a_short_one(
    w1: Callable[[int, int], tuple[np.ndarray, np.ndarray]],
) -> None:
    table, speed = w1(3, 460)
    observed = Observations.of(Configurations.of(*table.T, batch_size=512), speed)
    unseen = observed.take(np.arange(400, 460))
    errors = []
    for rows in (10, 150):
        model = fit_throughput(observed.take(np.arange(rows)), ASYNCHRONOUS)
        assert isinstance(model, ThroughputModel)
        errors.append(
            np.median(np.abs(model.predict(unseen.configurations).throughput / unseen.throughput - 1))
        )
    assert errors[1] < errors[0]
    longest = fit_throughput(observed, ASYNCHRONOUS)
    assert isinstance(longest, ThroughputModel)
    assert longest.samples <= 400


@pytest.mark.parametrize("freedom", [3, 5, 17, 100])
def test_the_quantile_is_students(freedom: int) -> None:
    from scipy.stats import t as student  # half a second, which each process that collects would pay

    assert student_95(freedom) == pytest.approx(float(student.ppf(0.95, freedom)), rel=0.02)


@pytest.mark.parametrize("truth", [ASYNCHRONOUS, SYNCHRONOUS], ids=lambda form: form.name)
def test_cross_validation_names_the_mode_of_the_truth(truth: Form) -> None:
    coefficients = [0.3, 0.05, 0.6, 0.01, 0.4] if truth is ASYNCHRONOUS else [0.9, 0.05, 0.2, 0.01, 0.1, 0.4]
    observed = grid(truth, coefficients)
    chosen = fit_best(observed.take(np.arange(16)))
    assert not isinstance(chosen, NotEnough)
    model, selection = chosen
    assert model.form.mode == truth.mode
    assert selection.errors[selection.chosen] < 0.02
    assert list(selection.errors) == sorted(selection.errors, key=selection.errors.__getitem__)


def test_three_configurations_cannot_choose_a_form() -> None:
    at = Configurations.of([1, 2, 4], 1)
    assert isinstance(select_form(Observations.of(at, [1.0, 2.0, 3.0])), NotEnough)


def test_the_next_probe_shrinks_the_predictive_variance_and_never_repeats() -> None:
    # algorithms.md §1: "propose the next probe that shrinks the mean predictive variance over the plan space most" [ours]
    observed = grid(SYNCHRONOUS, [0.9, 0.05, 0.2, 0.01, 0.1, 0.4])
    at = observed.configurations
    chosen: list[int] = []
    widths = []
    while len(chosen) < 10:
        measured = observed.take(chosen) if chosen else None
        probe = next_probe(at, SYNCHRONOUS, measured)
        assert probe not in chosen
        chosen.append(probe)
        model = fit_throughput(observed.take(chosen), SYNCHRONOUS)
        if isinstance(model, ThroughputModel):
            predicted = model.predict(at)
            widths.append(float(np.mean(np.log(predicted.high_90 / predicted.low_90))))
    assert widths[-1] < widths[0] / 2


def test_dear_probes_must_earn_their_price() -> None:
    at = Configurations.of([1, 30], [1, 10])
    assert next_probe(at, SYNCHRONOUS, None, np.array([1.0, 1e6])) == 0
    assert next_probe(at, SYNCHRONOUS, None, np.array([1e6, 1.0])) == 1


def test_an_input_bound_job_is_as_slow_as_its_slower_half() -> None:
    # algorithms.md §1: "throughput = min(compute, ingest), ingest = w · rows a second a worker can read" [ours]
    w = np.array([1, 2, 3, 4, 8, 12, 16, 24, 28, 32.0])
    at = Configurations.of(w, 2, batch_size=64)
    compute = ASYNCHRONOUS.throughput(at, ASYNCHRONOUS.design(at) @ np.array([0.001, 0.01, 0.05, 0.0, 0.1]))
    observed = Observations.of(at, np.minimum(compute, 120 * w))
    model = fit_bounded(observed, np.where(120 * w < compute, 0.7, 0.02), ASYNCHRONOUS)
    assert not isinstance(model, NotEnough)
    predicted = model.predict(at)
    np.testing.assert_allclose(predicted.throughput, observed.throughput, rtol=0.05)
    assert model.input_bound(at).tolist() == (120 * w < compute).tolist()


@pytest.mark.parametrize(("workers", "believed"), [(4.0, False), (24.0, True)])
def test_a_limit_of_reading_that_as_many_workers_passed_without_waiting_is_none(
    workers: float, believed: bool
) -> None:
    """Storage was slow for one run, while four workers trained; or twenty-four read less than what more of them never did."""
    w = np.array([2, 4, 8, 12, 16.0])
    seen = np.append(100 * w**0.9, 0.4 * 100 * workers**0.9)
    at = Configurations.of(np.append(w, workers), 2)
    model = fit_bounded(Observations.of(at, seen), [*[0.0] * 5, 0.6], ASYNCHRONOUS)
    assert not isinstance(model, NotEnough)
    known = model.predict(Configurations.of([8, 16], 2)).throughput / seen[[2, 4]]
    assert (known.min() < 0.7) == believed
    assert (model.ingest is not None) == believed


def test_one_compute_bound_row_is_enough_not_to_promise_what_only_reading_allows() -> None:
    w = np.array([1, 2, 3, 4, 8.0])
    model = fit_bounded(
        Observations.of(Configurations.of(w, 2), np.minimum(100 * w, 500)),
        [0.8, 0.8, 0.8, 0.8, 0.0],
        ASYNCHRONOUS,
    )
    assert not isinstance(model, NotEnough)
    assert model.predict(Configurations.of(8, 2)).throughput[0] < 650


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_number_that_cannot_be_is_refused_by_name(bad: float) -> None:
    with pytest.raises(InputError, match="ps must hold finite numbers above 0"):
        Configurations.of([1, 2], [1, bad])
    with pytest.raises(InputError, match="throughput must be finite"):
        Observations.of(Configurations.of([1, 2], 1), [1.0, bad])


def test_throughput_that_falls_beyond_its_peak_is_described_by_the_form_that_can_say_so() -> None:
    errors = []
    for seed in range(10):
        dice = np.random.default_rng(seed)
        grid = np.array([(w, p) for w in range(1, 25) for p in range(1, 5)], float)
        w, retrograde = grid[:, 0], dice.uniform(0.002, 0.01)
        speed = (
            100
            * w
            / (1 + 0.02 * (w - 1) + retrograde * w * (w - 1))
            * np.exp(0.03 * dice.normal(size=len(w)))
        )
        observed = Observations.of(Configurations.of(w, grid[:, 1]), speed)
        order = dice.permutation(len(w))
        chosen = fit_best(observed.take(order[:12]), "async")
        assert isinstance(chosen, tuple)
        model, selection = chosen
        assert selection.chosen == "usl-async"
        unseen = observed.take(order[12:])
        predicted = model.predict(unseen.configurations).throughput
        errors.append(np.median(np.abs(predicted / unseen.throughput - 1)))
    assert np.median(errors) <= 0.035, errors


def test_a_mixture_says_what_its_settings_say_one_by_one() -> None:
    """Against the textbook's formulas: a Gaussian process a setting, and coefficients that are uncertain in log."""
    rng = np.random.default_rng(5)
    design, points = rng.lognormal(0, 1, (9, 4)), rng.normal(0, 1, (9, 3))
    seconds = design @ rng.lognormal(0, 1, 4) * rng.lognormal(0, 0.1, 9)
    found = fit_residual(design, points, seconds)
    assert len(np.unique(found.settings[:, 1])) > 1
    asked, at = rng.lognormal(0, 1, (300, 4)), rng.normal(0, 1.5, (300, 3))
    means, variances = [], []
    for h, (amplitude, length, noise) in enumerate(found.settings):
        c = found.shares[h] / found.scale
        near = amplitude**2 * matern(points / length, at / length)
        covariance = amplitude**2 * matern(points / length, points / length) + noise**2 * np.eye(9)
        pull = np.linalg.solve(covariance, near)
        slopes, terms = design * c / (design @ c)[:, None], asked * c / (asked @ c)[:, None]
        precision = slopes.T @ np.linalg.solve(covariance, slopes) + np.eye(4) / 4
        uncertain = terms - pull.T @ slopes
        means.append(np.log(asked @ c) + (np.log(seconds) - np.log(design @ c)) @ pull)
        variances.append(
            amplitude**2
            - (near * pull).sum(axis=0)
            + noise**2
            + (uncertain * np.linalg.solve(precision, uncertain.T).T).sum(axis=1)
        )
    mean = found.weights @ np.array(means)
    variance = found.weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
    np.testing.assert_allclose(found.log_seconds(asked, at), (mean, variance), rtol=1e-6, atol=1e-9)
