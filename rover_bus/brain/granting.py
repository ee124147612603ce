"""Wishes meet capacity, quotas and priorities: what a job gets, which jobs must shrink for it first, or why it gets nothing.

Fed by wishes, feeds proposals. A job's growth takes only free room and that of lower priorities; among equals what runs stays,
except that a job without workers gets the least it can live with: those that have more shrink for it.
Growth that needs a shrink elsewhere waits until that shrink is settled (P22). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from rover_bus.brain.decisions.arbitration import Budget, Claim, Grant, arbitrate
from rover_bus.brain.decisions.placement import MOST_NODES
from rover_bus.brain.decisions.plans import GIB, Allocation
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import CONCAVITY
from rover_bus.brain.freezing import frozen
from rover_bus.brain.loads import shares_hosts
from rover_bus.brain.rooms import fits_hosts, fits_once_they_shrink, free_of, room_for
from rover_bus.brain.sizing import LEAST_SERVER_BYTES, NARROW, less_memory, narrowed, with_usual_memory
from rover_bus.brain.state import BrainState, KnownJob, counted
from rover_bus.brain.totals import Total, Totals, present, totals_of
from rover_bus.brain.wishes import CapacityLeft, Wish, size_after
from rover_bus.events.facts import Size
from rover_bus.events.subjects import as_seen_by, split_job

MOST_HALVED = 3  # times that a start's members may be made half as large to find room
LOOKED_AT = 16  # of the roomiest hosts, to say how much the roomiest has
CHOSEN = (
    "start",
    "probe",
    "scale",
    "room",
)  # steps that may be another size; what is at risk does not wait for a host's room
_STAYS = 1e12  # the score of what runs: growth of an equal never takes it away


class GrantedSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a job gets: its size, and the sizes to which others shrink first, each with the reason."""

    size: Size | None
    left: CapacityLeft | None = None
    shrinks: dict[str, tuple[Size, Reason, str]] = {}
    waits_for: list[str] = []  # jobs that are shrinking already: then there is room


def cores_left_for(name: str, state: BrainState, quotas: Mapping[str, Budget]) -> float:
    """Cores that a job may use: what equals and betters leave of the cluster, and its tenant's quota leaves of itself."""
    totals = totals_of(state)
    first = totals.held_from(state.jobs[name].spec.priority).cores - totals.held_by(name).cores
    return min(round(totals.capacity.cores - first, 9), quota_left(name, state, quotas))


def quota_left(name: str, state: BrainState, quotas: Mapping[str, Budget]) -> float:
    """Cores of its tenant's quota that other jobs leave to this one; inf without a quota."""
    tenant = state.jobs[name].spec.plan.tenant
    if tenant not in quotas:
        return float("inf")
    return quotas[tenant].cores - totals_of(state).beside(name, tenant).cores


def grant_best(
    name: str,
    wish: Wish,
    state: BrainState,
    quotas: Mapping[str, Budget],
    in_room: Callable[[], list[Size]] = list,
) -> tuple[GrantedSize, Wish]:
    """Return what a job gets, and for which wish: the first of it and the next best that hosts have room for, else it cut down.

    `in_room`: says the best sizes by what hosts have room for, when that is asked; they come before those of the wish.
    """
    job = state.jobs[name]
    granted = grant(name, wish, state, quotas)
    if granted.left is None:
        return granted, wish
    if granted.left.constant != Reason.DOES_NOT_FIT_ANY_NODE:
        return _grant_less_memory(name, wish, state, quotas) or (granted, wish)
    most = job.charge(wish.size)
    for size in dict.fromkeys((*in_room(), *wish.others)):
        charged, other = job.charge(size), _instead(wish, size)
        if charged.cores <= most.cores and charged.memory_bytes <= most.memory_bytes:  # sums have room for it
            granted = GrantedSize(size=size if fits_hosts(job, size, state) else None)
        else:
            granted = grant(name, other, state, quotas)
        if granted.size is not None:
            return granted, other
    cut = _cut_down(job, wish, state)
    return cut, _saying_less_memory(job, wish, cut.size)


def _grant_less_memory(
    name: str, wish: Wish, state: BrainState, quotas: Mapping[str, Budget]
) -> tuple[GrantedSize, Wish] | None:
    """What a start gets whose servers begin with what jobs here use, where memory is short by sums; None where that is no help."""
    job, totals = state.jobs[name], totals_of(state)
    if wish.step != "start":
        return None
    wanted, quota, tenant = job.charge(wish.size), quotas.get(job.spec.plan.tenant), job.spec.plan.tenant
    budgets = [(totals.capacity, None), *([(quota, tenant)] if quota is not None else [])]
    if all(
        totals.beside(name, of).memory_bytes + wanted.memory_bytes <= budget.memory_bytes
        for budget, of in budgets
    ):
        return None
    size = _with_usual_memory(job, wish.size, state)
    if size == wish.size:
        return None
    less = msgspec.structs.replace(wish, size=size, others=[])
    granted, _ = grant_best(name, less, state, quotas)
    return None if granted.size is None else (granted, _saying_less_memory(job, wish, granted.size))


def _with_usual_memory(job: KnownJob, size: Size, state: BrainState) -> Size:
    """A start with what servers here use: not of a job that goes on, which keeps what it had, nor while others make room."""
    keeps = job.released is not None or bool(totals_of(state).shrinking)
    return size if keeps else with_usual_memory(size, job.spec, state)


def _saying_less_memory(job: KnownJob, wish: Wish, size: Size | None) -> Wish:
    """Say of a start that its servers together have less memory than they were to have."""
    if wish.step != "start" or size is None:
        return wish
    hoped, bytes_now = (each.servers * each.server_memory_bytes for each in (wish.size, size))
    if bytes_now >= hoped:
        return wish
    return msgspec.structs.replace(wish, detail=f"{wish.detail}; {less_memory(size, job.spec)}")


def _instead(wish: Wish, size: Size) -> Wish:
    """The wish for one of its next best sizes; what that one promises is said once it is granted (`settling`)."""
    if wish.step == "start":
        smaller = f"{wish.detail}; smaller, so that hosts have room for it"
        return msgspec.structs.replace(wish, size=size, detail=smaller, others=[])
    shrinks = wish.constant is Reason.BEST_VALUE_UNDER_CAPACITY and wish.predicted < wish.measured
    return Wish(
        size=size,
        step=wish.step,
        constant=wish.constant if shrinks else Reason.MORE_THROUGHPUT,
        detail="the best size that hosts have room for",
        measured=wish.measured,
    )


def grant(name: str, wish: Wish, state: BrainState, quotas: Mapping[str, Budget]) -> GrantedSize:
    """Settle one job's wish against all that runs, and against what each host has room for."""
    granted, job = _grant_by_sums(name, wish, state, quotas), state.jobs[name]
    if granted.size is None or wish.step not in CHOSEN:
        return granted
    if granted.shrinks:
        smaller = [(state.jobs[other], size) for other, (size, _, _) in granted.shrinks.items()]
        if job.held is not None or fits_once_they_shrink(job, granted.size, smaller, state):
            return granted
        return GrantedSize(size=None, left=CapacityLeft(Reason.DOES_NOT_FIT_ANY_NODE))
    if _is_its_own_affair(name, job, state) or fits_hosts(job, granted.size, state):
        return granted
    return GrantedSize(size=None, left=CapacityLeft(Reason.DOES_NOT_FIT_ANY_NODE))  # `_cut_down` says why


def _is_its_own_affair(name: str, job: KnownJob, state: BrainState) -> bool:
    """Whether a job is alone on its machines and may ask for more than they have: not a start that is to be all or nothing."""
    begins_whole = job.held is None and bool(job.spec.workers.min_count or job.spec.servers.min_count)
    return not totals_of(state).hold_others(name) and not begins_whole


def has_room_to_return(name: str, size: Size, state: BrainState) -> bool:
    """Whether a job may go back to a size that it had: what it gave up may be another's. Members without limits share hosts."""
    job = state.jobs[name]
    if job.held is None or shares_hosts(size) or job.cores_of(size) <= job.cores_of(job.held):
        return True
    granted = grant(name, Wish(size=size, step="scale", constant=Reason.ROOM_AGAIN), state, state.quotas)
    return granted.size == size and not granted.shrinks


def _cut_down(job: KnownJob, wish: Wish, state: BrainState) -> GrantedSize:
    size: Size | None = _start_in_room(job, wish.size, state) if job.held is None else wish.size
    while size is not None and job.held is not None and not fits_hosts(job, size, state):
        size = _with_fewer_workers(size, job.held.workers)
    if size is None or (job.held is not None and size.shape == job.held.shape):
        return GrantedSize(size=None, left=found_no_host(job, wish.size, state))
    return GrantedSize(size=size)


def _start_in_room(job: KnownJob, size: Size, state: BrainState) -> Size | None:
    """The best start that hosts have room for: by fewer or narrower members, then with its tables on more servers, at last with
    less memory than its user asked for; None where there is none.
    """
    free = [free_of(host, state) for host in islice(totals_of(state).roomiest(state), MOST_NODES)]
    for each in _splits(job, size):
        if (found := _best_start(job, each, free, state)) is not None:
            return found
    less = _with_usual_memory(job, size, state)
    smaller = _splits(job, less) if less != size else ()
    return next((found for each in smaller if (found := _best_start(job, each, free, state))), None)


def _splits(job: KnownJob, size: Size) -> Iterator[Size]:
    """A first size, then it with more and smaller servers, twice as many each time or as many as it may have."""
    yield size
    most = job.spec.servers.max_count
    if job.released is not None or job.spec.servers.count:
        return
    while 0 < size.servers < most and size.server_memory_bytes >= 2 * LEAST_SERVER_BYTES:
        servers = min(2 * size.servers, most)
        shared = -(-size.server_memory_bytes * size.servers // servers)
        yield (size := size.replace(servers=servers, server_memory_bytes=shared))


def _best_start(job: KnownJob, size: Size, free: Sequence[Budget], state: BrainState) -> Size | None:
    """The best start of a kind that hosts have room for: fewer workers, or narrower members; None where none fits. `free`: of the
    roomiest hosts.
    """
    least, narrow = job.spec.workers.least, size
    found = list[tuple[float, Size]]()
    for halved in range(MOST_HALVED + 1):
        room = room_for(narrow.worker_cores, narrow.worker_memory_bytes, free)
        count: int | None = min(size.workers, max(room, least))
        if room_for(narrow.server_cores, narrow.server_memory_bytes, free) < narrow.servers:
            count = None  # with whatever workers
        while count is not None and not fits_hosts(job, narrow.replace(workers=count), state):
            count = max(count * 3 // 4, least) if count > least else None
        if count is not None:
            worth = NARROW**halved * (count / max(size.workers, 1)) ** CONCAVITY
            found.append((worth, narrow.replace(workers=count)))
        former, narrow = narrow, narrowed(narrow, job)
        if narrow == former:
            break
    return max(found, key=lambda each: each[0])[1] if found else None


def _with_fewer_workers(size: Size, least: int) -> Size | None:
    """The next smaller size of the same kind; None where it has no worker to spare."""
    return (
        size.replace(workers=max(size.workers * 3 // 4, least, 1)) if size.workers > max(least, 1) else None
    )


def found_no_host(job: KnownJob, size: Size, state: BrainState) -> CapacityLeft:
    each = job.charge(size)
    free = (free_of(host, state) for host in islice(totals_of(state).roomiest(state), LOOKED_AT))
    roomiest = max(free, key=lambda left: (left.cores, left.memory_bytes))
    needs = [
        f"{cores:.3g} cores{f' and {size_bytes / GIB:.3g} GiB' if size_bytes else ''} a {noun}"
        for noun, cores, size_bytes in (
            ("worker", each.worker_cores, each.worker_memory_bytes),
            ("server", each.server_cores, each.server_memory_bytes),
        )
    ]
    there = f"the roomiest host has {max(roomiest.cores, 0):.3g} and {max(roomiest.memory_bytes, 0) / GIB:.3g} GiB free"
    return CapacityLeft(Reason.DOES_NOT_FIT_ANY_NODE, f"{' and '.join(needs)}: {there}")


def _grant_by_sums(name: str, wish: Wish, state: BrainState, quotas: Mapping[str, Budget]) -> GrantedSize:
    job, totals = state.jobs[name], totals_of(state)
    wanted, quota, capacity = job.charge(wish.size), quotas.get(job.spec.plan.tenant), totals.capacity
    if quota is None and (
        _is_its_own_affair(name, job, state) or _fits(wanted, totals.beside(name), capacity)
    ):
        return GrantedSize(
            size=wish.size
        )  # no other job is concerned; alone on its machines it is its own affair
    if coming := _room_to_come(name, job, wanted, totals, quota):
        seen = dict.fromkeys(as_seen_by(split_job(name)[0], each) for each in coming)
        left = CapacityLeft(Reason.WAITS_FOR_ROOM, f"{', '.join(seen)} shrinks first")
        return GrantedSize(size=None, left=left, waits_for=coming)
    own, others = _claim(name, job, wish), _others(name, state)
    claims = [own, *(_standing(key, other, job, state) for key, other in others.items())]
    grants = {each.job: each for each in arbitrate(claims, capacity, quotas)}
    granted = _settled(name, wish, own, grants, others)
    if granted.left is None:
        return granted
    if job.held is None and (never := too_large(job, wish.size, state)):
        return GrantedSize(size=None, left=never)
    budget, where = capacity, "the cluster"
    if granted.left.constant == Reason.QUOTA_EXCEEDED and quota is not None:
        budget, where = quota, f"the quota of {own.tenant!r}"
        claims = [claim for claim in claims if claim.tenant == own.tenant]
    missing = _missing_memory(own, claims, budget, where)
    return (
        granted if not missing else GrantedSize(size=None, left=CapacityLeft(granted.left.constant, missing))
    )


def _others(name: str, state: BrainState) -> dict[str, KnownJob]:
    return {key: other for key, other in state.jobs.items() if key != name and present(other) is not None}


def too_large(job: KnownJob, size: Size, state: BrainState) -> CapacityLeft | None:
    """Say that a start would not fit even where no other job ran: nothing that ends makes room for it."""
    tenant = job.spec.plan.tenant
    wanted = job.charge(size)
    least = wanted.replace(workers=_least_workers(job, wanted))
    budgets = [(Reason.LARGER_THAN_CLUSTER, totals_of(state).capacity, "the cluster", "add a host")]
    if (quota := state.quotas.get(tenant)) is not None:
        raised = f"raise it by `rover quota set {tenant}=CORES[:MEMORY]`"
        budgets.insert(0, (Reason.QUOTA_EXCEEDED, quota, f"the quota of {tenant!r}", raised))
    for constant, budget, where, way_out in budgets:
        if budget.holds(least.cores, least.memory_bytes):
            continue
        cores = least.cores > budget.cores + 1e-9
        needs = f"{least.cores:.3g} cores" if cores else f"{least.memory_bytes / GIB:.3g} GiB"
        there = budget.cores if cores else budget.memory_bytes / GIB
        members = f"{counted(least.workers, 'worker')} and {counted(least.servers, 'server')}"
        said = (
            f"refused: {members} need {needs}, and {where} has {there:.3g} in all: ask for less, or {way_out}"
        )
        return CapacityLeft(constant, said)
    return None


def _missing_memory(own: Claim, claims: list[Claim], budget: Budget, where: str) -> str:
    """Say that it is memory that does not fit, where cores would; "" where they would not."""
    taken = [claim.held for claim in claims if claim.held is not None]
    held = own.held or own.wanted.replace(workers=0, servers=0)
    more_cores, more_bytes = own.wanted.cores - held.cores, own.wanted.memory_bytes - held.memory_bytes
    used_bytes = sum(each.memory_bytes for each in taken)
    if (
        sum(each.cores for each in taken) + more_cores > budget.cores
        or used_bytes + more_bytes <= budget.memory_bytes
    ):
        return ""
    more, used, all_of_it = (each / GIB for each in (more_bytes, used_bytes, budget.memory_bytes))
    return f"{more:.2f} GiB more do not fit {where}: {used:.2f} of {all_of_it:.2f} are taken"


def _fits(wanted: Allocation, held: Total, budget: Budget) -> bool:
    """Whether there is room for a wish beside what others hold: then arbitration would take nothing from any job."""
    return budget.holds(held.cores + wanted.cores, held.memory_bytes + wanted.memory_bytes)


def _room_to_come(
    name: str, job: KnownJob, wanted: Allocation, totals: Totals, quota: Budget | None
) -> list[str]:
    """The jobs that are shrinking, when there is no room for a wish now and will be once they have; none otherwise."""
    shrinking = [other for other in totals.shrinking if other != name]
    if not shrinking:
        return []
    beside: list[tuple[Budget, str | None]] = [(totals.capacity, None)]
    if quota is not None:
        beside.append((quota, job.spec.plan.tenant))
    now = all(_fits(wanted, totals.beside(name, of), budget) for budget, of in beside)
    then = all(_fits(wanted, totals.beside(name, of, coming=True), budget) for budget, of in beside)
    return shrinking if then and not now else []


def shrinks_after_loss(state: BrainState, cores: float) -> dict[str, Size]:
    """The sizes to which jobs shrink when what is held is more than the cores that are left after a loss: by priority, each its
    least before any job gets more, pauses last. Empty while it fits.

    Only limits count: a job without any keeps its workers, because they share what there is, and what they use jitters.
    Memory is taken from no job: servers hold it, and they stay.
    """
    running = {name: size for name, job in state.jobs.items() if (size := present(job)) is not None}
    if not state.shrinks or not state.hosts or sum(map(_limits, running.values())) <= cores:
        return {}
    limited = {name: size for name, size in running.items() if size.worker_cores}
    others = sum(_limits(size) for name, size in running.items() if name not in limited)  # their servers'
    room = Budget(max(cores - others, 0.0), float("inf"))
    claims = []
    for name, size in limited.items():
        job = state.jobs[name]
        held = Allocation(
            workers=size.workers,
            servers=size.servers,
            worker_cores=size.worker_cores,
            server_cores=size.server_cores,
        )
        least = held.replace(workers=min(least_of(job), held.workers))
        claims.append(
            Claim(
                job=name,
                wanted=held,
                least=least,
                held=held,
                priority=job.spec.priority,
                at_risk=bool(job.incidents),
            )
        )
    return {
        each.job: running[each.job].replace(workers=each.allocation.workers)
        for each in arbitrate(claims, room)
        if each.allocation.workers < running[each.job].workers
    }


def _limits(size: Size) -> float:
    return size.workers * size.worker_cores + size.servers * size.server_cores


def _settled(
    name: str, wish: Wish, own: Claim, grants: dict[str, Grant], others: dict[str, KnownJob]
) -> GrantedSize:
    mine = grants[name]
    if mine.allocation.workers < 1 or mine.allocation.servers < min(wish.size.servers, 1):
        return GrantedSize(size=None, left=CapacityLeft(_no_room(mine.reason), mine.detail))
    size = size_after(wish.size, mine.allocation)
    if own.held is not None and mine.allocation.workers <= own.held.workers < wish.size.workers:
        return GrantedSize(size=None, left=CapacityLeft(_no_room(mine.reason), mine.detail))
    shrinks = {
        key: (size_after(held, grants[key].allocation), *_why(key, name, grants, others[key], own.priority))
        for key, other in others.items()
        if (held := present(other)) is not None and grants[key].allocation.workers < held.workers
    }
    # Those that have more make room; an equal is never paused for another.
    paused = [
        key for key, (left, _, _) in shrinks.items() if not left.workers and not _below(others[key], own)
    ]
    if paused:
        said = f"{paused[0]} would be paused for it: all that runs beside it has its least"
        return GrantedSize(size=None, left=CapacityLeft(Reason.NO_CAPACITY, said))
    return GrantedSize(size=size, shrinks=shrinks)


def _why(key: str, name: str, grants: dict[str, Grant], other: KnownJob, priority: int) -> tuple[Reason, str]:
    """Why a job shrinks: a constant, and words."""
    if other.spec.priority < priority:
        return grants[key].reason, f"for {name}, of higher priority"
    return Reason.SHRUNK_FOR_NEWCOMER, f"for {name}, which has nothing yet"


def _no_room(reason: Reason) -> Reason:
    return reason if reason is Reason.QUOTA_EXCEEDED else Reason.NO_CAPACITY


def _claim(name: str, job: KnownJob, wish: Wish) -> Claim:
    wanted = job.charge(wish.size)
    held = job.charge(job.held) if job.held is not None else None
    return Claim(
        job=name,
        wanted=wanted,
        least=wanted.replace(workers=_least_workers(job, wanted)),
        held=held,
        priority=job.spec.priority,
        at_risk=wish.at_risk,
        tenant=job.spec.plan.tenant,
        score=wish.score,
    )


def _least_workers(job: KnownJob, wanted: Allocation) -> int:
    """What runs is not shrunk by its own wish; a job that begins, or goes on, gets along with the least that it asks for, or with
    as many as the user pinned.
    """
    if job.held is None:
        running = job.spec.workers.least
    else:
        running = job.held.workers or least_of(job)
    return min(max(running, 1), wanted.workers)


def least_of(job: KnownJob) -> int:
    """The fewest workers that a job which runs may be shrunk to for others. One whose workers the user fixed can live with one."""
    return 1 if job.spec.workers.count else job.spec.workers.least


def _standing(name: str, job: KnownJob, claimant: KnownJob, state: BrainState) -> Claim:
    """What runs. It keeps all it has, unless the claimant is of higher priority, or its equal and without a worker.

    In a freeze and in a change it keeps it from any claimant.
    """
    size = present(job)
    assert size is not None
    held: Allocation = job.charge(size)
    newcomer = claimant.held is None or not claimant.held.workers
    yields = (newcomer and not job.spec.workers.count) or job.spec.priority < claimant.spec.priority
    # One in a change does not shrink now, and room that the others make alone they only take again.
    yields = yields and frozen(job, state) is None and job.change is None
    return Claim(
        job=name,
        wanted=held,
        least=held.replace(workers=min(least_of(job), held.workers)) if yields else held,
        held=held,
        priority=job.spec.priority,
        tenant=job.spec.plan.tenant,
        score=_STAYS,
        at_risk=bool(job.incidents),
    )


def _below(job: KnownJob, claim: Claim) -> bool:
    return job.spec.priority < claim.priority
