"""Non-negative least squares on normal equations against scipy's on the rows."""

from __future__ import annotations

import numpy as np
import pytest

from rover_bus.brain.models.nnls import solve_nonnegative, solve_nonnegative_fleet


def problems(count: int, k: int = 6) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(7)
    rows = [rng.uniform(0, 1, (12, k)) @ np.diag(rng.uniform(0.5, 2, k)) for _ in range(count)]
    targets = [a @ (rng.normal(0.3, 1, k)) + rng.normal(0, 0.1, 12) for a in rows]
    return rows, targets


def nnls(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return scipy's solution."""
    from scipy import optimize  # here: a third of a second, which each process that collects would pay

    return optimize.nnls(a, y)[0]


def test_one_problem_has_the_solution_that_scipy_finds() -> None:
    for a, y in zip(*problems(50), strict=True):
        expected = nnls(a, y)
        np.testing.assert_allclose(solve_nonnegative(a.T @ a, a.T @ y), expected, atol=1e-6)


def test_a_fleet_at_once_has_the_solutions_of_one_by_one() -> None:
    rows, targets = problems(300, k=5)
    grams = np.stack([a.T @ a for a in rows])
    moments = np.stack([a.T @ y for a, y in zip(rows, targets, strict=True)])
    expected = np.stack([nnls(a, y) for a, y in zip(rows, targets, strict=True)])
    np.testing.assert_allclose(solve_nonnegative_fleet(grams, moments), expected, atol=1e-6)


@pytest.mark.parametrize("k", [1, 4])
def test_all_terms_stay_at_zero_when_each_makes_it_worse(k: int) -> None:
    assert solve_nonnegative(np.eye(k), -np.ones(k)).tolist() == [0.0] * k
    assert solve_nonnegative_fleet(np.eye(k)[None], -np.ones((1, k))).tolist() == [[0.0] * k]
