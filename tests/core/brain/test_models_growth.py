"""How jobs learn and how members grow: convergence and memory models."""

from __future__ import annotations

import numpy as np
import pytest

from rover_bus.brain.models import memory
from rover_bus.brain.models.convergence import LossCurve, fit_loss_curve
from rover_bus.brain.models.memory import Growth, fit_growth
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.models.throughput import student_95

GIB = 2.0**30


def optimus_curve(steps: np.ndarray) -> np.ndarray:
    # algorithms.md §2 [paper]: "loss l(k) = 1/(b0·k + b1) + b2"
    return 1 / (0.004 * steps + 0.8) + 0.3


def test_the_loss_curve_of_the_paper_is_found_and_its_target_forecast() -> None:
    steps = np.arange(0, 600, 10.0)
    noisy = optimus_curve(steps) * np.exp(0.003 * np.random.default_rng(1).standard_normal(60))
    curve = fit_loss_curve(steps, noisy)
    assert isinstance(curve, LossCurve)
    forecast = curve.steps_to_loss(0.5)
    true_left = (1 / (0.5 - 0.3) - 0.8) / 0.004 - 590
    assert forecast.low_90 <= true_left <= forecast.high_90
    assert forecast.steps == pytest.approx(true_left, rel=0.3)
    np.testing.assert_allclose(curve.loss([1000.0]), optimus_curve(np.array([1000.0])), rtol=0.05)


def test_a_target_below_the_floor_is_never_reached() -> None:
    steps = np.arange(0, 2000, 20.0)
    curve = fit_loss_curve(steps, optimus_curve(steps))
    assert isinstance(curve, LossCurve)
    assert curve.steps_to_loss(0.2).steps == float("inf")
    assert curve.steps_to_loss(2.0).steps == 0.0


def test_no_more_gain_is_where_the_slope_falls_below_its_worth() -> None:
    # slope of 1/(b0 k + b1) + b2 is -b0/(b0 k + b1)^2 (algorithms.md §2 [paper], derived)
    steps = np.arange(0, 2000, 20.0)
    curve = fit_loss_curve(steps, optimus_curve(steps))
    assert isinstance(curve, LossCurve)
    expected = (np.sqrt(0.004 / 1e-5) - 0.8) / 0.004 - 1980
    assert curve.steps_to_flat(1e-5).steps == pytest.approx(expected, rel=0.05)


def test_one_wild_loss_does_not_move_the_curve() -> None:
    steps = np.arange(0, 600, 10.0)
    losses = optimus_curve(steps)
    losses[30] = 50.0
    curve = fit_loss_curve(steps, losses)
    assert isinstance(curve, LossCurve)
    np.testing.assert_allclose(curve.loss([800.0]), optimus_curve(np.array([800.0])), rtol=0.03)


@pytest.mark.parametrize("losses", [[1.0] * 3, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]])
def test_too_few_or_rising_losses_are_not_enough(losses: list[float]) -> None:
    assert isinstance(fit_loss_curve(np.arange(len(losses)), losses), NotEnough)


def heaps(n: np.ndarray, h: float) -> np.ndarray:
    # algorithms.md §3: "distinct ids after n samples follow Heaps' law, K·n^h, h about 0.5 to 0.9"
    return GIB * (1 + 9 * (n / 1e6) ** h)


@pytest.mark.parametrize("still", range(1, 12))
def test_memory_that_grew_while_no_sample_was_consumed_tells_no_slope(still: int) -> None:
    trained = np.arange(1, 16) * 1e4
    n = np.r_[trained, np.full(still, trained[-1])]
    used = np.r_[heaps(trained, 0.7), heaps(trained[-1:], 0.7) * (1.5 + 0.1 * np.arange(still))]
    growth = fit_growth(n, used)
    assert isinstance(growth, Growth)
    forecast = growth.forecast(1e6)
    assert np.isfinite(forecast.upper_bytes)
    assert forecast.upper_bytes >= used[-1]
    assert isinstance(fit_growth(n[-still:], used[-still:]), NotEnough)


@pytest.mark.parametrize("h", [0.5, 0.75, 0.9, 1.0])
def test_growth_by_heaps_law_is_forecast_below_its_upper_bound(h: float) -> None:
    rng = np.random.default_rng(5)
    n = np.linspace(1e4, 4e5, 30)
    growth = fit_growth(n, heaps(n, h) * np.exp(0.003 * rng.standard_normal(30)))
    assert isinstance(growth, Growth)
    forecast, truth = growth.forecast(1e6), float(heaps(np.array(1e6), h))
    assert forecast.expected_bytes == pytest.approx(truth, rel=0.08)
    assert truth * 0.99 <= forecast.upper_bytes <= truth * 1.25


def test_the_published_linear_rule_is_the_special_case_of_exponent_one() -> None:
    # algorithms.md §3 [paper]: "The published rule is linear: rate · remaining"
    n = np.linspace(1e4, 1e5, 20)
    growth = fit_growth(n, 2 * GIB + 1000.0 * n)
    assert isinstance(growth, Growth)
    left = growth.samples_to_limit(2 * GIB + 1000.0 * 5e5)
    assert left == pytest.approx(4e5, rel=0.15)
    assert left <= 4e5
    assert growth.seconds_to_limit(2 * GIB + 1000.0 * 5e5, 100.0) == pytest.approx(left / 100)


def test_a_fixed_table_is_flat_and_never_meets_its_limit() -> None:
    # algorithms.md §3: "Fixed tables: flat after warm-up"
    growth = fit_growth(np.arange(1.0, 41.0) * 1e4, np.full(40, 3 * GIB))
    assert isinstance(growth, Growth)
    assert growth.forecast(1e6).upper_bytes < 3.2 * GIB
    assert growth.samples_to_limit(6 * GIB) > 1e7


def test_a_launched_feature_changes_the_slope_and_the_old_curve_is_left() -> None:
    n = np.arange(1.0, 61.0) * 1e4
    used = heaps(n, 0.6) + np.where(n > 4.5e5, 20_000.0 * (n - 4.5e5), 0.0)
    growth = fit_growth(n, used)
    assert isinstance(growth, Growth)
    assert growth.changed
    truth = heaps(np.array(8e5), 0.6) + 20_000.0 * 3.5e5
    assert growth.forecast(8e5).upper_bytes >= float(truth) * 0.97


def test_a_limit_already_met_leaves_no_time() -> None:
    growth = fit_growth([1.0, 2.0, 3.0, 4.0], [GIB, 2 * GIB, 3 * GIB, 4 * GIB])
    assert isinstance(growth, Growth)
    assert growth.samples_to_limit(3 * GIB) == 0.0
    assert isinstance(fit_growth([1.0, 2.0], [1.0, 2.0]), NotEnough)


def slopes_begin(n: np.ndarray, used: np.ndarray) -> int:
    """Where the present slope begins, by a fit of its own before each place that is looked at: what `fit_growth` does at once."""
    for start in range(len(n) - 5, 3, -5):
        older = memory._fit(n[:start], used[:start], changed=False)
        expected, upper = older._at(n[start : start + 5])
        sd = np.maximum((upper - expected) / student_95(max(start - 3, 3)), 0.002 * used[start])
        if np.all(((used[start : start + 5] - expected) / sd)[-3:] > 4.0):
            return start
    return 0


def test_a_slope_begins_where_the_points_leave_a_fit_to_those_before() -> None:
    changed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(12, 65))
        n = np.cumsum(rng.uniform(1e3, 1e5, count))
        used = heaps(n, rng.uniform(0.4, 1.0)) * np.exp(0.002 * rng.standard_normal(count))
        if seed % 2:  # a feature is launched
            launched = int(rng.integers(6, count - 5))
            used[launched:] += 0.5 * GIB * np.arange(count - launched)
        growth = fit_growth(n, used)
        assert isinstance(growth, Growth)
        assert growth.points == count - slopes_begin(n, used), seed
        changed += growth.changed
    assert 10 <= changed <= 30, "curves with a slope of their own at the end, and without"
