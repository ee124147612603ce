"""What the form leaves: a Gaussian process on the log residual, its hyperparameters averaged, not guessed.

Fed by a design and observed seconds, feeds `throughput`. The form gives the shape and extrapolates; the process learns
where the form is wrong (a cliff, a cache) and, more important, says how wrong it may be where nothing was measured: that
makes the 90 % intervals honest [ours; `algorithms.md §1`: it takes 0.3 to 0.7 points off the error].

Model, for one setting (amplitude, length, noise) of the grid, in log seconds:

    log T(x) = log(design(x) @ c) + g(x) + noise,   g ~ GP(0, amplitude^2 * Matern-5/2 over log resources / length)

c by generalised NNLS under that covariance with the weak prior of `statistics`; weights of the settings by marginal
likelihood (Laplace in log c) times a log-normal prior. Everything is batched over the settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.models.nnls import solve_nonnegative_fleet
from rover_bus.brain.models.samples import FloatArray
from rover_bus.brain.models.statistics import PRIOR_SHARE

Real = TypeVar("Real", np.float32, np.float64)

AMPLITUDES = (0.02, 0.05, 0.1, 0.2, 0.4)
LENGTHS = (0.5, 1.0, 2.0)
NOISES = (0.015, 0.03, 0.06, 0.12)
_GRID = np.array(list(product(AMPLITUDES, LENGTHS, NOISES)))
# Log-normal priors: (median, ln-sd). Production traces show noise of 0.017 to 0.06 (`algorithms.md §8`).
_AMPLITUDE_PRIOR = (0.08, 0.8)
_NOISE_PRIOR = (0.03, 0.7)
_LOG_COEFFICIENT_SD = 2.0
_NEGLIGIBLE_WEIGHT = 1e-2
_WEIGHED_ROWS = 100
_FINALISTS = 4
BLOCK = 64  # rows at a time: what is worked with stays in the processor's caches,
FEW_POINTS = 24  # as it does with four times the rows beside so few points
ONE_THREAD = 250_000  # multiplications of one product: beyond some more BLAS splits it, and small parts wait for one another
SKETCHED = 1024  # the same of a sketch, whose figures are half as wide and of one setting


def matern(a: NDArray[Real], b: NDArray[Real]) -> NDArray[Real]:
    """Matern-5/2 correlation of points a (n, d) and b (m, d), already divided by the length scale."""
    ones = np.ones(a.shape[1], dtype=a.dtype)  # a product with them sums short rows faster than `sum` does
    r = (a * a @ ones)[:, None] + (b * b @ ones)[None, :]
    r -= 2 * a @ b.T
    np.maximum(r, 0.0, out=r)
    r *= 5
    np.sqrt(r, out=r)
    # (1 + r + r^2 / 3) exp(-r), in as few arrays as it takes: of thousands of plans their making is most of the work.
    decay, square = np.exp(-r), r * r
    square /= 3
    r += 1
    r += square
    r *= decay
    return np.asarray(r)


class _ByLength(NamedTuple):
    """A mixture whose h settings stand by lengths. `parts`: each length with the rows of its settings (settings, n, n + k + 1),
    that make of correlations with what was measured the whitened ones, what the coefficients are uncertain by, and the mean.

    `columns` (h, k, k) do the latter for the design; `square`, `noise` (h, 1) are variances.
    """

    parts: list[tuple[float, FloatArray]]
    shares: FloatArray
    columns: FloatArray
    weights: FloatArray
    square: FloatArray
    noise: FloatArray


@dataclass(frozen=True, eq=False)
class Residual:
    """The fitted mixture. First axis of every array: the settings that kept weight (h).

    `settings` (h, 3) amplitude, length, noise; `weights` (h,) sum 1; `shares` (h, k) coefficients a scaled column;
    `scale` (k,); `points` (n, d) log resources; `inverse` (h, n, n) inverse Cholesky factors; `whitened` (h, n) residuals;
    `tangent` (h, n, k) whitened d log T / d log c; `coefficient_factor` (h, k, k) inverse Cholesky factor of its precision.
    """

    settings: FloatArray
    weights: FloatArray
    shares: FloatArray
    scale: FloatArray
    points: FloatArray
    inverse: FloatArray
    whitened: FloatArray
    tangent: FloatArray
    coefficient_factor: FloatArray

    def log_seconds(self, design: FloatArray, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of log seconds of a new measurement at rows of design (m, k), points (m, d)."""
        scaled, known = design / self.scale, len(self.points)
        rows = BLOCK if known > FEW_POINTS else 4 * BLOCK
        rows = max(min(rows, ONE_THREAD // (known * (known + design.shape[1] + 1))), 1)
        parts = [
            self._block(scaled[start : start + rows], points[start : start + rows])
            for start in range(0, max(len(design), 1), rows)
        ]
        mean, variance = zip(*parts, strict=True)
        return np.concatenate(mean), np.concatenate(variance)

    def sketch(self, design: FloatArray, points: FloatArray) -> FloatArray:
        """Mean of log seconds under the likeliest setting alone, to six figures: a fraction of the cost, and no variance."""
        h = int(np.argmax(self.weights))
        amplitude, length, _ = self.settings[h]
        pull = amplitude**2 * (self.whitened[h] @ self.inverse[h])
        base = np.maximum(design @ (self.shares[h] / self.scale), 1e-300)
        known, asked = ((each / length).astype(np.float32) for each in (self.points, points))
        narrow = pull.astype(np.float32)
        parts = [narrow @ matern(known, asked[at : at + SKETCHED]) for at in range(0, len(asked), SKETCHED)]
        return np.asarray(np.log(base) + np.concatenate(parts)) if parts else np.log(base)

    @cached_property
    def _by_length(self) -> _ByLength:
        """What every prediction needs again. Settings differ in three lengths only, and correlations are the dear part: by lengths
        all that is linear in one of them is one product."""
        order = np.argsort(self.settings[:, 1], kind="stable")
        amplitude, lengths, noise = self.settings[order].T
        pull = amplitude[:, None, None] ** 2 * self.inverse[order]
        tangent, factor = self.tangent[order].transpose(0, 2, 1), self.coefficient_factor[order]
        mean = self.whitened[order][:, None, :] @ pull
        rows = np.concatenate([pull, factor @ (tangent @ pull), mean], axis=1).transpose(0, 2, 1)
        bounds = [*np.unique(lengths, return_index=True)[1].tolist(), len(lengths)]
        return _ByLength(
            [(float(lengths[a]), np.ascontiguousarray(rows[a:b])) for a, b in pairwise(bounds)],
            self.shares[order],
            np.ascontiguousarray(self.shares[order][:, :, None] * factor.transpose(0, 2, 1)),
            self.weights[order],
            amplitude[:, None] ** 2,
            noise[:, None] ** 2,
        )

    def _block(self, scaled: FloatArray, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same under all settings at once, for few rows: arrays are (settings, rows) and (settings, rows, terms)."""
        by, known = self._by_length, len(self.points)
        told = np.concatenate(
            [matern(points / length, self.points / length) @ rows for length, rows in by.parts]
        )
        base = np.maximum(by.shares @ scaled.T, 1e-300)
        uncertain = scaled @ by.columns / base[..., None]
        uncertain -= told[..., known:-1]
        whitened = told[..., :known]
        variances = np.einsum("hmk,hmk->hm", uncertain, uncertain) + by.noise
        variances += np.maximum(by.square - np.einsum("hmn,hmn->hm", whitened, whitened), 0.0)
        means = np.log(base) + told[..., -1]
        mean = by.weights @ means
        return mean, by.weights @ (variances + (means - mean) ** 2)

    def coefficients(self) -> FloatArray:
        """Return the weighted coefficients in the units of the design (k,)."""
        return np.asarray(self.weights @ self.shares / self.scale)

    def misfit(self) -> float:
        """How far the form is from the truth: the weighted amplitude of the process, in log units."""
        return float(np.sqrt(self.weights @ self.settings[:, 0] ** 2))

    def noise(self) -> float:
        """Return the weighted noise of one measurement, in log units."""
        return float(np.sqrt(self.weights @ self.settings[:, 2] ** 2))


def fit_residual(design: FloatArray, points: FloatArray, seconds: FloatArray) -> Residual:
    """Fit form and process together: design (n, k), points (n, d) log resources, seconds (n,) above 0.

    All settings are weighed on at most 100 rows, evenly taken; with more rows the best few are fitted on all of them.
    """
    n = len(seconds)
    if n <= _WEIGHED_ROWS:
        return _fit(design, points, seconds, _GRID)
    some = np.linspace(0, n - 1, _WEIGHED_ROWS).astype(np.int64)
    weighed = _fit(design[some], points[some], seconds[some], _GRID)
    best = np.argsort(-weighed.weights)[:_FINALISTS]
    return _fit(design, points, seconds, weighed.settings[best])


def _fit(design: FloatArray, points: FloatArray, seconds: FloatArray, grid: FloatArray) -> Residual:
    scale = _scale(design, seconds)
    inverse, log_determinant = _factors(points, grid)
    rows = design / seconds[:, None] / scale
    shares = _shares(inverse @ rows, inverse.sum(axis=2))
    base = np.maximum(shares @ (design / scale).T, 1e-300)
    whitened = (inverse @ (np.log(seconds) - np.log(base))[..., None])[..., 0]
    tangent = inverse @ ((design / scale)[None] * shares[:, None, :] / base[..., None])
    precision = tangent.transpose(0, 2, 1) @ tangent + np.eye(design.shape[1]) / _LOG_COEFFICIENT_SD**2
    factor = np.linalg.inv(np.linalg.cholesky(precision))
    log_weight = _log_prior(grid) - log_determinant - 0.5 * (whitened**2).sum(1)
    log_weight += np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1)
    weights = np.exp(log_weight - log_weight.max())
    keep = weights > _NEGLIGIBLE_WEIGHT * weights.max()
    weights = weights[keep] / weights[keep].sum()
    return Residual(
        grid[keep],
        weights,
        shares[keep],
        scale,
        points,
        inverse[keep],
        whitened[keep],
        tangent[keep],
        factor[keep],
    )


def _scale(design: FloatArray, seconds: FloatArray) -> FloatArray:
    scale = np.sqrt(np.mean((design / seconds[:, None]) ** 2, axis=0))
    return np.where(scale > 0, scale, 1.0)


def _factors(points: FloatArray, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Inverse Cholesky factors (h, n, n) and half log determinants (h,) of every setting's covariance."""
    lengths = np.unique(grid[:, 1])
    correlation = np.stack([matern(points / length, points / length) for length in lengths])
    amplitude, noise = grid[:, 0, None, None], grid[:, 2, None, None]
    covariance = amplitude**2 * correlation[np.searchsorted(lengths, grid[:, 1])] + noise**2 * np.eye(
        len(points)
    )
    lower = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    half = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
    return _invert_lower(lower), half


def _invert_lower(lower: FloatArray) -> FloatArray:
    """Invert lower triangular matrices (h, n, n) row by row.

    Half the work of a general inverse, and none of LAPACK's threads: on a busy host they wait for one another at every one of
    sixty small matrices, which costs seconds.
    """
    inverse = np.zeros_like(lower)
    for i in range(lower.shape[1]):
        pivot = lower[:, i, i, None]
        inverse[:, i, :i] = -np.einsum("hj,hjk->hk", lower[:, i, :i], inverse[:, :i, :i]) / pivot
        inverse[:, i, i] = 1 / pivot[:, 0]
    return np.asarray(inverse)


def _shares(rows: FloatArray, ones: FloatArray) -> FloatArray:
    """Generalised NNLS of 1 = rows @ c for every setting, with the weak prior: rows (h, n, k), ones (h, n)."""
    gram = rows.transpose(0, 2, 1) @ rows + np.eye(rows.shape[2]) / PRIOR_SHARE**2
    moment = (rows.transpose(0, 2, 1) @ ones[..., None])[..., 0]
    root = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
    return solve_nonnegative_fleet(gram / (root[:, :, None] * root[:, None, :]), moment / root) / root


def _log_prior(grid: FloatArray) -> FloatArray:
    def normal(values: FloatArray, prior: tuple[float, float]) -> FloatArray:
        return np.asarray(-0.5 * (np.log(values / prior[0]) / prior[1]) ** 2)

    return normal(grid[:, 0], _AMPLITUDE_PRIOR) + normal(grid[:, 2], _NOISE_PRIOR)
