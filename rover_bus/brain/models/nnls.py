"""Non-negative least squares on normal equations: minimise c'Gc - 2c'b over c >= 0.

Fed by sufficient statistics, feeds every fit. Apart from scipy's, because that one wants the rows: from the Gram matrix a
refit costs O(k^3) for k = 4 to 6 terms, and a fleet of jobs is solved at once. Both take the active-set method of Lawson
and Hanson in the form of Bro and de Jong (1997, FNNLS) [paper: "coefficients by non-negative least squares"].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.models.samples import FloatArray

_TOLERANCE = 1e-9
_ROUNDS = 40


def solve_nonnegative(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Solve one problem, gram (k, k) positive definite, moment (k,). Returns c (k,) >= 0.

    Columns should be scaled to like size (unit diagonal is best); the tolerance is relative to the largest moment.
    """
    k = len(moment)
    g: list[list[float]] = gram.tolist()
    b: list[float] = moment.tolist()
    tolerance = _TOLERANCE * max(map(abs, b), default=0.0)
    c, active = [0.0] * k, [False] * k
    for _ in range(_ROUNDS):
        gradient = [b[i] - sum(g[i][j] * c[j] for j in range(k) if active[j]) for i in range(k)]
        free = [i for i in range(k) if not active[i] and gradient[i] > tolerance]
        if not free:
            break
        active[max(free, key=gradient.__getitem__)] = True
        c = _descend(g, b, c, active)
    return np.array(c)


def _descend(g: list[list[float]], b: list[float], c: list[float], active: list[bool]) -> list[float]:
    """Move to the least-squares point of the active set, dropping the terms that would turn negative on the way."""
    while True:
        rows = [i for i, on in enumerate(active) if on]
        solution = _solve_dense([[g[i][j] for j in rows] for i in rows], [b[i] for i in rows])
        blocked = [(i, s) for i, s in zip(rows, solution, strict=True) if s <= 0]
        if not blocked:
            moved = [0.0] * len(c)
            for i, s in zip(rows, solution, strict=True):
                moved[i] = s
            return moved
        step = min((c[i] / (c[i] - s) if c[i] > s else 0.0) for i, s in blocked)
        for i, s in zip(rows, solution, strict=True):
            c[i] += step * (s - c[i])
        for i, _ in blocked:
            if c[i] <= 1e-15:
                c[i], active[i] = 0.0, False


def _solve_dense(a: list[list[float]], b: list[float]) -> list[float]:
    """Gaussian elimination of a positive definite system; below six unknowns it is faster than a call into LAPACK."""
    n = len(b)
    rows = [[*line, value] for line, value in zip(a, b, strict=True)]
    for i in range(n):
        pivot = rows[i][i]
        for j in range(i + 1, n):
            factor = rows[j][i] / pivot
            if factor:
                rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
    solution = [0.0] * n
    for i in range(n - 1, -1, -1):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, n))
        solution[i] = (rows[i][n] - known) / rows[i][i]
    return solution


def solve_nonnegative_fleet(grams: FloatArray, moments: FloatArray) -> FloatArray:
    """Solve many problems at once: grams (j, k, k), moments (j, k). Returns (j, k) >= 0, equal to one by one.

    Every round swaps all infeasible terms of each job (block principal pivoting, Judice and Pires 1994), and jobs that do
    not settle in a few rounds fall back to the single solver: exact either way.
    """
    jobs, k = moments.shape
    active: NDArray[np.bool_] = moments > 0
    scale = _TOLERANCE * np.maximum(np.abs(moments).max(axis=1, initial=0.0), 1e-300)
    solution = np.zeros((jobs, k))
    todo = np.arange(jobs)
    for _ in range(12):
        solution[todo], gradient = _solve_active(grams[todo], moments[todo], active[todo])
        wrong = np.where(active[todo], solution[todo] < 0, gradient > scale[todo, None])
        unsettled = wrong.any(axis=1)
        todo, wrong = todo[unsettled], wrong[unsettled]
        if not len(todo):
            return solution
        active[todo] ^= wrong
    for job in todo:
        solution[job] = solve_nonnegative(grams[job], moments[job])
    return solution


def _solve_active(
    grams: FloatArray, moments: FloatArray, active: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Least squares with the inactive terms held at 0, and the gradient at that point."""
    k = moments.shape[1]
    both = active[:, :, None] & active[:, None, :]
    held = np.eye(k) * ~active[:, None, :]
    solution = np.linalg.solve(np.where(both, grams, 0.0) + held, np.where(active, moments, 0.0)[..., None])[
        ..., 0
    ]
    gradient = moments - (grams @ solution[..., None])[..., 0]
    return np.asarray(solution, dtype=np.float64), gradient
