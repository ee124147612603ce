"""The exact Pareto front of cost against gain, by enumeration.

Fed by the costs and predicted gains of a whole plan space, feeds scaling. A plan space has some 10^5 points; sorting all of
them takes a few ms, so nothing is searched (`algorithms.md §5` [ours]).
"""

from __future__ import annotations

import numpy as np

from rover_bus.brain.models.samples import FloatArray, IntArray


def pareto_front(costs: FloatArray, gains: FloatArray) -> IntArray:
    """Return the indices of the plans that no other beats in cost and gain, by rising cost; shape (front,).

    Of equal plans the first one found stays. A plan with a gain that is not finite is never on the front.
    """
    if not len(costs):
        return np.empty(0, dtype=np.int64)
    gains = np.where(np.isfinite(gains), gains, -np.inf)
    order = np.argsort(costs)
    sorted_gains = gains[order]
    best_before = np.maximum.accumulate(np.r_[-np.inf, sorted_gains[:-1]])
    better = order[sorted_gains > best_before]
    # Of equal cost only the last, best one stays: an unstable sort may put a worse one first.
    last = np.r_[np.diff(costs[better]) > 0, True] if len(better) else np.empty(0, dtype=np.bool_)
    return np.asarray(better[last], dtype=np.int64)


def hypervolume(costs: FloatArray, gains: FloatArray, worst_cost: float) -> float:
    """Area that a front dominates between its plans, zero gain and `worst_cost`: larger is better."""
    front = pareto_front(costs, gains)
    front = front[costs[front] <= worst_cost]
    edges = np.r_[costs[front], worst_cost]
    return float(np.sum(np.diff(edges) * np.maximum(gains[front], 0.0)))
