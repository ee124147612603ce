"""One round of the live Brain: the jobs whose size is open compete for what the cluster has; each gets a wish, or why it is left.

Fed by the decider after windows were closed or something happened to the cluster, feeds `granting` with wishes, shrinks first. The
choice is `decisions.rounds`; here stands which jobs compete, for how much, and how the answer is said. Jobs that wait for their
first plan (`starting`) compete like those that run. One round a priority: what higher ones hold is not there for lower ones; what
lower ones hold is taken by `granting`, by name (P22). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

import msgspec
import numpy as np

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.knapsack import choosing, choosing_greedily
from rover_bus.brain.decisions.pieces import Pieces, finish
from rover_bus.brain.decisions.plans import Loser, PlanDecision, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import NOTHING, Contender, deciding_round
from rover_bus.brain.decisions.scaling import PlanFront, ScalingRules, choose_alone
from rover_bus.brain.freezing import frozen
from rover_bus.brain.granting import cores_left_for, quota_left
from rover_bus.brain.marginal import choose_by_gain, goes_by_gain
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.next_best import next_best
from rover_bus.brain.predicting import OverruledModel, rows_of
from rover_bus.brain.rooms import fits_hosts
from rover_bus.brain.rules import HEADROOM, RULES, rules_for
from rover_bus.brain.spaces import no_less, space_of
from rover_bus.brain.standing_models import PROBED_SIZES, StandingModels
from rover_bus.brain.starting import StartOffer, start_with
from rover_bus.brain.state import BrainState, KnownJob, counted
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import (
    CapacityLeft,
    Wish,
    before_choice,
    cramped,
    declined,
    limits_of,
    next_to_measure,
    predicted_all,
    size_after,
    view_of,
)
from rover_bus.events.facts import LosingPlan, Size

_GATHERED, _ANSWERED = (
    0.006,
    0.002,
)  # what a job takes to compete with all others, and to be answered (`pieces`)
NOTHING_FITS = PlanDecision(allocation=NOTHING, reason=Reason.NO_CAPACITY)


class OpenSize(msgspec.Struct, frozen=True):
    """A job whose size is open: what it competes with, and its model."""

    contender: Contender
    model: OverruledModel
    young: bool = False  # its model rests on what use of cores implies: what it chooses is a trial


class Chosen(msgspec.Struct, frozen=True):
    """What a round decided for a job, not in words yet: what it promises and what lost is worked out when its turn comes. `rules`:
    those that it was decided by.
    """

    decision: PlanDecision
    of: OpenSize | StartOffer
    rules: ScalingRules
    rivals: bool = False


Answers = dict[str, Chosen | Wish | CapacityLeft]


def choose_sizes(
    turns: Iterable[str],
    state: BrainState,
    quotas: Mapping[str, Budget],
    standing: StandingModels,
    starts: Mapping[str, StartOffer] | None = None,
) -> dict[str, Wish | CapacityLeft]:
    """Say what each job whose turn it is wants to be, and each that waits with which size it begins (`starts`); shrinks first.

    A round of the service in one piece: it takes the same steps in several (`turns`).
    """
    considered = {name: consider(name, state, quotas, standing) for name in turns}
    opened = {name: each for name, each in considered.items() if isinstance(each, OpenSize)}
    answers: Answers = {n: each for n, each in considered.items() if not isinstance(each, OpenSize)}
    answers |= finish(choosing_among(opened, starts or {}, state, standing))
    return {name: in_words(state.jobs[name], answer) for name, answer in in_order(answers, state)}


def consider(
    name: str, state: BrainState, quotas: Mapping[str, Budget], standing: StandingModels
) -> Wish | CapacityLeft | OpenSize:
    """Say what a running job asks for by itself, or why it is left as it is, or that its size is open and with what it competes."""
    job, cores = state.jobs[name], cores_left_for(name, state, quotas)
    if (left := frozen(job, state)) is not None:
        return left
    if job.held is not None and is_waited_for(name, state):
        cores = min(cores, job.cores_of(job.held))  # what it made room with is not free
    answer = before_choice(job, cores, standing, partial(_has_room, job, state))
    if answer is not None:
        return answer
    model = standing.of(job)
    if isinstance(model, NotEnough):
        missing = cramped(job, cores, quota_left(name, state, quotas))
        return missing or CapacityLeft(Reason.NOT_ENOUGH_SAMPLES, model.reason)
    contender = _contender(name, job, model, state, quotas, standing)
    young = standing.is_young(job)
    if young and (probe := _probe_beyond_trials(job, contender, cores, standing, state)) is not None:
        return probe
    return OpenSize(contender, model, young)


def is_waited_for(name: str, state: BrainState) -> bool:
    """Whether a job that has nothing yet waits for the room that this one makes."""
    return any(name in state.jobs[waiting].waits_for for waiting in totals_of(state).waiting)


def _probe_beyond_trials(
    job: KnownJob, contender: Contender, cores: float, standing: StandingModels, state: BrainState
) -> Wish | None:
    """The size to measure next of a job whose young model finds none better: it may be the model that is wrong."""
    front = contender.front
    assert front is not None
    alone = choose_alone(contender.view, front, RULES)
    if alone.allocation != contender.view.held:
        return None
    return next_to_measure(job, cores, standing, partial(_has_room, job, state))


def choosing_among(
    opened: Mapping[str, OpenSize],
    starts: Mapping[str, StartOffer],
    state: BrainState,
    standing: StandingModels,
) -> Pieces[Answers]:
    """Choose for all that compete together, one priority after another, the highest first; in pieces.

    Between two pieces jobs may end: what is answered of them is void, and the next priority does without them.
    """
    answers: Answers = {}
    competing = {name: each.contender for name, each in opened.items()}
    competing |= {name: start.contender for name, start in starts.items()}
    rules = rules_for(state.fair_share, state.losses.hazard, rings=not totals_of(state).with_servers)
    of_priority = dict[int, list[str]]()
    for name in competing:
        of_priority.setdefault(state.jobs[name].spec.priority, []).append(name)
    yield _GATHERED * len(competing)
    for priority, names in sorted(of_priority.items(), reverse=True):
        own = {name: competing[name] for name in names if name in state.jobs}
        by_gain = {name: each for name, each in own.items() if goes_by_gain(state.jobs[name])}
        if by_gain:
            room = room_for_round(priority, by_gain, state)
            sized = choose_by_gain(by_gain, state, standing, starts, room)
            answers |= sized
            own = {name: each for name, each in own.items() if name not in sized}
        decisions = yield from _choose(priority, own, state, rules)
        for name in own:
            asked = starts[name] if name in starts else opened[name]
            answers[name] = Chosen(decisions.get(name, NOTHING_FITS), asked, rules, len(own) > 1)
            yield _ANSWERED
    return answers


def in_words(job: KnownJob, answer: Chosen | Wish | CapacityLeft) -> Wish | CapacityLeft:
    """Return what was chosen as a wish, with what it promises and what lost, or as the reason why there is none."""
    if not isinstance(answer, Chosen):
        return answer
    if isinstance(answer.of, StartOffer):
        return start_with(job, answer.of, answer.decision)
    said = _answer(job, answer, answer.of)
    return _as_trial(job, said) if answer.of.young and isinstance(said, Wish) else said


def in_order(answers: Answers, state: BrainState) -> list[tuple[str, Chosen | Wish | CapacityLeft]]:
    """Return the answers in the order in which they are carried out."""
    return sorted(answers.items(), key=lambda each: _turn(each[0], each[1], state))


def _has_room(job: KnownJob, state: BrainState, size: Size) -> bool:
    return fits_hosts(job, size, state)


def _turn(name: str, answer: Chosen | Wish | CapacityLeft, state: BrainState) -> tuple[float, ...]:
    """The order in which answers are carried out: what takes nothing, the largest shrink first; then by priority, starts before
    growth: what made room for a start does not take it back.
    """
    job = state.jobs[name]
    if isinstance(answer, CapacityLeft):
        return (0, 0.0)
    if isinstance(answer, Wish):
        cores = job.cores_of(answer.size)
    elif answer.decision.reason is Reason.BEST_VALUE_UNDER_CAPACITY:
        cores = answer.decision.allocation.cores
    else:
        return (0, 0.0)
    growth = cores - (job.cores_of(job.held) if job.held is not None else 0.0)
    return (1, -job.spec.priority, job.held is not None, growth) if growth > 0 else (0, growth)


def room_for_round(priority: int, competing: Collection[str], state: BrainState) -> Budget:
    """What the jobs that compete within a priority may hold together: what betters and the equals that do not compete leave."""
    totals = totals_of(state)
    held = totals.held_from(priority)
    for name in competing:
        held.add(totals.held_by(name), -1)
    capacity, rings = totals.capacity, not totals.with_servers
    share = 1.0 if rings else 1 - HEADROOM  # of whole devices none is left for use that jitters
    return Budget(capacity.cores * share - held.cores, capacity.memory_bytes * share - held.memory_bytes)


def _contender(
    name: str,
    job: KnownJob,
    model: OverruledModel,
    state: BrainState,
    quotas: Mapping[str, Budget],
    standing: StandingModels,
) -> Contender:
    view = view_of(job)
    limits = limits_of(
        job, quota_left(name, state, quotas)
    )  # the cluster's capacity is the round's own affair
    space = space_of(job, standing.varied_servers(job))
    young = standing.is_young(job)
    front = standing.front_of(job, model, view, no_less(space, job) if young else space, limits)
    if young:  # what is not known to pay takes free room only: no other job shrinks for it
        front = _up_to(front, max(cores_left_for(name, state, quotas), view.held.cores))
    return Contender(
        view=view,
        model=model,
        limits=limits,
        front=front,
        age_s=job.clock_s,
        taken_s=job.taken_s,
        stops_s=0.0 if job.spec.has_servers else job.change_s,
        change_s=job.change_s,
    )


def _choose(
    priority: int, own: Mapping[str, Contender], state: BrainState, rules: ScalingRules
) -> Pieces[dict[str, PlanDecision]]:
    room = room_for_round(priority, own, state)
    held = [contender.view.held for contender in own.values() if not contender.waiting]
    cores, memory_bytes = sum(each.cores for each in held), float(sum(each.memory_bytes for each in held))
    if cores > room.cores or memory_bytes > room.memory_bytes:
        # Use that was measured may pass what there is: then no job grows, and none is made to shrink by a figure that jitters.
        own = {name: _no_larger(contender) for name, contender in own.items() if not contender.waiting}
        room = Budget(max(room.cores, cores), max(room.memory_bytes, memory_bytes))
    select = choosing if len(own) > 1 else choosing_greedily  # exactly, among few
    contenders = list(own.values())
    decisions = yield from deciding_round(
        contenders, room.cores, room.memory_bytes, PlanSpace(), rules, select
    )
    return dict(zip(own, decisions, strict=True))


def _no_larger(contender: Contender) -> Contender:
    front, held = contender.front, contender.view.held
    assert front is not None
    return msgspec.structs.replace(contender, front=_up_to(front, held.cores))


def _up_to(front: PlanFront, cores: float) -> PlanFront:
    """The part of a front that needs no more cores than these."""
    less = [row for row, each in enumerate(front.allocations) if each.cores <= cores]
    if len(less) == len(front.allocations):
        return front
    offered = [front.allocations[row] for row in less]
    return PlanFront(offered, front.cost[less], front.speed[less], front.searched, whole=front)


def _answer(job: KnownJob, answer: Chosen, opened: OpenSize) -> Wish | CapacityLeft:
    """A decision of the round in words: what it is for, what it promises, what lost."""
    held, contender, model, decision = job.held, opened.contender, opened.model, answer.decision
    assert held is not None
    size = size_after(held, decision.allocation)
    if decision.reason is Reason.NO_CAPACITY:
        return CapacityLeft(Reason.NO_CAPACITY, "all sizes that are known to pay need more than there is")
    if decision.reason is not Reason.BEST_VALUE_UNDER_CAPACITY or size.shape == held.shape:
        return _kept(contender, answer.rules)
    if declined(job, size):
        return CapacityLeft(Reason.DECLINED, "this plan was observed or rejected a while ago")
    front = contender.front
    assert front is not None
    losers = losers_of(job, decision, choose_alone(contender.view, front, RULES))
    said, *of_losers = predicted_all(job, model, [size, *(lost for lost, _ in losers)])
    constant = _reason(contender, decision, answer.rivals)
    found = f"{constant.replace('_', ' ')}, found by NSGA-II among {front.searched:,} sizes"
    return Wish(
        size=size,
        step="scale",
        constant=constant,
        detail=found if front.searched else "",
        measured=job.throughput,
        predicted=said[0],
        low_90=said[1],
        high_90=said[2],
        scores={name: round(value, 6) for name, value in decision.scores.items() if np.isfinite(value)},
        losers=[
            LosingPlan(size=lost, reason=loser.reason, score=round(loser.score, 6), throughput=throughput)
            for (lost, loser), (throughput, _, _) in zip(losers, of_losers, strict=True)
        ],
        score=decision.scores["value"],
        others=next_best(job, contender, decision),
    )


def _as_trial(job: KnownJob, wish: Wish) -> Wish:
    """Growth of a job of which little was measured: it is measured as a probe is, and taken back only where it brings nothing."""
    known = f"{counted(len(rows_of(job)), 'size')} of {PROBED_SIZES} measured"
    why = wish.constant.replace("_", " ")
    return msgspec.structs.replace(wish, step="probe", detail=f"{why} by what its members use, {known}")


def _reason(contender: Contender, decision: PlanDecision, rivals: bool) -> Reason:
    """More or less, when no other job shares the cluster or it is what the job would take alone; else what was best for all."""
    front = contender.front
    if rivals and front is not None and front.allocations and front.allocations[-1] != decision.allocation:
        return Reason.BEST_VALUE_UNDER_CAPACITY
    more = RULES.prices.cost(decision.allocation) > RULES.prices.cost(contender.view.held)
    return Reason.MORE_THROUGHPUT if more else Reason.LESS_COST


def _kept(contender: Contender, rules: ScalingRules) -> CapacityLeft:
    """Why nothing happens, for the user: what the best other size would bring, and whether it is room that is missing."""
    front = contender.front
    if front is None or not len((front.whole or front).speed):
        return CapacityLeft(Reason.UNCERTAIN, "no size is trusted to be better")
    front = front.whole or front
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
    measured = contender.view.measured_throughput
    enough = measured + rules.restraint.dead_band * float(
        front.speed[best]
    )  # what holding on is worth to the round
    if front.speed[best] <= enough:
        return CapacityLeft(Reason.DEAD_BAND, said)
    if measured and contender.after(front.speed[[best]], measured, rules)[0] <= enough:
        little = "less than the change costs in the time that is left, former ones counted"
        return CapacityLeft(Reason.DEAD_BAND, f"{said}: {little}")
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


def losers_of(job: KnownJob, decision: PlanDecision, alone: PlanDecision) -> list[tuple[Size, Loser]]:
    """The alternatives to what the round chose, with why each lost."""
    held = job.held
    assert held is not None
    losers: list[Loser] = [loser for loser in alone.losers if np.isfinite(loser.score)]
    if alone.allocation not in (decision.allocation, job.charge(held)):
        losers.insert(0, Loser(alone.allocation, Reason.NO_CAPACITY, alone.scores.get("value", 0.0)))
    taken = next((loser.score for loser in losers if loser.allocation == decision.allocation), float("inf"))
    return [
        (
            size_after(held, loser.allocation),
            Loser(loser.allocation, _why_not(loser, decision, taken), loser.score),
        )
        for loser in losers
        if loser.allocation != decision.allocation
    ]
