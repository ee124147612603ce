"""How a job learns: Optimus' loss curve, and the steps that remain.

Fed by (step, loss) samples, feeds Optimus' policy (Q, the steps left) and stops by target with a forecast of when.

    l(k) = 1/(b0*k + b1) + b2        b0, b1, b2 >= 0, by NNLS on the observed losses        (`algorithms.md §2` [paper])

For a given floor b2 the curve is linear in 1/(l - b2): the floor is averaged over a grid by its likelihood, so that the
forecast carries an interval: early curves hardly tell their floor, and a point estimate hides it [ours].
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.samples import FloatArray, NotEnough

_LEAST_POINTS = 6
_FLOORS = 80
# Gauss-Hermite nodes: three a coefficient describe its normal posterior.
_NODES = np.array([-1.7320508, 0.0, 1.7320508])
_NODE_WEIGHTS = np.array([1 / 6, 2 / 3, 1 / 6])
_NEVER = float("inf")


class Forecast(msgspec.Struct, frozen=True):
    """Steps from now on: median and 90 % interval; infinite where the curve never gets there."""

    steps: float
    low_90: float
    high_90: float


@dataclass(frozen=True, eq=False)
class LossCurve:
    """A weighted cloud of curves (b0, b1, b2), shape (n, 3); `best` the likeliest, `step` the last one observed."""

    curves: FloatArray
    weights: FloatArray
    best: FloatArray
    step: float

    def loss(self, steps: ArrayLike) -> FloatArray:
        """Loss at absolute steps by the likeliest curve."""
        b0, b1, b2 = self.best
        return np.asarray(1 / (b0 * np.asarray(steps, dtype=np.float64) + b1) + b2)

    def steps_to_loss(self, target: float) -> Forecast:
        """Steps left until the loss is `target`."""
        b0, b1, b2 = self.curves.T
        above = target > b2
        at = np.where(above, (1 / np.where(above, target - b2, 1.0) - b1) / b0, _NEVER)
        return self._forecast(at)

    def steps_to_flat(self, decrease_per_step: float) -> Forecast:
        """Steps left until one more step lowers the loss by less than this: Optimus' convergence, no more gain."""
        b0, b1, _ = self.curves.T
        return self._forecast((np.sqrt(b0 / decrease_per_step) - b1) / b0)

    def _forecast(self, at: FloatArray) -> Forecast:
        left = np.maximum(at - self.step, 0.0)
        order = np.argsort(left)
        cumulated = np.cumsum(self.weights[order])
        found = [
            float(left[order[np.searchsorted(cumulated, q).clip(0, len(order) - 1)]])
            for q in (0.5, 0.05, 0.95)
        ]
        return Forecast(*found)


def fit_loss_curve(steps: ArrayLike, losses: ArrayLike) -> LossCurve | NotEnough:
    """Fit to observed losses (n,) at increasing steps (n,). Needs six points and a loss that falls.

    Use it with 1 - AUC for a target in AUC: the form asks only for a quantity that falls to a floor.
    """
    k, observed = np.asarray(steps, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    finite = np.isfinite(k) & np.isfinite(observed) & (observed > 0)
    k, observed = k[finite], _without_outliers(observed[finite])
    if len(k) < _LEAST_POINTS:
        return NotEnough(f"{len(k)} losses; six are the least", _LEAST_POINTS - len(k))
    fits = [fit for floor in _floors(observed) if (fit := _fit_floor(k, observed, floor)) is not None]
    if not fits:
        return NotEnough("the loss does not fall yet", _LEAST_POINTS)
    log_weight = np.array([fit[2] for fit in fits])
    weight = np.exp(log_weight - log_weight.max())
    curves = np.concatenate([_cloud(fit[0], fit[1]) for fit in fits])
    weights = np.concatenate([w * np.outer(_NODE_WEIGHTS, _NODE_WEIGHTS).ravel() for w in weight])
    usable = (curves[:, 0] > 0) & (curves[:, 1] >= 0)
    return LossCurve(
        curves[usable],
        weights[usable] / weights[usable].sum(),
        fits[int(log_weight.argmax())][0],
        float(k.max()),
    )


def _floors(observed: FloatArray) -> FloatArray:
    """Every floor below the lowest loss is as likely as any other before the data speaks."""
    return np.asarray(np.linspace(0.0, 0.999 * float(observed.min()), _FLOORS))


_FloorFit = tuple[FloatArray, FloatArray, float]


def _fit_floor(k: FloatArray, observed: FloatArray, floor: float) -> _FloorFit | None:
    """Weighted line through 1/(l - floor): curve (3,), covariance of (b0, b1), log likelihood; None when it does not fall."""
    height = np.maximum(observed - floor, 1e-12)
    # An error in l is an error in 1/(l - floor) times (l - floor)^2: the weights keep the errors those of the loss.
    rows = np.stack([k, np.ones_like(k)], axis=1) * (height**2)[:, None]
    solution, *_ = np.linalg.lstsq(rows, height, rcond=None)
    if solution[1] < 0:
        solution = np.array([float(rows[:, 0] @ height / (rows[:, 0] @ rows[:, 0])), 0.0])
    if solution[0] <= 0:
        return None
    predicted = 1 / np.maximum(solution[0] * k + solution[1], 1e-12) + floor
    error = float(np.sum((observed - predicted) ** 2)) + 1e-12
    freedom = max(len(k) - 3, 1)
    covariance = error / freedom * np.linalg.pinv(rows.T @ rows)
    return np.array([*solution, floor]), covariance, -0.5 * freedom * float(np.log(error))


def _cloud(curve: FloatArray, covariance: FloatArray) -> FloatArray:
    """Nine curves that carry the normal uncertainty of (b0, b1)."""
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors * np.sqrt(np.maximum(values, 0.0))
    offsets = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), axis=-1).reshape(-1, 2) @ axes.T
    return np.asarray(np.c_[curve[:2] + offsets, np.full(len(offsets), curve[2])])


def _without_outliers(observed: FloatArray) -> FloatArray:
    """Points outside their neighbours' range by more than it become their median (Optimus drops outliers as well)."""
    if len(observed) < 5:
        return observed
    padded = np.pad(observed, 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 5)
    middle = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - middle[:, None]), axis=1) * 1.4826 + 1e-12
    inner = np.arange(len(observed))
    edge = (inner < 2) | (inner >= len(observed) - 2)
    outlying = (np.abs(observed - middle) > 6 * spread) & ~edge
    return np.asarray(np.where(outlying, middle, observed))
