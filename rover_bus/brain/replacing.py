"""Which workers a job does better without: stragglers that stayed slow, and the slowest of workers that wait for one another.

Fed by the paces of a job's workers after a window, feeds plans of step `replace`, which change no size. Slow hosts are left by a
rule of their own (`hosts`). Pure; docs/design/0086.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from math import exp

from rover_bus.brain.decisions.placement import MOST_NODES
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.stragglers import SLOW_SHARE, find_slowest, is_due
from rover_bus.brain.learning_hosts import host_share
from rover_bus.brain.marginal import goes_by_gain, stragglers_by_half
from rover_bus.brain.proposing import propose
from rover_bus.brain.remedies import workers_to_replace
from rover_bus.brain.rooms import free_of, room_for
from rover_bus.brain.settling import propose_because
from rover_bus.brain.state import UNREST, BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import Wish
from rover_bus.events.identity import Member
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import Record

LEAST_GAIN = 0.015  # of the job's speed: below it the next slowest is as good as the same
RESTS = 2.0  # cooldowns between two times that a worker leaves for another

Steps = Generator[Record, None, None]


def replace_stragglers(name: str, job: KnownJob, state: BrainState) -> Steps:
    """Yield the plan that replaces the workers of a job that stayed slow."""
    by_half = goes_by_gain(job)
    stayed = "all wait for it" if is_synchronous(job.spec) else "smaller leases were not enough"
    slow = stragglers_by_half(job) if by_half else _due(job, state)
    if not slow or job.held is None or job.paused:
        return
    wish = Wish(
        size=job.held,
        step="replace",
        constant=Reason.STRAGGLER_REPLACE,
        detail=f"{', '.join(map(str, slow))} "
        + ("below half of the median" if by_half else f"stayed slow: {stayed}"),
        measured=job.throughput,
    )
    yield propose_because(name, job, state, wish, replaces=slow)


def _due(job: KnownJob, state: BrainState) -> list[Member]:
    """The workers whose slowness lasted; not those that are as slow as their host: `hosts` knows whether there is a better one."""
    together = is_synchronous(job.spec)
    return [
        member
        for member in workers_to_replace(job)
        if is_due(job.paces[member.index], job.replaced.get(member.index, 0), together=together)
        and not _is_as_slow_as_its_host(job, member, state)
    ]


def _is_as_slow_as_its_host(job: KnownJob, member: Member, state: BrainState) -> bool:
    host = job.where.get(member.name, "")
    return host in state.slow_hosts and job.paces[member.index].share >= SLOW_SHARE * host_share(state, host)


def replace_slowest(name: str, job: KnownJob, state: BrainState) -> Steps:
    """Yield the plan that replaces the slowest worker of a synchronous job, where what all gain by it in the time that is left is
    more than a change takes, and a host has room for its successor beside it.

    No straggler need be found: workers differ for good, and the more of them wait for one another, the slower is the slowest.
    """
    held, workers = job.held, [member for member in job.members if member.role == "worker"]
    if held is None or job.paused or not is_synchronous(job.spec) or len(workers) != held.workers:
        return
    if job.unrest > UNREST or job.clock_s - job.left_s < RESTS * job.spec.plan.cooldown_s:
        return
    found = find_slowest(job.paces, len(workers))
    if found is None or found.gain < LEAST_GAIN:
        return
    if job.remaining_s * (1 - exp(-found.gain)) <= job.change_s or not _has_room_for_one(job, state):
        return
    slow = next(member for member in workers if member.index == found.worker)
    wish = Wish(
        size=held,
        step="replace",
        constant=Reason.SLOWEST_REPLACE,
        detail=f"all wait for {slow}, which takes {exp(found.behind) - 1:.0%} longer than the others",
        measured=job.throughput,
        predicted=round(job.throughput * exp(found.gain), 3),
        low_90=round(job.throughput, 3),
        high_90=round(job.throughput * exp(found.behind), 3),
    )
    plan = propose(name, job, state, wish, replaces=[slow])
    yield plan.replace(cause=job.after("window"))


def _has_room_for_one(job: KnownJob, state: BrainState) -> bool:
    assert job.held is not None
    each, roomiest = job.charge(job.held), islice(totals_of(state).roomiest(state), MOST_NODES)
    free = (free_of(host, state) for host in roomiest if host not in state.slow_hosts)
    return room_for(each.worker_cores, each.worker_memory_bytes, free) > 0
