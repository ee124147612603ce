"""One planning round over thousands of jobs: fit, fronts, choice under capacity, typed plans, placement; vectorised.

Fed by the statistics of all jobs (asynchronous form) and what they hold, feeds plans. Apart from `scaling`, which plans one job
by exact enumeration and explains it: here 4,000 spaces of 65,536 plans each have to fit into a second.

The trick is that throughput nearly separates:  m/Psi = A(lw)/w + B(lp)/p + C/(w*p).  Money levels are common to all jobs, so that
a side's best container at a level is one argmin over the sizes, and a job's front is one argmin over the splits of each budget.
The front holds about 40 budgets a factor 1.2 apart; `bench/brain.py` prints its loss against exact enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.decisions.knapsack import Choice, Offers, choose
from rover_bus.brain.decisions.placement import Node, Placement, place_jobs
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanSpace, Prices
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scoring import ScalePolicy, expected_throughput, job_weight, throughput_gain
from rover_bus.brain.models.nnls import solve_nonnegative_fleet
from rover_bus.brain.models.samples import FloatArray, IntArray
from rover_bus.brain.models.statistics import PRIOR_NOISE, PRIOR_SHARE

Float32 = NDArray[np.float32]
_WORKER_LEVELS = 44
_SERVER_LEVELS = 26
_BUDGETS = 40
_JOBS_AT_ONCE = 256  # chunks of jobs whose arrays stay in the cache


@dataclass(frozen=True, eq=False)
class Fleet:
    """Columns, one row a job. Held counts and sizes, what a member needs, what is left to do.

    `coefficients` (j, 5) of `models.forms.ASYNCHRONOUS`, seconds; `batch_size` samples; memory in GiB: a worker, a server
    without its share of the tables, the tables of the whole job; `remaining_samples`; `weight` by priority, above 0.
    """

    coefficients: FloatArray
    batch_size: FloatArray
    workers: IntArray
    servers: IntArray
    worker_cores: FloatArray
    server_cores: FloatArray
    worker_gib: FloatArray
    server_gib: FloatArray
    tables_gib: FloatArray
    remaining_samples: FloatArray
    weight: FloatArray

    def __len__(self) -> int:
        return len(self.workers)

    def take(self, rows: slice) -> Fleet:
        """Return some jobs."""
        return Fleet(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class Fronts:
    """Each job's offers (j, k): counts, sizes, throughput in samples a second. Column 0 is what the job holds."""

    workers: FloatArray
    servers: FloatArray
    worker_cores: FloatArray
    server_cores: FloatArray
    throughput: FloatArray


class FleetPlan(msgspec.Struct, frozen=True):
    """One job's plan out of a round."""

    job: int
    allocation: Allocation
    reason: Reason
    throughput: float
    value: float
    placement: Placement


@dataclass(frozen=True, eq=False)
class Round:
    """The outcome of a planning round."""

    plans: list[FleetPlan]
    choice: Choice


def fit_fleet(grams: FloatArray, moments: FloatArray, weights: FloatArray) -> FloatArray:
    """Coefficients (j, k) of all jobs from their statistics: grams (j, k, k), moments (j, k), weights (j,).

    The same regression as `models.statistics.fit_line`, for a fleet.
    """
    scale = np.sqrt(np.diagonal(grams, axis1=1, axis2=2) / np.maximum(weights, 1e-12)[:, None])
    scale = np.where(scale > 0, scale, 1.0)
    scaled = grams / (scale[:, :, None] * scale[:, None, :])
    scaled = scaled + np.eye(grams.shape[1]) * (PRIOR_NOISE / PRIOR_SHARE) ** 2
    return np.asarray(solve_nonnegative_fleet(scaled, moments / scale) / scale)


def plan_round(
    fleet: Fleet,
    nodes: list[Node],
    prices: Prices,
    policy: ScalePolicy,
    space: PlanSpace | None = None,
    headroom: float = 0.05,
) -> Round:
    """Plan all jobs against the nodes' free capacity (what the jobs hold counted as free) and place them.

    `headroom` is the share of capacity left for the scraps that whole containers leave on nodes. A job that finds no room
    says so (`does_not_fit_any_node`): it shall keep what it holds.
    """
    fronts = fleet_fronts(fleet, prices, space or PlanSpace())
    capacity = np.array([sum(node.cores for node in nodes), sum(node.memory_bytes for node in nodes) / GIB])
    capacity = capacity * (1 - headroom)
    largest_gib = max((node.memory_bytes for node in nodes), default=0) / GIB
    offers = fleet_offers(fleet, fronts, capacity, policy, largest_gib)
    choice = choose(offers)
    allocations = _allocations(fleet, fronts, choice.offers)
    placements = place_jobs(allocations, nodes)
    rows = np.arange(len(fleet))
    speeds = fronts.throughput[rows, choice.offers].tolist()
    values = offers.value[rows, choice.offers].tolist()
    reasons = map(_reason, choice.offers.tolist(), placements)
    columns = zip(range(len(fleet)), allocations, reasons, speeds, values, placements, strict=True)
    return Round([FleetPlan(*column) for column in columns], choice)


def _reason(offer: int, placement: Placement) -> Reason:
    if placement.missing:
        return Reason.DOES_NOT_FIT_ANY_NODE
    return Reason.BEST_VALUE_UNDER_CAPACITY if offer else Reason.KEEP


def fleet_offers(
    fleet: Fleet, fronts: Fronts, capacity: FloatArray, policy: ScalePolicy, largest_gib: float = np.inf
) -> Offers:
    """Value and usage (cores, GiB) of every offer. Value is weighted gain as a share of the job's best throughput.

    Offers whose servers need more than `largest_gib` are no offers; what a job holds always is one.
    """
    cores = fronts.workers * fronts.worker_cores + fronts.servers * fronts.server_cores
    gib = fronts.workers * fleet.worker_gib[:, None] + fronts.servers * fleet.server_gib[:, None]
    gib = gib + fleet.tables_gib[:, None]
    speed = expected_throughput(fronts.throughput, fronts.workers + fronts.servers, policy.hazard)
    held = speed[:, :1]
    remaining = (fleet.remaining_samples / np.maximum(held[:, 0], 1e-12))[:, None]
    gain = throughput_gain(speed, held, remaining, policy.scale_s)
    gain[:, 0] = 0.0
    best = np.maximum(speed.max(axis=1), 1e-12)[:, None]
    weight = job_weight(remaining, policy.reference_s, policy.short_jobs_first) * fleet.weight[:, None]
    value = weight * (gain + held) / best
    server_gib = fleet.server_gib[:, None] + fleet.tables_gib[:, None] / np.maximum(fronts.servers, 1)
    value[:, 1:] = np.where(server_gib[:, 1:] <= largest_gib, value[:, 1:], -np.inf)
    return Offers(value, np.stack([cores, gib], axis=2), capacity)


def fleet_fronts(fleet: Fleet, prices: Prices, space: PlanSpace) -> Fronts:
    """The fronts of all jobs, in chunks that stay in the cache."""
    parts = [
        _fronts(fleet.take(slice(first, first + _JOBS_AT_ONCE)), prices, space)
        for first in range(0, len(fleet), _JOBS_AT_ONCE)
    ]
    return Fronts(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Fronts.__dataclass_fields__)
    )


def _fronts(fleet: Fleet, prices: Prices, space: PlanSpace) -> Fronts:
    worker_levels, server_levels, budgets = _levels(fleet, prices, space)
    a1, a2, a3, a4, b = (column[:, None, None] for column in fleet.coefficients.T.astype(np.float32))
    m = fleet.batch_size.astype(np.float32)[:, None, None]
    worker_sizes, server_sizes = (
        np.array(space.worker_cores, np.float32),
        np.array(space.server_cores, np.float32),
    )
    # Growth is bounded to twice what is held (algorithms.md §5).
    w = _affordable(
        worker_levels, worker_sizes, fleet.worker_gib, prices, _bound(space.workers, fleet.workers)
    )
    p = _affordable(
        server_levels, server_sizes, fleet.server_gib, prices, _bound(space.servers, fleet.servers)
    )
    lw, worker_time, w = _best_size(a1 * m / worker_sizes + b, w)
    lp, server_time, p = _best_size(a2 / server_sizes + a3, p)
    at_worker, at_server, inverse = _best_split(
        worker_time,
        server_time,
        a4[:, :, 0] * m[:, :, 0],
        w,
        p,
        _partners(worker_levels, server_levels, budgets),
    )
    rows, found = np.arange(len(fleet))[:, None], np.isfinite(inverse)
    offered = (
        w[rows, at_worker],
        p[rows, at_server],
        worker_sizes[lw[rows, at_worker]],
        server_sizes[lp[rows, at_server]],
        m[:, :, 0] / inverse,
    )
    held = (fleet.workers, fleet.servers, fleet.worker_cores, fleet.server_cores, held_throughput(fleet))
    columns = [np.c_[now, np.where(found, new, now[:, None])] for now, new in zip(held, offered, strict=True)]
    return Fronts(columns[0], columns[1], columns[2], columns[3], columns[4])


def _bound(counts: tuple[int, ...], held: IntArray) -> IntArray:
    return np.minimum(counts[-1], 2 * held)


def _partners(worker_levels: FloatArray, server_levels: FloatArray, budgets: FloatArray) -> IntArray:
    """The worker level that each server level leaves of each budget, -1 for none: (budgets, server levels)."""
    left = budgets[:, None] - server_levels[None, :]
    return np.asarray(np.searchsorted(worker_levels, left, side="right") - 1, dtype=np.int64)


def _best_split(
    worker_time: Float32, server_time: Float32, cross: Float32, w: Float32, p: Float32, partner: IntArray
) -> tuple[IntArray, IntArray, Float32]:
    """Best split of each budget: worker level, server level, and seconds a sample times m (j, budgets); inf for none."""
    jobs, (budgets, servers) = len(w), partner.shape
    flat = np.maximum(partner, 0).ravel()
    one_over_w = 1 / np.maximum(w, 1)
    time = np.take(worker_time, flat, axis=1).reshape(jobs, budgets, servers)
    time += server_time[:, None, :]
    crossing = np.take(one_over_w, flat, axis=1).reshape(jobs, budgets, servers)
    crossing *= (cross / np.maximum(p, 1))[:, None, :]
    time += crossing
    time += np.where(partner >= 0, 0, np.inf).astype(np.float32)
    best = time.argmin(axis=2)
    rows, lines = np.arange(jobs)[:, None], np.arange(budgets)[None, :]
    return partner[lines, best], best, time[rows, lines, best]


def held_throughput(fleet: Fleet) -> FloatArray:
    """Predicted samples a second of what each job holds, by the asynchronous form (j,)."""
    a1, a2, a3, a4, b = fleet.coefficients.T
    w, p, m = fleet.workers, fleet.servers, fleet.batch_size
    seconds = a1 * m / fleet.worker_cores + a2 * w / (p * fleet.server_cores) + a3 * w / p + a4 * m / p + b
    return np.asarray(w * m / np.maximum(seconds, 1e-12))


def _levels(fleet: Fleet, prices: Prices, space: PlanSpace) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Money levels of workers, of servers, and of both together, geometric, common to the jobs of a chunk."""
    most_w = _dearest(_bound(space.workers, fleet.workers), space.worker_cores, fleet.worker_gib, prices)
    most_p = _dearest(_bound(space.servers, fleet.servers), space.server_cores, fleet.server_gib, prices)
    least_w = prices.core * space.worker_cores[0] + prices.memory_gib * float(fleet.worker_gib.min())
    least_p = prices.core * space.server_cores[0] + prices.memory_gib * float(fleet.server_gib.min())
    return (
        np.geomspace(least_w, most_w, _WORKER_LEVELS),
        np.geomspace(least_p, most_p, _SERVER_LEVELS),
        np.geomspace(least_w + least_p, most_w + most_p, _BUDGETS),
    )


def _dearest(counts: IntArray, sizes: tuple[float, ...], gib: FloatArray, prices: Prices) -> float:
    return float(np.max(counts * (prices.core * sizes[-1] + prices.memory_gib * gib)))


def _affordable(
    levels: FloatArray, sizes: Float32, gib: FloatArray, prices: Prices, most: IntArray
) -> Float32:
    """How many members of each size each level pays for: (j, levels, sizes), at most `most` (j,)."""
    unit = (prices.core * sizes[None, :] + prices.memory_gib * gib[:, None]).astype(np.float32)
    paid = (levels * (1 + 1e-6)).astype(np.float32)[None, :, None] / unit[:, None, :]
    return np.asarray(np.minimum(np.floor(paid, out=paid), most.astype(np.float32)[:, None, None]))


def _best_size(seconds: Float32, count: Float32) -> tuple[IntArray, Float32, Float32]:
    """Best container of each level: its index, seconds over count, how many; infinite where nothing is affordable."""
    with np.errstate(divide="ignore"):
        time = np.where(count > 0, (seconds + np.float32(1e-12)) / count, np.float32(np.inf))
    best = time.argmin(axis=2)
    rows, levels = np.ogrid[: time.shape[0], : time.shape[1]]
    return best, time[rows, levels, best], count[rows, levels, best]


def _allocations(fleet: Fleet, fronts: Fronts, choice: IntArray) -> list[Allocation]:
    rows = np.arange(len(fleet))
    w, p, lw, lp = (
        column[rows, choice]
        for column in (fronts.workers, fronts.servers, fronts.worker_cores, fronts.server_cores)
    )
    server_bytes = ((fleet.server_gib + fleet.tables_gib / np.maximum(p, 1)) * GIB).astype(np.int64)
    columns = (w.astype(int), p.astype(int), lw, lp, (fleet.worker_gib * GIB).astype(np.int64), server_bytes)
    return [
        Allocation(
            workers=workers,
            servers=servers,
            worker_cores=worker_cores,
            server_cores=server_cores,
            worker_memory_bytes=worker_bytes,
            server_memory_bytes=bytes_,
        )
        for workers, servers, worker_cores, server_cores, worker_bytes, bytes_ in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
