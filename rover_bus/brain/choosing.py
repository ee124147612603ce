"""One round of the live Brain: the jobs whose size is open compete for what the cluster has; each gets a wish, or why it is left.

Fed by the decider after windows were closed, feeds `granting` with wishes, shrinks first. The choice is `decisions.rounds`, the
same function that the simulator's policy {1+2+3} calls; here stands which jobs compete, for how much, and how the answer is said.
One round a priority: what higher ones hold is not there for lower ones; what lower ones hold is taken by `granting`, by name (P22).
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.knapsack import choose_greedily
from rover_bus.brain.decisions.plans import Loser, PlanDecision, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import Contender, decide_round
from rover_bus.brain.decisions.scaling import JobView, decide_scaling, plan_front
from rover_bus.brain.granting import cores_left, present, quota_left
from rover_bus.brain.models.samples import Configurations, NotEnough
from rover_bus.brain.predicting import OverruledModel, place_of
from rover_bus.brain.rules import HEADROOM, RULES
from rover_bus.brain.sizing import first_size
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, KnownJob, capacity_of
from rover_bus.brain.wishes import (
    CapacityLeft,
    Wish,
    before_choice,
    cramped,
    declined,
    limits_of,
    predicted,
    size_after,
    view_of,
)
from rover_bus.events.facts import LosingPlan

Answers = dict[str, Wish | CapacityLeft]


def choose_sizes(
    turns: Iterable[str], state: BrainState, quotas: Mapping[str, Budget], standing: StandingModels
) -> Answers:
    """Say what each job whose turn it is wants to be, shrinks first."""
    answers: Answers = {}
    models: dict[str, OverruledModel] = {}
    left_for = cores_left(state, quotas)
    for name in turns:
        job = state.jobs[name]
        answer = before_choice(job, left_for(name), standing)
        if answer is None:
            model = standing.of(job)
            if isinstance(model, NotEnough):
                answer = cramped(job, left_for(name), quota_left(name, state, quotas)) or CapacityLeft(
                    Reason.NOT_ENOUGH_SAMPLES, model.reason
                )
            else:
                models[name] = model
        if answer is not None:
            answers[name] = answer
    for priority in sorted({state.jobs[name].spec.priority for name in models}, reverse=True):
        answers |= _choose(priority, models, state, quotas)

    def growth(name: str) -> float:
        answer, held = answers[name], state.jobs[name].held
        job = state.jobs[name]
        return (
            job.charge(answer.size).cores - (job.charge(held).cores if held else 0.0)
            if isinstance(answer, Wish)
            else 0.0
        )

    return {name: answers[name] for name in sorted(answers, key=growth)}


def contenders_of(
    priority: int, models: Mapping[str, OverruledModel], state: BrainState, quotas: Mapping[str, Budget]
) -> tuple[list[str], list[Contender], Budget]:
    """The jobs that compete within a priority, and for how much. A job under change keeps its size, a waiting one its room."""
    names, contenders = list[str](), list[Contender]()
    higher = [job for job in state.jobs.values() if job.spec.priority > priority]
    for name, job in state.jobs.items():
        if job.spec.priority == priority:
            names.append(name)
            contenders.append(_contender(name, job, models.get(name), state, quotas))
    capacity = capacity_of(state)
    taken = [job.charge(size) for job in higher if (size := present(job)) is not None]
    running = [contender.view.held for contender in contenders if not contender.waiting]
    # Use that was measured may pass what there is: then no job grows, and none is made to shrink by a figure that jitters.
    cores = max(capacity.cores * (1 - HEADROOM) - sum(a.cores for a in taken), sum(a.cores for a in running))
    memory = max(
        capacity.memory_bytes * (1 - HEADROOM) - sum(a.memory_bytes for a in taken),
        sum(a.memory_bytes for a in running),
    )
    return names, contenders, Budget(cores, memory)


def _contender(
    name: str, job: KnownJob, model: OverruledModel | None, state: BrainState, quotas: Mapping[str, Budget]
) -> Contender:
    if job.held is None:
        size, _, _ = first_size(job.spec, state)
        left = float(max(job.total - job.committed, 0)) if job.total else 1e12
        start = JobView(
            held=job.charge(size), batch_size=float(job.spec.data.batch_size), remaining_samples=left
        )
        return Contender(view=start, waiting=True)
    size = present(job) or job.held
    view = view_of(job)
    if model is None:
        return Contender(
            view=JobView(held=job.charge(size), batch_size=view.batch_size, remaining_samples=1.0),
            settled=False,
        )
    limits = limits_of(
        job, quota_left(name, state, quotas)
    )  # the cluster's capacity is the round's own affair
    front = plan_front(view, model, space_of(job), RULES, limits)
    return Contender(view=view, model=model, limits=limits, front=front)


def _choose(
    priority: int, models: Mapping[str, OverruledModel], state: BrainState, quotas: Mapping[str, Budget]
) -> Answers:
    names, contenders, room = contenders_of(priority, models, state, quotas)
    decisions = decide_round(contenders, room.cores, room.memory_bytes, PlanSpace(), RULES, choose_greedily)
    rivals = sum(contender.settled and not contender.waiting for contender in contenders) > 1
    return {
        name: _answer(state.jobs[name], contender, decision, models[name], rivals)
        for name, contender, decision in zip(names, contenders, decisions, strict=True)
        if name in models
    }


def _answer(
    job: KnownJob, contender: Contender, decision: PlanDecision, model: OverruledModel, rivals: bool
) -> Wish | CapacityLeft:
    """A decision of the round in words: what it is for, what it promises, what lost."""
    held = job.held
    assert held is not None
    size = size_after(held, decision.allocation)
    if decision.reason is Reason.NO_CAPACITY:
        return CapacityLeft(Reason.NO_CAPACITY, "all sizes that are known to pay need more than there is")
    if decision.reason is not Reason.BEST_VALUE_UNDER_CAPACITY or size == held:
        return _kept(contender)
    if declined(job, size):
        return CapacityLeft(Reason.DECLINED, "this plan was observed or rejected a while ago")
    alone = decide_scaling(contender.view, model, space_of(job), RULES, contender.limits)
    said = predicted(job, model, size)
    return Wish(
        size=size,
        step="scale",
        constant=_reason(contender, decision, rivals),
        measured=job.throughput,
        predicted=said[0],
        low_90=said[1],
        high_90=said[2],
        scores={name: round(value, 6) for name, value in decision.scores.items() if np.isfinite(value)},
        losers=losers_of(job, decision, alone, model),
        score=decision.scores["value"],
    )


def _reason(contender: Contender, decision: PlanDecision, rivals: bool) -> Reason:
    """More or less, when no other job shares the cluster or it is what the job would take alone; else what was best for all."""
    front = contender.front
    if rivals and front is not None and front.allocations and front.allocations[-1] != decision.allocation:
        return Reason.BEST_VALUE_UNDER_CAPACITY
    more = RULES.prices.cost(decision.allocation) > RULES.prices.cost(contender.view.held)
    return Reason.MORE_THROUGHPUT if more else Reason.LESS_COST


def _kept(contender: Contender) -> CapacityLeft:
    """Why nothing happens, for the user: what the best other size would bring, and whether it is room that is missing."""
    front = contender.front
    if front is None or not len(front.speed):
        return CapacityLeft(Reason.UNCERTAIN, "no size is trusted to be better")
    best = int(np.argmax(front.speed))
    other, gain = (
        front.allocations[best],
        float(front.speed[best]) / max(contender.view.measured_throughput, 1e-12) - 1,
    )
    if other == contender.view.held or gain <= 0:
        full = contender.view.held.cores + contender.view.held.worker_cores > contender.limits.cores
        if full:
            said = (
                f"{contender.limits.cores:g} cores of the quota are left to it: too few for one worker more"
            )
            return CapacityLeft(Reason.QUOTA_EXCEEDED, said)
        return CapacityLeft(Reason.DEAD_BAND, "no size within one step is faster")
    held = contender.view.held
    said = f"{_members(other.workers, 'worker', other.worker_cores, held.worker_cores)} and "
    said += f"{_members(other.servers, 'server', other.server_cores, held.server_cores)} would bring {gain:.0%} more"
    if gain <= RULES.restraint.dead_band:
        return CapacityLeft(Reason.DEAD_BAND, said)
    return CapacityLeft(
        Reason.NO_CAPACITY,
        f"{said}, on {other.cores - held.cores:.1f} cores more than it has: they are not free",
    )


def _members(count: int, noun: str, cores: float, now: float) -> str:
    each = f" of {cores:g} cores" if cores != now else ""
    return f"{count} {noun}{'s' * (count != 1)}{each}"


def _why_not(loser: Loser, decision: PlanDecision, taken: float) -> Reason:
    """Beside what the round chose, whatever the job would have chosen alone: what is better and dearer found no room."""
    if RULES.prices.cost(loser.allocation) < RULES.prices.cost(decision.allocation):
        return Reason.LESS_GAIN
    return Reason.NO_CAPACITY if loser.score > taken else Reason.TOO_DEAR


def losers_of(
    job: KnownJob, decision: PlanDecision, alone: PlanDecision, model: OverruledModel
) -> list[LosingPlan]:
    """The alternatives as a plan carries them, each with what it was believed to reach."""
    held = job.held
    assert held is not None
    losers: list[Loser] = [loser for loser in alone.losers if np.isfinite(loser.score)]
    if alone.allocation not in (decision.allocation, job.charge(held)):
        losers.insert(0, Loser(alone.allocation, Reason.NO_CAPACITY, alone.scores.get("value", 0.0)))
    taken = next((loser.score for loser in losers if loser.allocation == decision.allocation), float("inf"))
    losers = [
        Loser(loser.allocation, _why_not(loser, decision, taken), loser.score)
        for loser in losers
        if loser.allocation != decision.allocation
    ]
    if not losers:
        return []
    sizes = [size_after(held, loser.allocation) for loser in losers]
    said = model.predict(Configurations.from_list([place_of(job, size) for size in sizes]))
    return [
        LosingPlan(
            size=size,
            reason=loser.reason,
            score=round(loser.score, 6),
            throughput=round(float(said.throughput[row]), 3),
        )
        for row, (size, loser) in enumerate(zip(sizes, losers, strict=True))
    ]
