"""One round across jobs whose models are their own: fronts, one choice under capacity, room for those that wait.

Fed by what each job holds, its model and how much is left; feeds plans. Any model serves (synchronous, input-bound, rings, with
its intervals), a waiting job competes with running ones, and a job that is being changed is left alone. `algorithms.md §5` [ours].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.decisions.knapsack import Choice, DoesNotFit, Offers, choosing
from rover_bus.brain.decisions.pieces import Pieces
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanDecision, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import (
    DEFAULT_RULES,
    NO_LIMITS,
    JobView,
    Limits,
    PlanFront,
    Predictor,
    ScalingRules,
    plan_front,
    usage_of,
)
from rover_bus.brain.decisions.scoring import (
    ChangeCost,
    after_change,
    expected_throughput,
    fair_value,
    job_weight,
)
from rover_bus.brain.models.samples import Configurations, FloatArray

NOTHING = Allocation(workers=0, servers=0)
# A job of which nothing is known: what a part of its first plan is worth (concave, as all measured jobs are).
CONCAVITY = 0.7


_NO_ROOM = 1e-9  # cores, GiB: shares of what there is are taken of it
_OFFERED = 0.1  # what a job's offers take to be made (`pieces`), and its decision;
_GATHERED, _DECIDED = 0.002, 0.004  # to be put beside all others', and to be said


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """One job in a round. `view.held` of a waiting job is the start that it asks for. `settled`: a change may begin.

    `taken_s`: what its former changes took of its `age_s`; `stops_s`: for so long the next one stops it (`after`).
    `front` may bring a front that is still valid. A waiting job of which nothing is known brings one of its own, in shares of its
    first size's speed; without any it gets nothing.
    """

    view: JobView
    model: Predictor | None = None
    limits: Limits = NO_LIMITS
    waiting: bool = False
    settled: bool = True
    weight: float = 1.0
    front: PlanFront | None = None
    age_s: float = 0.0
    taken_s: float = 0.0
    stops_s: float = 0.0
    change_s: float | None = None  # None: that of the rules

    def after(self, speed: FloatArray, held_speed: float, rules: ScalingRules) -> FloatArray:
        """Samples a second that it is left with by a change to sizes of these speeds: what changes cost is charged."""
        remaining_s = self.view.remaining_samples / max(held_speed, 1e-12)
        change_s = rules.policy.scale_s if self.change_s is None else self.change_s
        cost = ChangeCost(change_s=change_s, taken_s=self.taken_s, age_s=self.age_s, stops_s=self.stops_s)
        return after_change(speed, held_speed, remaining_s, cost)


@dataclass(frozen=True, slots=True)
class _Options:
    """What a job may get, the least first: allocations, what each is worth, samples a second, and cores and GiB (n, 2)."""

    allocations: Sequence[Allocation]
    value: FloatArray
    throughput: FloatArray
    usage: FloatArray


def deciding_round(
    contenders: Sequence[Contender],
    cores: float,
    memory_bytes: float,
    space: PlanSpace,
    rules: ScalingRules = DEFAULT_RULES,
    select: Callable[[Offers], Pieces[Choice]] = choosing,
) -> Pieces[list[PlanDecision]]:
    """Decide for every contender, in their order: what it shall hold under `cores` and `memory_bytes` of all together.

    A waiting job that finds no room gets nothing (`no_capacity`) and costs nothing. What runs keeps running: its least offer
    is its cheapest plan.
    When not even these fit, every job keeps what it holds and none starts.
    """
    if not contenders:
        return []
    share, options = cores / len(contenders), list[_Options]()
    for contender in contenders:
        options.append(_options(contender, space, rules, share))
        yield _OFFERED
    width = max(len(offered.value) for offered in options)
    value = np.full((len(options), width), -np.inf)
    usage = np.zeros((len(options), width, 2))
    for row, offered in enumerate(options):
        value[row, : len(offered.value)] = offered.value
        usage[row, : len(offered.value)] = offered.usage
    yield _GATHERED * len(options)
    try:
        room = np.maximum([cores, memory_bytes / GIB], _NO_ROOM)
        choice = yield from select(Offers(value, usage, room))
    except DoesNotFit:
        return [_kept(contender) for contender in contenders]
    decisions = list[PlanDecision]()
    for contender, offered, picked in zip(contenders, options, choice.offers, strict=True):
        decisions.append(_decision(contender, offered, int(picked)))
        yield _DECIDED
    return decisions


def _options(contender: Contender, space: PlanSpace, rules: ScalingRules, share: float) -> _Options:
    """What a job may get, the least first. `share`: the cores that each job has where all have as many."""
    front = contender.front
    if front is None and contender.model is not None and contender.settled:
        front = plan_front(contender.view, contender.model, space, rules, contender.limits)
    if front is not None and len(front.allocations):
        return _from_front(contender, front, rules, share)
    if contender.waiting:
        return _with_nothing([], np.zeros(0), np.zeros(0), np.zeros((0, 2)))
    held = [contender.view.held]
    return _Options(held, np.zeros(1), np.zeros(1), usage_of(held))


def _from_front(contender: Contender, front: PlanFront, rules: ScalingRules, share: float) -> _Options:
    """The front's plans, downtime charged, and what is held with the dead-band in its favour; nothing, for a job that waits."""
    view, policy = contender.view, rules.policy
    held_speed = view.measured_throughput or _predicted(contender, view.held, rules)
    best = max(float(front.speed.max()), held_speed, 1e-12)
    speed = front.speed
    if not contender.waiting:
        speed = contender.after(front.speed, held_speed, rules)
    fair = _fair_speed(contender, share, rules) if policy.fair_share else 0.0
    value = _worth(contender, speed, best, fair, rules)
    if contender.waiting:
        return _with_nothing(front.allocations, value, front.speed, front.usage)
    stays = _worth(contender, held_speed + rules.restraint.dead_band * best, best, fair, rules)
    # The knapsack falls back on offer 0 of all: it must be the one that needs least.
    beside = front.beside(view.held)
    value, throughput = np.append(value, stays), np.append(front.speed, held_speed)  # row -1 is what is held
    return _Options(beside.allocations, value[beside.rows], throughput[beside.rows], beside.usage)


def _with_nothing(
    allocations: Sequence[Allocation], value: FloatArray, throughput: FloatArray, usage: FloatArray
) -> _Options:
    """The offers of a job that waits: it may also get nothing, and costs nothing."""
    nothing = np.zeros(1)
    return _Options(
        [NOTHING, *allocations],
        np.concatenate([nothing, value]),
        np.concatenate([nothing, throughput]),
        np.concatenate([np.zeros((1, 2)), usage]),
    )


def _worth(
    contender: Contender, speed: ArrayLike, best: float, fair: float, rules: ScalingRules
) -> FloatArray:
    """What speeds are worth under the objective: as shares of the best, or as speed-ups over the fair share (`fair` above 0)."""
    if fair:
        return contender.weight * fair_value(np.asarray(speed) / fair, rules.policy.fair_share)
    weight = contender.weight * _weight(contender.view.remaining_samples / best, rules)
    return np.asarray(weight * np.asarray(speed) / best)


def _fair_speed(contender: Contender, share: float, rules: ScalingRules) -> float:
    """Samples a second that a job would reach on its share of the cluster, its members as large as they are. Where nothing is known
    its first size counts as 1, and others by their cores.
    """
    held, limits = contender.view.held, contender.limits
    if contender.model is None:
        return float((share / max(held.cores, 1e-9)) ** CONCAVITY)
    servers = held.servers * held.server_cores
    a_worker = max(held.worker_cores + servers / max(held.workers, 1), 1e-9)
    most = limits.workers or limits.max_workers
    workers = min(max(share / a_worker, 1.0), most)
    low, part = int(workers), workers - int(workers)
    ends = [_predicted(contender, held.replace(workers=count), rules) for count in (low, min(low + 1, most))]
    return ends[0] * (1 - part) + ends[1] * part


def _weight(remaining_s: float, rules: ScalingRules) -> float:
    return float(job_weight(remaining_s, rules.policy.reference_s, rules.policy.short_jobs_first))


def _predicted(contender: Contender, allocation: Allocation, rules: ScalingRules) -> float:
    if contender.model is None or allocation.workers < 1:
        return 0.0
    at = Configurations.from_list([allocation.configuration(contender.view.batch_size)])
    speed = contender.model.predict(at).throughput[0]
    return float(expected_throughput(speed, allocation.members, rules.policy.hazard))


def _kept(contender: Contender) -> PlanDecision:
    allocation = NOTHING if contender.waiting else contender.view.held
    return PlanDecision(allocation=allocation, reason=Reason.NO_CAPACITY)


def _decision(contender: Contender, offered: _Options, picked: int) -> PlanDecision:
    allocation = offered.allocations[picked]
    scores = {"value": float(offered.value[picked]), "throughput": float(offered.throughput[picked])}
    if allocation == NOTHING:
        return PlanDecision(allocation=NOTHING, reason=Reason.NO_CAPACITY, scores=scores)
    kept = allocation == contender.view.held and not contender.waiting
    reason = Reason.KEEP if kept else Reason.BEST_VALUE_UNDER_CAPACITY
    return PlanDecision(allocation=allocation, reason=reason, scores=scores)
