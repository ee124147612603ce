"""What a job takes instead, where no host has room for the size that a round chose for it.

Fed by the round (`choosing`) with its front, and by `settling` when hosts refuse; feeds `granting` with sizes, the fastest first.
Pure; docs/design/0058.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

import msgspec
import numpy as np

from rover_bus.brain.decisions.plans import Allocation, PlanDecision, PlanSpace
from rover_bus.brain.decisions.rounds import Contender
from rover_bus.brain.decisions.scaling import PlanFront, plan_front
from rover_bus.brain.granting import quota_left
from rover_bus.brain.marginal import goes_by_gain
from rover_bus.brain.models.rings import RingModel
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.predicting import place_of
from rover_bus.brain.rooms import free_of, most_on_a_host, scatters
from rover_bus.brain.rules import RULES, rules_of
from rover_bus.brain.spaces import no_less, space_of
from rover_bus.brain.standing_models import A_FRONT, StandingModels
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import Wish, declined, in_figures, limits_of, promise, size_after, view_of
from rover_bus.events.facts import Size

MOST_OTHERS = 18  # that are tried in turn where hosts have no room for the best
CHOSEN_BY_ROUNDS = ("scale", "probe")


def next_best(job: KnownJob, contender: Contender, decision: PlanDecision) -> list[Size]:
    """What a job takes instead, where no host has room for what was chosen: of growth the fastest first, of a shrink what gives
    others as much room, the fastest first, then what gives them most.
    """
    front, held, view = contender.front, job.held, contender.view
    assert front is not None
    assert held is not None
    if decision.allocation.cores < view.held.cores:
        rows = _smaller(front, decision.allocation, view.held)
    else:
        least = view.measured_throughput * (1 + RULES.restraint.dead_band)
        taken = decision.scores["throughput"]
        fastest = [int(row) for row in np.argsort(-front.speed) if least < front.speed[row] < taken]
        rows = _some_of(fastest, front, view.held)
    sizes = [size_after(held, front.allocations[row]) for row in rows]
    return [size for size in sizes if size.shape != held.shape and not declined(job, size)]


def _smaller(front: PlanFront, chosen: Allocation, held: Allocation) -> list[int]:
    """The rows of a front that need no more cores than what was chosen, then those that need less than what is held.

    Fewer servers need more memory each, which may be on no host; a shrink that is refused for it leaves the room of all it holds to
    no other job.
    """
    cores = [each.cores for each in front.allocations]
    fastest = [int(row) for row in np.argsort(-front.speed)]
    as_much = [row for row in fastest if cores[row] <= chosen.cores and front.allocations[row] != chosen]
    less = sorted((row for row in fastest if chosen.cores < cores[row] < held.cores), key=cores.__getitem__)
    return [*_some_of(as_much, front, held), *_some_of(less, front, held)]


def next_in_room(
    name: str, job: KnownJob, wish: Wish, state: BrainState, standing: StandingModels
) -> list[Size]:
    """The best sizes of a job whose members grow no further than hosts have room for, at no more cost than what was chosen.

    A front knows no hosts: where wide servers have no room to grow more of them may be best, which a front of all sizes leaves out.
    """
    model, held = standing.of(job), job.held
    of_round = wish.step in CHOSEN_BY_ROUNDS and job.spec.has_servers and not goes_by_gain(job)
    if isinstance(model, NotEnough) or held is None or not of_round:
        return []
    view, limits = view_of(job), limits_of(job, quota_left(name, state, state.quotas))
    space = space_of(job, standing.varied_servers(job))
    space = _in_room(no_less(space, job) if standing.is_young(job) else space, job, state)
    front = plan_front(view, model, space, rules_of(job.spec.plan, state.losses.hazard), limits)
    standing.spent += A_FRONT
    most, least = job.charge(wish.size).cores, view.measured_throughput * (1 + RULES.restraint.dead_band)
    rows = [int(row) for row in np.argsort(-front.speed) if front.speed[row] > least]
    within = [front.allocations[row] for row in rows if front.allocations[row].cores <= most]
    sizes = [size_after(held, each) for each in within[:: max(-(-len(within) // MOST_OTHERS), 1)]]
    return [
        size for size in sizes if size.shape not in (held.shape, wish.size.shape) and not declined(job, size)
    ]


def gathered(job: KnownJob, wish: Wish, state: BrainState, standing: StandingModels) -> Wish | None:
    """What a ring takes where it would be scattered over hosts of which one could hold it: that, or as many workers as one has room
    for, which may be faster; None where neither is faster than what it holds. Other wishes are as they are.
    """
    size, held = wish.size, job.held.workers if job.held is not None else 0
    chosen = wish.step in ("start", *CHOSEN_BY_ROUNDS) and not job.spec.workers.count
    if not chosen or size.workers <= held or not scatters(job, size, state):
        return wish
    model = standing.of(job)  # not sooner: a look at a model may fit it
    count = most_on_a_host(job, size, state)
    fewer = size.replace(workers=count) if count >= max(job.spec.workers.least, held + 1) else None
    if fewer is not None and declined(job, fewer):
        fewer = None
    if isinstance(model, NotEnough) or not isinstance(model.fitted, RingModel):
        if fewer is None:
            return wish
        return promise(job, model, wish, fewer) if held else msgspec.structs.replace(wish, size=fewer)
    apart, low_90, high_90 = in_figures(model.fitted.across(place_of(job, size)))
    worth = 1 + RULES.restraint.dead_band
    enough = job.throughput * worth if held else 0.0
    if fewer is not None:
        on_one = promise(job, model, wish, fewer)
        if on_one.predicted > max(enough, apart / worth):
            return on_one
    if apart <= enough:
        return None
    return msgspec.structs.replace(wish, predicted=apart, low_90=low_90, high_90=high_90)


def _in_room(space: PlanSpace, job: KnownJob, state: BrainState) -> PlanSpace:
    """The part of a space whose members hosts have room for: servers grow where they stand, a worker may also go elsewhere."""
    assert job.held is not None
    held = job.charge(job.held)
    roomiest = max(free_of(host, state).cores for host in islice(totals_of(state).roomiest(state), 1))
    servers = held.server_cores + _growth_where_they_stand(job, "ps", state)
    workers = max(held.worker_cores + _growth_where_they_stand(job, "worker", state), roomiest)
    return PlanSpace(
        space.workers,
        space.servers,
        tuple(cores for cores in space.worker_cores if cores <= workers) or (held.worker_cores,),
        tuple(cores for cores in space.server_cores if cores <= servers) or (held.server_cores,),
    )


def _growth_where_they_stand(job: KnownJob, role: str, state: BrainState) -> float:
    """Cores that each member of a role could have more where it is, if all of them grow; workers make way for servers."""
    on = Counter(job.where[m.name] for m in job.members if m.role == role and m.name in job.where)
    beside = Counter(job.where[m.name] for m in job.members if m.role != role and m.name in job.where)
    leaving = job.cores_each(job.held)[0] if job.held is not None and role == "ps" else 0.0
    rooms = [
        (free_of(host, state).cores + leaving * beside[host]) / count
        for host, count in on.items()
        if host in state.hosts
    ]
    return max(min(rooms, default=0.0), 0.0)


def _some_of(rows: list[int], front: PlanFront, held: Allocation) -> list[int]:
    """A few of the rows, in their order: evenly taken, and the first that leave servers as they are, which may have no room
    to be other ones where they stand.
    """
    spread = rows[:: max(-(-len(rows) // MOST_OTHERS), 1)]
    as_served = [row for row in rows if _servers_of(front.allocations[row]) == _servers_of(held)]
    kept = {*spread, *as_served[: MOST_OTHERS // 2]}
    return [row for row in rows if row in kept]


def _servers_of(each: Allocation) -> tuple[int, float]:
    return each.servers, each.server_cores
