"""What a change is worth: resource cost, throughput gain with downtime amortised, weight, hazard.

Fed by predictions and prices, feeds scaling and the choice across jobs. All [ours] (`algorithms.md §5`): the paper's exact
weights are not public. Vectorised: every argument may be a number or an array.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.hazard import Hazard
from rover_bus.brain.models.samples import FloatArray

LEAST_SPEEDUP = 0.1


class ScalePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of scaling. `short_jobs_first` is rho: 0 is efficiency, 1 finishes short jobs first."""

    scale_s: float = 30.0  # a change stops the job for this long
    reference_s: float = 3600.0  # T_ref
    short_jobs_first: float = 0.0
    fair_share: float = (
        0.0  # below 0: the power of the mean of speed-ups over the fair share, instead of all that
    )
    hazard: Hazard = Hazard()


def throughput_gain(
    after: ArrayLike, before: ArrayLike, remaining_s: ArrayLike, scale_s: ArrayLike
) -> FloatArray:
    """TG(A'|A) = Psi(A') * (1 - t_scale / max(T_rem, t_scale)) - Psi(A): downtime amortised, never free.

    Throughputs in samples a second. With nothing left to do no change gains.
    """
    scale = np.asarray(scale_s, dtype=np.float64)
    lost = scale / np.maximum(np.maximum(np.asarray(remaining_s, dtype=np.float64), scale), 1e-12)
    return np.asarray(np.asarray(after) * (1.0 - lost) - np.asarray(before))


def job_weight(remaining_s: ArrayLike, reference_s: float, short_jobs_first: float) -> FloatArray:
    """WG = (T_ref / (T_rem + T_ref))^rho: in (0, 1], larger for jobs near their end when rho > 0.

    What is not known (inf) weighs as much as a job with T_ref to go: neither the last of all nor nearly finished.
    """
    left = np.asarray(remaining_s, dtype=np.float64)
    left = np.where(np.isfinite(left), left, reference_s)
    return np.asarray((reference_s / (left + reference_s)) ** short_jobs_first)


def moved_share(age_s: float, taken_s: float, next_s: float) -> float:
    """What changes leave of a job's time, in [0, 1]: (A - R*S) / (A + S), Pollux' factor of a job of age A that changes took R*S
    seconds from (`taken_s`) and the next one stops for S [paper, OSDI 2021 §4.2]. One moved often is moved for much only.
    """
    return max(age_s - taken_s, 0.0) / max(age_s + next_s, 1e-12)


class ChangeCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the next change of a job takes, and what former ones took (`taken_s`) of its `age_s`, in seconds. `stops_s`: for so long
    the next one stops a job that each change stops (a ring); 0 for one that trains on.
    """

    change_s: float
    taken_s: float = 0.0
    age_s: float = 0.0
    stops_s: float = 0.0


def after_change(speed: ArrayLike, before: ArrayLike, remaining_s: ArrayLike, cost: ChangeCost) -> FloatArray:
    """Samples a second that a job is left with by a change to sizes of `speed`, over the `remaining_s` that it has at `before`.

    A change is charged with what it takes, and with what former ones took once more: one moved often is moved for much only, and
    the more the less is left to earn it [ours]. A ring is charged by the share of its age that changes took (`moved_share`).
    """
    again_s = 0.0 if cost.stops_s else cost.taken_s
    left = np.asarray(before) + throughput_gain(speed, before, remaining_s, cost.change_s + again_s)
    if cost.taken_s and cost.stops_s:
        left = left * moved_share(cost.age_s, cost.taken_s, cost.stops_s)
    return np.asarray(left)


def fair_value(speedup: ArrayLike, power: float) -> FloatArray:
    """What a speed-up over the fair share adds to the power mean of all, 0 for none: its sum is largest where the mean is.

    Speed-ups below `LEAST_SPEEDUP` count as that: a job that waits is worth a finite amount [ours]. `power` below 0.
    """
    speedup = np.maximum(np.asarray(speedup, dtype=np.float64), LEAST_SPEEDUP)
    return np.asarray(LEAST_SPEEDUP**power - speedup**power)


def expected_throughput(throughput: ArrayLike, members: ArrayLike, hazard: Hazard) -> FloatArray:
    """Throughput under the failure hazard: "a job on n members that each fail at rate h loses n*h*t_recover"."""
    lost = np.asarray(members, dtype=np.float64) * hazard.failures_per_member_s * hazard.recovery_s
    return np.asarray(np.asarray(throughput) * np.maximum(1.0 - lost, 0.0))
