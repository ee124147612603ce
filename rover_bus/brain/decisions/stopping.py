"""Stops by target: a loss or AUC reached, or no more gain worth its cost; with the forecast of when.

Fed by the convergence curve and the measured speed, feeds the job's state and its end (`stop` in the job file).
"""

from __future__ import annotations

import msgspec
import numpy as np

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.models.convergence import Forecast, LossCurve
from rover_bus.brain.models.samples import NotEnough


class StopRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a job has done enough. nan: not asked for. AUC targets are watched as 1 - AUC."""

    loss: float = float("nan")
    least_decrease_per_step: float = float("nan")


class StopAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Stop now, or the forecast of when: seconds from now, median and 90 % interval. Infinite: out of reach."""

    stop: bool
    reason: Reason
    eta_s: float = float("inf")
    low_90_s: float = float("inf")
    high_90_s: float = float("inf")


def auc_target(auc: float) -> float:
    """The loss that a target in AUC stands for."""
    return 1.0 - auc


def decide_stop(
    rule: StopRule, curve: LossCurve | NotEnough, recent: list[float], steps_per_s: float
) -> StopAnswer:
    """Stop when the median of the last measured losses reached the target, or when no step gains enough any more.

    `recent` holds the last evaluations, oldest first; three of them decide, so that one lucky batch stops nothing.
    """
    if not np.isnan(rule.loss) and len(recent) >= 3 and float(np.median(recent[-3:])) <= rule.loss:
        return StopAnswer(stop=True, reason=Reason.TARGET_REACHED, eta_s=0.0, low_90_s=0.0, high_90_s=0.0)
    if isinstance(curve, NotEnough):
        return StopAnswer(stop=False, reason=Reason.NOT_ENOUGH_SAMPLES)
    if not np.isnan(rule.least_decrease_per_step):
        flat = curve.steps_to_flat(rule.least_decrease_per_step)
        if flat.high_90 == 0.0:
            return StopAnswer(stop=True, reason=Reason.NO_MORE_GAIN, eta_s=0.0, low_90_s=0.0, high_90_s=0.0)
        if np.isnan(rule.loss):
            return _forecast(flat, steps_per_s, Reason.KEEP)
    if np.isnan(rule.loss):
        return StopAnswer(stop=False, reason=Reason.KEEP)
    ahead = curve.steps_to_loss(rule.loss)
    return _forecast(
        ahead, steps_per_s, Reason.TARGET_OUT_OF_REACH if np.isinf(ahead.low_90) else Reason.KEEP
    )


def _forecast(steps: Forecast, steps_per_s: float, reason: Reason) -> StopAnswer:
    rate = max(steps_per_s, 1e-12)
    return StopAnswer(
        stop=False,
        reason=reason,
        eta_s=steps.steps / rate,
        low_90_s=steps.low_90 / rate,
        high_90_s=steps.high_90 / rate,
    )
