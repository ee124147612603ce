"""What a person asks for: the same limits, quota and capacity as any other plan, then a plan that needs no permission (P22).

Fed by `plan.requested`; feeds a proposal of step `asked`, or `plan.withheld` with the limit, the value and the way out in one
line. Here, not in the master: a master knows the limits of its own job, and only the Brain what others hold. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from functools import cache

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.lifecycle import check_plan
from rover_bus.brain.decisions.plans import GIB, Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import Limits
from rover_bus.brain.granting import found_no_host
from rover_bus.brain.proposing import propose
from rover_bus.brain.rooms import fits_hosts, free_of, room_for
from rover_bus.brain.state import UNKNOWN_CORES, BrainState, KnownJob, counted
from rover_bus.brain.totals import Total, totals_of
from rover_bus.brain.wishes import Wish
from rover_bus.events.facts import PlanRequested, PlanWithheld, Size
from rover_bus.events.log import Record

ANY = 1 << 30  # of members: no limit
Steps = Generator[Record, None, None]
Obstacle = tuple[str, str]  # a constant, and the same for people


def answer_request(name: str, job: KnownJob, state: BrainState, fact: PlanRequested, cause: str) -> Steps:
    """Yield the plan that a person asked for, or why there is none. Absolute: it is not cut to what there is."""
    wanted = None
    if job.held is not None:
        wanted = job.held.replace(
            workers=fact.workers or job.held.workers, servers=fact.servers or job.held.servers
        )
    obstacle = _obstacle(name, job, state, wanted, fact.beyond_limits)
    if obstacle is not None or wanted is None:
        constant, reason = obstacle or ("", "")
        by = fact.by or "a person"
        yield PlanWithheld(
            job=name, constant=constant, reason=reason, wanted=wanted, asked_by=by, cause=cause
        )
        return
    plan = propose(name, job, state, _wish(job, wanted, fact))
    yield plan.replace(mode="auto", members_plan=0, by=fact.by, cause=cause)


def _wish(job: KnownJob, wanted: Size, fact: PlanRequested) -> Wish:
    """A trial promises perfect scaling until tried (`algorithms.md §7`); what is merely asked for promises nothing."""
    assert job.held is not None
    trial = fact.trial and bool(job.recent)
    hoped = job.throughput * wanted.workers / max(job.held.workers, 1) if trial else 0.0
    words = "on trial" if fact.trial else "asked for"
    return Wish(
        size=wanted,
        step="asked",
        constant=Reason.TRIAL if fact.trial else Reason.ASKED,
        detail=f"{words}{f', {fact.reason}' if fact.reason else ''}",
        measured=job.throughput,
        predicted=hoped,
        low_90=min(hoped, job.throughput),
        high_90=max(hoped, job.throughput) if trial else 0.0,
    )


def _obstacle(
    name: str, job: KnownJob, state: BrainState, wanted: Size | None, beyond_limits: bool
) -> Obstacle | None:
    if job.paused:
        return "paused", f"it is paused: `rover resume {name}` first"
    if wanted is None or job.held is None:
        return "too_early", "it holds nothing yet: its first plan comes first"
    if wanted == job.held:
        held = f"{counted(wanted.workers, 'worker')} and {counted(wanted.servers, 'server')}"
        return "already", f"it has {held} already"
    return refuse_size(job, wanted, state, beyond_limits=beyond_limits)


def refuse_size(
    job: KnownJob, wanted: Size, state: BrainState, *, beyond_limits: bool = False
) -> Obstacle | None:
    """Return the limit that a size of a job breaks, the value asked for and what to do; None when it passes.

    What is held already is never in the way: where more is taken than there is, a job may still shrink.
    """
    free = cache(lambda: [free_of(host, state) for host in state.hosts])

    def breaks(size: Size) -> tuple[Reason, str, str] | None:
        return _broken(job, size, state, beyond_limits) or _no_host(job, size, state, free)

    broken = breaks(wanted)
    if broken is None:
        return None
    constant, reason, way_out = broken
    least = 1 if beyond_limits else max(job.spec.workers.least, 1)
    counts = range(least, wanted.workers)
    fits = least - 1 + bisect_left(counts, True, key=lambda n: breaks(wanted.replace(workers=n)) is not None)
    less = (
        f"ask for {counted(fits, 'worker')} at the most, or " if fits >= least and job.held != wanted else ""
    )
    return constant, f"{reason}: {less}{way_out}"


def _broken(
    job: KnownJob, wanted: Size, state: BrainState, beyond_limits: bool
) -> tuple[Reason, str, str] | None:
    spec, held, totals = job.spec, job.held, totals_of(state)
    charged, own = charge_by_hand(job, wanted), charge_by_hand(job, held)
    most = Limits(
        max_workers=ANY if beyond_limits else max(spec.workers.max_count, own.workers),
        max_servers=ANY if beyond_limits else max(spec.servers.max_count, own.servers),
    )
    quota, capacity, tenant = state.quotas.get(spec.plan.tenant), totals.capacity, spec.plan.tenant
    if broken := check_plan(charged, most):
        role = "workers" if charged.workers > most.max_workers else "servers"
        return (*broken, f"submit it with a larger max_count in [{role}]")
    if not beyond_limits and (less := _below_least(job, wanted)):
        return Reason.LIMIT_EXCEEDED, less, "submit it with a smaller min_count"
    size = _in_words(wanted)
    if quota is not None:
        left = _left_of(quota, totals.beside(spec.name, tenant))
        if broken := check_plan(charged, _limits(left, own)):
            told = _too_much(size, charged, left, quota, f"the quota of {tenant!r}")
            return Reason.QUOTA_EXCEEDED, told, f"raise it by `rover quota set {tenant}=CORES[:MEMORY]`"
    left, charged = _left_of(capacity, totals.beside(spec.name)), _shared(job, wanted, charged)
    if check_plan(charged, _limits(left, own)):
        told = _too_much(size, charged, left, capacity, "the cluster")
        return Reason.NO_CAPACITY, told, "add a host, or make another job smaller"
    return None


def _in_words(size: Size) -> str:
    return f"{counted(size.workers, 'worker')} and {counted(size.servers, 'server')}"


def _no_host(
    job: KnownJob, wanted: Size, state: BrainState, free: Callable[[], list[Budget]]
) -> tuple[Reason, str, str] | None:
    """What hosts have no room for, although all of them together have. `free`: of each host.

    Not while a plan is under way, whose room is kept; and only what no host has room for member by member: where members of both
    roles would have to share hosts better than ours looks for, a scheduler may still find how.
    """
    held = job.held
    if held is None or job.change is not None or fits_hosts(job, wanted, state):
        return None
    each, workers, servers = job.charge(wanted), wanted.workers - held.workers, wanted.servers - held.servers
    has_room = room_for(each.worker_cores, each.worker_memory_bytes, free()) >= workers
    if has_room and room_for(each.server_cores, each.server_memory_bytes, free()) >= servers:
        return None
    needs = found_no_host(job, wanted, state).detail
    return (
        Reason.DOES_NOT_FIT_ANY_NODE,
        f"{_in_words(wanted)} need {needs}",
        "add a host, or make another job smaller",
    )


def _below_least(job: KnownJob, wanted: Size) -> str:
    """Return in words of which role fewer are wanted than are of use to the job; "" for none."""
    for noun, role, count in (
        ("workers", job.spec.workers, wanted.workers),
        ("servers", job.spec.servers, wanted.servers),
    ):
        if role.min_count and count < role.least:
            return f"{count} {noun} are fewer than the job's min_count of {role.least}"
    return ""


def _left_of(budget: Budget, held: Total) -> Budget:
    return Budget(budget.cores - held.cores, budget.memory_bytes - held.memory_bytes)


def _limits(left: Budget, own: Allocation) -> Limits:
    return Limits(
        max_workers=ANY,
        max_servers=ANY,
        cores=max(left.cores, own.cores) + 1e-9,
        memory_bytes=max(left.memory_bytes, own.memory_bytes),
    )


def charge_by_hand(job: KnownJob, size: Size | None) -> Allocation:
    """What a size is counted with. Servers without a limit share the load of their tables, however many they are."""
    if size is None:
        return Allocation(workers=0, servers=0)
    charged = job.charge(size)
    if size.server_cores or job.held is None or not job.held.servers or not size.servers:
        return charged
    shared = charged.server_cores * min(job.held.servers / size.servers, 1.0)
    return charged.replace(server_cores=max(shared, min(charged.server_cores, UNKNOWN_CORES)))


def _shared(job: KnownJob, size: Size, charged: Allocation) -> Allocation:
    """The same where a job takes from no quota: workers without a limit share a cluster with those that run, so that an added one
    counts little; what it brings is for the trial to tell.
    """
    if size.worker_cores or job.held is None or not job.held.workers < size.workers:
        return charged
    added = size.workers - job.held.workers
    cores = job.held.workers * charged.worker_cores + added * min(charged.worker_cores, UNKNOWN_CORES)
    return charged.replace(worker_cores=cores / size.workers)


def _too_much(size: str, charged: Allocation, left: Budget, all_of_it: Budget, where: str) -> str:
    if charged.cores > left.cores + 1e-9:
        need, there, free = f"{charged.cores:.3g} cores", f"{all_of_it.cores:.3g}", f"{left.cores:.3g}"
    else:
        need, there = f"{charged.memory_bytes / GIB:.3g} GiB", f"{all_of_it.memory_bytes / GIB:.3g}"
        free = f"{left.memory_bytes / GIB:.3g}"
    others = "" if free == there else f", of which others leave {free}"
    return f"{size} need {need}, and {where} has {there}{others}"
