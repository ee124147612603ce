"""NSGA-II over the plan space: the paper's search, selectable, and measured against the exact front.

Fed by a plan space and a vectorised objective, feeds scaling where a space is too large to enumerate (above a million points).
Deb et al. 2002: non-dominated sorting, crowding distance, binary tournament; uniform crossover and steps along one axis of the
grid. The seed is an argument: the same seed gives the same front.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.models.samples import Configurations, FloatArray, IntArray

# Costs and gains of many configurations at once.
Objective = Callable[[Configurations], tuple[FloatArray, FloatArray]]
_AXES = ("workers", "servers", "worker_cores", "server_cores")


def search_front(
    space: PlanSpace, objective: Objective, seed: int, population: int = 100, generations: int = 80
) -> Configurations:
    """Return the non-dominated configurations of the last generation, by rising cost."""
    rng = np.random.default_rng(seed)
    axes = [np.array(getattr(space, name), dtype=np.float64) for name in _AXES]
    lengths = np.array([len(axis) for axis in axes])
    genes = rng.integers(0, lengths, (population, 4))
    scores = _score(genes, axes, objective)
    for _ in range(generations):
        children = _offspring(genes, *_rank(scores), lengths, rng)
        genes = np.unique(np.concatenate([genes, children]), axis=0)
        scores = _score(genes, axes, objective)
        rank, crowding = _rank(scores)
        keep = np.lexsort((-crowding, rank))[:population]
        genes, scores = genes[keep], scores[keep]
    rank, _ = _rank(scores)
    front = np.flatnonzero(rank == 0)
    front = front[np.argsort(scores[front, 0])]
    return _decode(genes[front], axes)


def _decode(genes: IntArray, axes: list[FloatArray]) -> Configurations:
    w, p, worker_cores, server_cores = (axis[genes[:, i]] for i, axis in enumerate(axes))
    return Configurations(w, p, worker_cores, server_cores, np.ones(len(genes)))


def _score(genes: IntArray, axes: list[FloatArray], objective: Objective) -> FloatArray:
    """Both objectives, to be minimised: shape (n, 2)."""
    costs, gains = objective(_decode(genes, axes))
    return np.stack([costs, -gains], axis=1)


def _rank(scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Front number (0 is best) and crowding distance of each individual."""
    no_worse = np.all(scores[:, None, :] <= scores[None, :, :], axis=2)
    dominates = no_worse & ~no_worse.T
    left, rank = dominates.sum(axis=0), np.full(len(scores), -1)
    crowding = np.zeros(len(scores))
    level = 0
    while (rank < 0).any():
        front = np.flatnonzero((rank < 0) & (left == 0))
        rank[front] = level
        crowding[front] = _crowding(scores[front])
        left = left - dominates[front].sum(axis=0)
        level += 1
    return rank, crowding


def _crowding(front: FloatArray) -> FloatArray:
    distance = np.zeros(len(front))
    for objective in front.T:
        order = np.argsort(objective)
        span = max(float(np.ptp(objective)), 1e-300)
        distance[order[[0, -1]]] = np.inf
        distance[order[1:-1]] += (objective[order[2:]] - objective[order[:-2]]) / span
    return distance


def _offspring(
    genes: IntArray, rank: IntArray, crowding: FloatArray, lengths: IntArray, rng: np.random.Generator
) -> IntArray:
    n = len(genes)
    pairs = rng.integers(0, n, (2, 2, n))
    wins = (rank[pairs[:, 0]] < rank[pairs[:, 1]]) | (
        (rank[pairs[:, 0]] == rank[pairs[:, 1]]) & (crowding[pairs[:, 0]] > crowding[pairs[:, 1]])
    )
    mother, father = np.where(wins, pairs[:, 0], pairs[:, 1])
    child = np.where(rng.random((n, 4)) < 0.5, genes[mother], genes[father])
    step = rng.geometric(0.35, (n, 4)) * rng.choice([-1, 1], (n, 4))
    moved = np.where(rng.random((n, 4)) < 0.4, child + step, child)
    return np.asarray(np.clip(moved, 0, lengths - 1))
