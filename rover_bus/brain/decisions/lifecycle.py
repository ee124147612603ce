"""The checks of a plan's life: may it be made now, may it be applied, did it pay, what to do next.

Fed by decisions, quotas and measurements; feeds the events proposed -> checked -> applied -> measured -> kept | rolled back.
Pure: now and the snapshot come in as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits


class ChangeHistory(msgspec.Struct, frozen=True, kw_only=True):
    """When the last change of a job settled, and whether one is under way. Seconds of any monotonic clock."""

    settled_at_s: float = float("-inf")
    in_flight: bool = False
    rollbacks: int = 0


class ChangeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Kept or rolled back, with the numbers."""

    keep: bool
    reason: Reason
    before: float
    after: float
    predicted: float


def may_change(history: ChangeHistory, now_s: float, cooldown_s: float = 30.0) -> Reason | None:
    """Return None when a change may start, else why not. Each roll-back doubles the cooldown, up to 16 times."""
    if history.in_flight:
        return Reason.CHANGE_IN_FLIGHT
    wait = cooldown_s * 2 ** min(history.rollbacks, 4)
    return Reason.COOLDOWN if now_s - history.settled_at_s < wait else None


def check_plan(wanted: Allocation, limits: Limits) -> tuple[Reason, str] | None:
    """Return None when a plan passes, else the constant and the limit it breaks, named (S21, S22)."""
    pinned = [(limits.workers, wanted.workers, "workers"), (limits.servers, wanted.servers, "servers")]
    for pin, value, name in pinned:
        if pin and value != pin:
            return (
                Reason.CONSTRAINED_BY_USER,
                f"{name} are pinned to {pin} by the user; the plan asks for {value}",
            )
    maxima = [
        (limits.max_workers, wanted.workers, "workers"),
        (limits.max_servers, wanted.servers, "servers"),
    ]
    for most, value, name in maxima:
        if value > most:
            return Reason.LIMIT_EXCEEDED, f"{value} {name} exceed the limit of {most}"
    if wanted.workers < 1 or wanted.servers < min(limits.max_servers, 1):
        return Reason.LIMIT_EXCEEDED, "a running job needs one worker and one server at least"
    if wanted.cores > limits.cores:
        return Reason.QUOTA_EXCEEDED, f"{wanted.cores:g} cores exceed the quota of {limits.cores:g}"
    if wanted.memory_bytes > limits.memory_bytes:
        return (
            Reason.QUOTA_EXCEEDED,
            f"{wanted.memory_bytes} bytes exceed the quota of {limits.memory_bytes:g}",
        )
    return None


def judge_change(
    before: Sequence[float],
    after: Sequence[float],
    predicted: float,
    scaled_up: bool,
    least_share: float = 0.5,
    tolerance: float = 0.05,
) -> ChangeVerdict | None:
    """Keep or roll back from measured windows (samples a second); None while fewer than three are there after the change.

    A scale-up is kept when the measured gain is at least `least_share` of the predicted one; a scale-down when throughput
    did not fall by more than predicted and the tolerance (`algorithms.md §5` [ours]; S16).
    """
    if len(after) < 3 or not before:
        return None
    old, new = float(np.median(before)), float(np.median(after))
    if scaled_up and new < old * (1 - tolerance):
        reason, keep = Reason.THROUGHPUT_FELL, False
    elif scaled_up and new - old < least_share * (predicted - old):
        reason, keep = Reason.GAIN_TOO_SMALL, False
    elif not scaled_up and new < min(old, predicted) * (1 - 2 * tolerance):
        reason, keep = Reason.THROUGHPUT_FELL, False
    else:
        reason, keep = Reason.GAIN_CONFIRMED, True
    return ChangeVerdict(keep=keep, reason=reason, before=old, after=new, predicted=predicted)
