"""Stage 2 for one job: enumerate its plan space, keep the Pareto front, choose by score, and say why.

Fed by a throughput model (or any predictor), what the job holds, limits and policy; feeds plans, `explain` and `what-if`.
Growth is bounded by what was tried (S17: no job jumps from 3 to 54 workers), a dead-band keeps noise from moving members, and
predictions that are guesses are left alone until they are measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from rover_bus.brain.decisions.nsga2 import search_front
from rover_bus.brain.decisions.pareto import pareto_front
from rover_bus.brain.decisions.plans import GIB, Allocation, Loser, PlanDecision, PlanSpace, Prices
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scoring import (
    ScalePolicy,
    expected_throughput,
    throughput_gain,
)
from rover_bus.brain.models.samples import Configurations, FloatArray, IntArray
from rover_bus.brain.models.throughput import Prediction

MOST_EXAMINED, PRICE_RANGES = 128, 24  # plans that are predicted in full: of more, a sketch says which
MOST_SKETCHED = 4096  # of more plans the sketch looks at every second count, or third: neighbours differ by less than it errs
MOST_OFFERED = (
    64  # plans of a front that a round chooses from: what lies between two of these differs by a few per cent
)
MOST_ENUMERATED = 1 << 20  # plans; beyond it the search is faster than looking at each
_MOST_LOSERS = 8


class Predictor(Protocol):
    """What scaling asks of a model: `ThroughputModel` and `BoundedModel` are such."""

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        ...


Sketch = Callable[[Configurations], FloatArray]


def _sketch(model: Predictor) -> Sketch | None:
    """A model's way to say more cheaply, and less exactly, what it would predict, if it has one.

    A protocol that is checked at run time would say the same in ten times the time.
    """
    found: Sketch | None = getattr(model, "sketch", None)
    return found


def sketch_of(model: Predictor, at: Configurations) -> FloatArray:
    """Return about what a model would predict, as cheaply as it can."""
    sketch = _sketch(model)
    return sketch(at) if sketch is not None else model.predict(at).throughput


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan may not pass: the user's pins and maxima, the quota left to this job. 0 means not pinned, inf no limit.

    `measured_workers`: the least and the most that were measured of it; between these a round goes as far as it likes.
    """

    workers: int = 0
    servers: int = 0
    least_workers: int = 1
    max_workers: int = 64
    max_servers: int = 16
    cores: float = float("inf")
    memory_bytes: float = float("inf")
    measured_workers: tuple[int, int] | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """What scaling knows of a job. Table memory is the whole job's and is split over its servers."""

    held: Allocation
    batch_size: float
    remaining_samples: float
    table_bytes: int = 0
    measured_throughput: float = 0.0  # samples a second; 0: not measured, the prediction stands for it


class Restraint(msgspec.Struct, frozen=True, kw_only=True):
    """How far one change may go."""

    growth: float = 2.0  # of counts, at most this factor a round, either way
    core_growth: float = 4.0  # of a member's cores, upwards: they join nothing, and what they can bring is bounded by their use
    dead_band: float = 0.05  # smaller relative gains of throughput or cost are left alone
    keep_throughput: float = 0.97  # savings may cost at most 1 - this of it
    least_return: float = 0.5  # the last 1 % of cost must bring this many % of throughput
    tries: bool = False  # a round across jobs may pick a plan that is a guess: growth is bounded, measured and taken back


class ScalingRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster's operator sets once for all jobs."""

    prices: Prices = Prices()
    policy: ScalePolicy = ScalePolicy()
    restraint: Restraint = Restraint()
    search: Literal["exact", "nsga2"] = (
        "exact"  # nsga2: the paper's search, used by itself above a million plans
    )
    seed: int = 0  # of that search


DEFAULT_RULES = ScalingRules()
NO_LIMITS = Limits()


class _Space(msgspec.Struct, frozen=True):
    at: Configurations
    cost: FloatArray
    speed: FloatArray
    low: FloatArray
    guess: FloatArray


class BesideHeld(NamedTuple):
    """A front's offers and what is held among them, the least first: `rows` of the front, -1 for what is held."""

    rows: IntArray
    allocations: list[Allocation]
    usage: FloatArray


class PlanFront(msgspec.Struct, frozen=True, dict=True):
    """One job's offers by rising cost: allocations, price, and throughput under the hazard in samples a second.

    `searched`: in how many plans NSGA-II found them; 0 where each was looked at. `dearer`: the next ones, whose last step would
    not pay: no offers, but what was passed over. `whole`: the front that this one is the affordable part of; None: all of it is.
    """

    allocations: list[Allocation]
    cost: FloatArray
    speed: FloatArray
    searched: int = 0
    dearer: PlanFront | None = None
    whole: PlanFront | None = None

    @cached_property
    def usage(self) -> FloatArray:
        """Cores and GiB of each offer (n, 2)."""
        return usage_of(self.allocations)

    def beside(self, held: Allocation) -> BesideHeld:
        """Return the offers with what is held, which is offered once. A front that stands is asked for the same one each time."""
        known: tuple[Allocation, BesideHeld] | None = vars(self).get("_beside")
        if known is None or known[0] != held:
            rows = [row for row, each in enumerate(self.allocations) if each != held]
            usage = np.concatenate([self.usage[rows], usage_of([held])])
            order = np.lexsort((usage[:, 1], usage[:, 0]))
            of_front = np.array([*rows, -1])[order]
            allocations = [self.allocations[row] if row >= 0 else held for row in of_front]
            known = vars(self)["_beside"] = held, BesideHeld(of_front, allocations, usage[order])
        return known[1]


def usage_of(allocations: Sequence[Allocation]) -> FloatArray:
    """Cores and GiB of each allocation (n, 2): what a round shares out."""
    rows = [(each.cores, each.memory_bytes / GIB) for each in allocations]
    return np.array(rows, dtype=float).reshape(len(rows), 2)


def plan_front(
    job: JobView,
    model: Predictor,
    space: PlanSpace,
    rules: ScalingRules = DEFAULT_RULES,
    limits: Limits = NO_LIMITS,
) -> PlanFront:
    """The Pareto front that a choice across jobs may pick from: as far as one change goes, no guesses, and no plan beyond the
    one that this job would choose alone (its last step would not pay). Empty when nothing is trusted.
    """
    near = _bounded(space, job.held, limits, rules.restraint)
    plans = _doubted(_plans(job, model, near, rules), job.held)
    if rules.restraint.tries:
        plans = msgspec.structs.replace(plans, guess=np.zeros_like(plans.guess))
    front = _front(plans, job, limits)
    end = len(front)
    if end:
        end = int(np.argmax(_utility(plans.speed[front], plans.cost[front], rules.restraint))) + 1
    offered = _rows(plans, front[_evenly(end, MOST_OFFERED)], job)
    dearer = _rows(plans, front[end : end + _MOST_LOSERS], job)
    searched = 0 if _enumerates(near, rules) else len(near)
    return msgspec.structs.replace(offered, searched=searched, dearer=dearer)


def _evenly(length: int, most: int) -> IntArray:
    """At most so many indices of a length, evenly taken, the first and the last among them."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)


def _rows(plans: _Space, rows: IntArray, job: JobView) -> PlanFront:
    a_worker, at = job.held.worker_memory_bytes, plans.at.take(rows)
    a_server = {servers: _server_bytes(job, int(servers)) for servers in set(at.ps.tolist())}
    allocations = [
        Allocation(
            workers=int(w),
            servers=int(p),
            worker_cores=worker_cores,
            server_cores=server_cores,
            worker_memory_bytes=a_worker,
            server_memory_bytes=a_server[p],
        )
        for w, p, worker_cores, server_cores, _ in zip(*(each.tolist() for each in at.columns()), strict=True)
    ]
    return PlanFront(allocations, plans.cost[rows], plans.speed[rows])


def choose_alone(job: JobView, front: PlanFront, rules: ScalingRules = DEFAULT_RULES) -> PlanDecision:
    """Say what a job that was measured would take of its front if it were alone, and name what it would pass over.

    Plans are ranked by  ln(throughput after downtime) - least_return * ln(cost): the last 1 % of cost must bring that many % of
    throughput. One fixed ranking for growing and shrinking: no plan is undone by the next, and prices have no unit [ours].
    """
    dearer = front.dearer or PlanFront([], front.cost[:0], front.speed[:0])
    cost, speed = np.concatenate([front.cost, dearer.cost]), np.concatenate([front.speed, dearer.speed])
    allocations = [*front.allocations, *dearer.allocations]
    held_cost = rules.prices.cost(job.held)
    held = float(expected_throughput(job.measured_throughput, job.held.members, rules.policy.hazard))
    gain = throughput_gain(speed, held, job.remaining_samples / max(held, 1e-12), rules.policy.scale_s)
    better = _utility(gain + held, cost, rules.restraint) - _utility(held, held_cost, rules.restraint)
    best = len(front.allocations) - 1
    chosen = best if best >= 0 and better[best] > rules.restraint.dead_band else None
    ranked = [int(row) for row in np.argsort(-better, kind="stable") if row != chosen][:_MOST_LOSERS]
    reasons = [Reason.LESS_GAIN if chosen is not None and row < chosen else Reason.TOO_DEAR for row in ranked]
    losers = tuple(
        Loser(allocations[row], reason, float(better[row]))
        for row, reason in zip(ranked, reasons, strict=True)
    )
    if chosen is None:
        reason = Reason.DEAD_BAND if allocations else Reason.UNCERTAIN
        return PlanDecision(allocation=job.held, reason=reason, losers=losers)
    return PlanDecision(
        allocation=allocations[chosen],
        reason=Reason.MORE_THROUGHPUT if cost[chosen] > held_cost else Reason.LESS_COST,
        scores={
            "throughput": float(speed[chosen]),
            "cost": float(cost[chosen]),
            "value": float(better[chosen]),
        },
        losers=losers,
    )


def decide_loss(
    job: JobView, lost: int, model: Predictor, rules: ScalingRules = DEFAULT_RULES
) -> PlanDecision:
    """Decide whether the places of lost workers are filled: `job.held` is what there was before, all lost ones counted at once.

    The same ranking as `choose_alone`, without its dead-band: that keeps what runs from being changed for little, and these
    places are empty. Never below one worker.
    """
    held = job.held
    counts = range(max(held.workers - lost, 1), held.workers + 1)
    at = [held.replace(workers=workers).configuration(job.batch_size) for workers in counts]
    plans = _evaluate(job, model, Configurations.from_list(at), rules)
    believed = (plans.guess == 0) | rules.restraint.tries
    value = np.where(believed, _utility(plans.speed, plans.cost, rules.restraint), -np.inf)
    best = int(np.argmax(value)) if believed[-1] else len(value) - 1
    return PlanDecision(
        allocation=held.replace(workers=counts[best]),
        reason=Reason.REPLACE_LOST if counts[best] == held.workers else Reason.SHRINK_AFTER_LOSS,
        scores={
            "throughput_lost": 1 - float(plans.speed[best] / plans.speed[-1]),
            "cost_saved": 1 - float(plans.cost[best] / max(plans.cost[-1], 1e-12)),
        },
    )


def what_if(
    job: JobView, model: Predictor, wanted: Allocation, prices: Prices = DEFAULT_RULES.prices
) -> dict[str, float]:
    """What the planner believes of an allocation that is named: throughput with interval, cost, time to the end."""
    said = model.predict(Configurations.from_list([wanted.configuration(job.batch_size)]))
    speed = float(said.throughput[0])
    return {
        "throughput": speed,
        "low_90": float(said.low_90[0]),
        "high_90": float(said.high_90[0]),
        "guess": float(said.guess[0]),
        "cost": prices.cost(wanted),
        "remaining_s": job.remaining_samples / max(speed, 1e-12),
    }


def _bounded(space: PlanSpace, held: Allocation, limits: Limits, restraint: Restraint) -> PlanSpace:
    """The part of the space that one round may reach: growth, the user's pins and maxima."""
    factor, core_factor = restraint.growth, max(restraint.growth, restraint.core_growth)
    fewest, most = limits.measured_workers or (held.workers, held.workers)
    low = Allocation(
        workers=limits.workers or min(max(int(held.workers / factor), 1), fewest),
        servers=limits.servers or max(int(held.servers / factor), 1),
        worker_cores=held.worker_cores / factor,
        server_cores=held.server_cores / factor,
    )
    high = Allocation(
        workers=limits.workers or min(max(int(held.workers * factor), most), limits.max_workers),
        servers=limits.servers or min(int(held.servers * factor), limits.max_servers),
        worker_cores=held.worker_cores * core_factor,
        server_cores=held.server_cores * core_factor,
    )
    return space.within(low, high)


def _plans(job: JobView, model: Predictor, space: PlanSpace, rules: ScalingRules) -> _Space:
    """Every plan of the space, or the front that the search found."""
    if _enumerates(space, rules):
        sketch = _sketch(model)
        at = (_thinned(space, job.held) if sketch else space).configurations(job.batch_size)
        if sketch is not None and len(at) > MOST_EXAMINED:
            at = at.take(_promising(_cost(job, at, rules.prices), sketch(at)))
        return _evaluate(job, model, at, rules)

    def objective(at: Configurations) -> tuple[FloatArray, FloatArray]:
        plans = _evaluate(job, model, _with_batch(at, job.batch_size), rules)
        return plans.cost, plans.speed

    return _evaluate(
        job, model, _with_batch(search_front(space, objective, rules.seed), job.batch_size), rules
    )


def _thinned(space: PlanSpace, held: Allocation) -> PlanSpace:
    """The space with fewer counts of workers, then of servers, where it is larger than what is sketched: the bounds and what is
    held stay, and what goes is next to what stays.
    """
    for axis, kept in (("workers", held.workers), ("servers", held.servers)):
        values = getattr(space, axis)
        most = max(MOST_SKETCHED * len(values) // max(len(space), 1), MOST_OFFERED // 4)
        if len(space) > MOST_SKETCHED and len(values) > most:
            chosen = {values[row] for row in _evenly(len(values), most)} | ({kept} & {*values})
            space = dataclasses.replace(space, **{axis: tuple(sorted(chosen))})
    return space


def _promising(cost: FloatArray, speed: FloatArray) -> IntArray:
    """Return the plans that may be on the front: the front of the sketch, and in each price range what comes nearest to it."""
    order = _by_rising(cost)
    fastest = np.maximum.accumulate(speed[order])
    behind = 1 - speed[order] / np.maximum(fastest, 1e-12)
    front = np.flatnonzero(np.diff(fastest, prepend=0.0) > 0)
    thinned = front[_evenly(len(front), MOST_EXAMINED // 2)]
    behind[front] = np.inf  # the others of it are not nearer than what was taken
    each = -(-MOST_EXAMINED // (2 * PRICE_RANGES))
    width = max(-(-len(order) // PRICE_RANGES), each)
    padded = np.full(PRICE_RANGES * width, np.inf)
    padded[: len(order)] = behind
    nearest = np.argpartition(padded.reshape(PRICE_RANGES, width), each - 1, axis=1)[:, :each]
    near = (nearest + width * np.arange(PRICE_RANGES)[:, None]).ravel()
    return np.unique(order[np.concatenate([thinned, near[near < len(order)]])])


def _by_rising(cost: FloatArray) -> IntArray:
    """Indices of costs (n,), none below 0, by rising cost, of equal ones (to nine figures) the first first.

    Bits of floats that are not negative rise as they do, so that cost and index fit in one integer, and thousands of integers are
    sorted in a tenth of the time.
    """
    index = (1 << len(cost).bit_length()) - 1
    keys = (np.ascontiguousarray(cost) + 0.0).view(np.int64) & ~index
    keys |= np.arange(len(cost))
    keys.sort()
    return np.asarray(keys & index)


def _enumerates(space: PlanSpace, rules: ScalingRules) -> bool:
    return rules.search == "exact" and len(space) <= MOST_ENUMERATED


def _with_batch(at: Configurations, batch_size: float) -> Configurations:
    return Configurations(at.workers, at.ps, at.worker_cores, at.ps_cores, np.full(len(at), batch_size))


def _evaluate(job: JobView, model: Predictor, at: Configurations, rules: ScalingRules) -> _Space:
    policy = rules.policy
    said = model.predict(at)
    members = at.workers + at.ps
    return _Space(
        at,
        _cost(job, at, rules.prices),
        expected_throughput(said.throughput, members, policy.hazard),
        expected_throughput(said.low_90, members, policy.hazard),
        said.guess.astype(np.float64),
    )


def _doubted(plans: _Space, held: Allocation) -> _Space:
    """The plans, with half of the doubt counted against each that takes something from a job: what it gives up is known, what
    that costs is not.
    """
    at = plans.at
    takes = (at.workers < held.workers) | (at.ps < held.servers)
    takes |= (at.worker_cores < held.worker_cores) | (at.ps_cores < held.server_cores)
    return msgspec.structs.replace(
        plans, speed=np.where(takes, np.sqrt(plans.speed * plans.low), plans.speed)
    )


def _cost(job: JobView, at: Configurations, prices: Prices) -> FloatArray:
    memory = at.workers * job.held.worker_memory_bytes + at.ps * _own_bytes(job) + job.table_bytes
    cores = at.workers * at.worker_cores + at.ps * at.ps_cores
    return np.asarray(prices.core * cores + prices.memory_gib * memory / GIB)


def _own_bytes(job: JobView) -> int:
    """What a server needs besides its share of the tables."""
    return max(job.held.server_memory_bytes - job.table_bytes // max(job.held.servers, 1), 0)


def _server_bytes(job: JobView, servers: int) -> int:
    return _own_bytes(job) + -(-job.table_bytes // max(servers, 1)) if job.held.server_memory_bytes else 0


def _allowed(plans: _Space, job: JobView, limits: Limits) -> IntArray:
    at = plans.at
    cores = at.workers * at.worker_cores + at.ps * at.ps_cores
    memory = at.workers * job.held.worker_memory_bytes + at.ps * _own_bytes(job) + job.table_bytes
    within = (cores <= limits.cores) & (memory <= limits.memory_bytes)
    within &= (at.workers <= limits.max_workers) & (at.ps <= limits.max_servers)
    return np.flatnonzero(within & (plans.guess == 0))


def _front(plans: _Space, job: JobView, limits: Limits) -> IntArray:
    """The Pareto front of the plans that are allowed, by rising cost."""
    allowed = _allowed(plans, job, limits)
    return np.asarray(allowed[pareto_front(plans.cost[allowed], plans.speed[allowed])])


def _utility(speed: FloatArray | float, cost: FloatArray | float, restraint: Restraint) -> FloatArray:
    """How good a plan is: throughput in log, less the cost at the return that is asked of it."""
    return np.asarray(
        np.log(np.maximum(speed, 1e-12)) - restraint.least_return * np.log(np.maximum(cost, 1e-12))
    )
