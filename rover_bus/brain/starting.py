"""How a job begins: with the size that its family's model finds best for what there is, or, where nothing is known, a small one.

Fed by a waiting job, feeds the round (`choosing`), in which it competes with those that run; and says the round's answer as a wish.
Apart from `sizing`, which knows the first size of a job alone: here is how much of it is offered. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.plans import Allocation, PlanDecision, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import CONCAVITY, Contender
from rover_bus.brain.decisions.scaling import JobView, Limits, PlanFront
from rover_bus.brain.granting import quota_left
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.predicting import OverruledModel
from rover_bus.brain.rules import RULES
from rover_bus.brain.sizing import NARROW, narrowed, size_to_begin_with
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, FamilySample, KnownJob, counted
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import CapacityLeft, Wish, predicted, samples_left, size_after
from rover_bus.events.facts import Size
from rover_bus.events.job import JobSpec, RoleSpec

PARTS = (4, 2, 1)
MOST_OTHERS = 6  # that are tried where hosts have no room for the best


class StartOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting job asks for. `first`: its size alone; `why`: where that comes from; `model`: None where none is known."""

    first: Size
    why: PlanDecision
    contender: Contender
    model: OverruledModel | None = None
    samples: int = 0  # that the model rests on


def offer_start(
    name: str, job: KnownJob, state: BrainState, quotas: Mapping[str, Budget], standing: StandingModels
) -> StartOffer:
    """Return what a job that waits for its first plan competes with."""
    first, why = size_to_begin_with(job, state)
    model = _model_of(job, standing)
    if not isinstance(model, NotEnough) and not job.spec.servers.count:
        first = _with_known_servers(first, job.spec.servers, standing.shown(job), state)
    held, spec = job.charge(first), job.spec
    limits = Limits(
        workers=spec.workers.count,
        servers=spec.servers.count or (first.servers if job.released is not None else 0),
        max_workers=max(spec.workers.max_count, first.workers),
        max_servers=max(spec.servers.max_count, first.servers),
        cores=quota_left(name, state, quotas),
    )
    # Without a model speeds are shares of the first size's: how many seconds are left is not known.
    left = float("inf") if isinstance(model, NotEnough) else samples_left(job)
    view = JobView(
        held=held,
        batch_size=float(spec.data.batch_size),
        remaining_samples=left,
        table_bytes=_split_tables(first, spec, state),
    )
    front = None
    if not isinstance(model, NotEnough):
        space = _that_hosts_hold(space_of(job, standing.varied_servers(job), first), first, state)
        front = standing.front_of(job, model, view, space, limits)
    known = front is not None and len(front.allocations) > 0
    narrow = job.charge(narrowed(first, job))
    contender = Contender(
        view=view,
        model=None if isinstance(model, NotEnough) else model,
        limits=limits,
        waiting=True,
        front=front if known else _small_front(held, narrow, limits, spec.workers.least),
    )
    return StartOffer(
        first=first,
        why=why,
        contender=contender,
        model=model if known and not isinstance(model, NotEnough) else None,
        samples=len(standing.shown(job)),
    )


def _model_of(job: KnownJob, standing: StandingModels) -> OverruledModel | NotEnough:
    """The model of a family where it rests on measured sizes: for what is only implied no running job shrinks."""
    if job.released is not None:
        return NotEnough("it asks for what it had")
    return NotEnough("too few sizes were measured") if standing.is_young(job) else standing.of(job)


def _with_known_servers(
    first: Size, role: RoleSpec, shown: Sequence[FamilySample], state: BrainState
) -> Size:
    """The first size with as many servers as its family was measured with, where no run has had as many as that."""
    largest = totals_of(state).largest_host_bytes
    tables = first.server_memory_bytes * first.servers
    counts = [
        each.at.ps
        for each in shown
        if 0 < each.at.ps <= role.max_count and role.least <= each.at.ps and tables <= largest * each.at.ps
    ]
    if first.servers in counts or not counts:
        return first
    return first.replace(servers=counts[-1], server_memory_bytes=-(-tables // counts[-1]))


def _small_front(first: Allocation, narrow: Allocation, limits: Limits, least: int) -> PlanFront:
    """The first size, or with a part of its workers, at least `least`, each as it is or with narrower members."""
    counts = sorted({max(first.workers // part, least) for part in PARTS})
    counts = [first.workers] if limits.workers else counts
    kinds = ((narrow, NARROW), (first, 1.0)) if narrow != first else ((first, 1.0),)
    # Shares of what is unknown.
    worth = {
        kind.replace(workers=count): share * (count / max(first.workers, 1)) ** CONCAVITY
        for count in counts
        for kind, share in kinds
    }
    offered = sorted((plan for plan in worth if plan.cores <= limits.cores), key=RULES.prices.cost)
    cost, speed = [RULES.prices.cost(plan) for plan in offered], [worth[plan] for plan in offered]
    return PlanFront(offered, np.array(cost), np.array(speed))


def start_with(job: KnownJob, start: StartOffer, decision: PlanDecision) -> Wish | CapacityLeft:
    """The round's answer to a job that waits."""
    if not decision.allocation.workers:
        return CapacityLeft(Reason.NO_CAPACITY, "what runs brings more with the room that a start would take")
    size = _begun_with(start, decision.allocation)
    front, model = start.contender.front, start.model
    assert front is not None
    less = [int(row) for row in np.argsort(-front.speed) if front.speed[row] < decision.scores["throughput"]]
    rows = less[:: max(-(-len(less) // MOST_OTHERS), 1)]  # the next best, down to the least
    others = [_begun_with(start, front.allocations[row]) for row in rows]
    if model is None:
        detail = _left_out(start, size)
        return Wish(size=size, step="start", constant=start.why.reason, detail=detail, others=others)
    middle, low, high = predicted(job, model, size)
    pinned = start.why.reason is Reason.CONSTRAINED_BY_USER
    shown = f"best for all by {counted(start.samples, 'size')} that its family has shown"
    return Wish(
        size=size,
        step="start",
        constant=start.why.reason if pinned else Reason.WARM_START,
        detail=start.why.detail if pinned else shown,
        predicted=middle,
        low_90=low,
        high_90=high,
        score=decision.scores.get("value", 0.0),
        others=others,
    )


def _split_tables(first: Size, spec: JobSpec, state: BrainState) -> int:
    """Bytes of tables that a start splits over its servers: all of them.

    0 for a job whose limits follow no forecast, unless no host is large enough for a server as it was asked for: what one needs
    besides its tables is not known, and a limit that proves too small would stay.
    """
    largest = totals_of(state).largest_host_bytes
    splits = spec.plan.relief or first.server_memory_bytes > largest
    return first.server_memory_bytes * first.servers if splits else 0


def _that_hosts_hold(space: PlanSpace, first: Size, state: BrainState) -> PlanSpace:
    """The part of a space whose servers, with their shares of the tables, some host is large enough for."""
    tables = first.server_memory_bytes * first.servers
    largest = totals_of(state).largest_host_bytes
    counts = tuple(count for count in space.servers if tables <= largest * count)
    return dataclasses.replace(space, servers=counts or space.servers[-1:])


def _begun_with(start: StartOffer, allocation: Allocation) -> Size:
    """The first size with the counts and cores of an allocation, and its share of tables that are split for each server."""
    size, tables = size_after(start.first, allocation), start.contender.view.table_bytes
    return size.replace(server_memory_bytes=-(-tables // max(size.servers, 1))) if tables else size


def _left_out(start: StartOffer, size: Size) -> str:
    """Where a start of which nothing is known comes from, with what was left out of it."""
    detail = start.why.detail
    if size.workers < start.first.workers:
        detail += f"; {size.workers} of {counted(start.first.workers, 'worker')}: the cluster is crowded"
    if size.worker_cores < start.first.worker_cores or size.server_cores < start.first.server_cores:
        detail += "; with fewer cores a member, for which there is room"
    return detail
