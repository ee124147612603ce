"""Which sizes a job may have: what its user left open, what a probe may choose of it.

Fed by a job's state, feeds wishes and the round. Pure.
"""

from __future__ import annotations

from itertools import pairwise

from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.models.core_use import HELD_BACK
from rover_bus.brain.models.ingest import INPUT_BOUND_SHARE
from rover_bus.brain.models.throughput import LEAST_CONFIGURATIONS
from rover_bus.brain.state import KnownJob
from rover_bus.events.facts import Size
from rover_bus.events.job import RoleSpec

MOST_WORKERS, MOST_SERVERS = 256, 16
AS_FAST = 0.97  # of the present throughput: a smaller size that had so much is no loss
SERVERS_BUSY = 0.5  # of a core: below this a server holds no worker back,
MOST_IN_BURSTS = 4.0  # times the cores that a member uses on average, where its bursts were not measured
ABOVE_BURSTS = 1.1  # times the cores of its bursts, where they were
SERVERS_USED = 0.25  # nor below this share of its cores, where these are limited;
TRIAL_SHARE, TRIAL_WINDOWS = 0.05, 3.0  # unless to try it takes no more than this share of what is left


def space_of(job: KnownJob, family_varied: bool = False, start: Size | None = None) -> PlanSpace:
    """Every size that this job may have: what the user fixed has one value; servers vary once they hold workers back, or once any
    run of the family has varied them. `start`: the size around which a job is that holds nothing yet.
    """
    held, workers, servers = start or job.held, job.spec.workers, job.spec.servers
    assert held is not None
    charged = job.charge(held)
    return PlanSpace(
        workers=(workers.count,)
        if workers.count
        else tuple(range(workers.least, min(workers.max_count, MOST_WORKERS) + 1)) or (workers.least,),
        servers=_counts_of_servers(job, held, family_varied),
        worker_cores=steps_of(job, workers, charged.worker_cores),
        server_cores=steps_of(job, servers, charged.server_cores),
    )


def no_less(space: PlanSpace, job: KnownJob) -> PlanSpace:
    """The part of a space that takes nothing from a job but idle cores, and what a smaller size was measured to do without: what
    less of the rest would cost is not known while little was varied. What is busy a fourth of its time on average may be busy all
    of it in bursts.
    """
    assert job.held is not None
    held = job.charge(job.held)
    known = [held, *(job.charge(size) for size in _as_fast_with_less(job))]
    workers, servers = min(each.workers for each in known), min(each.servers for each in known)
    worker_cores = min(busy_cores(job, "worker", held.worker_cores), *(each.worker_cores for each in known))
    server_cores = min(busy_cores(job, "ps", held.server_cores), *(each.server_cores for each in known))
    return PlanSpace(
        tuple(count for count in space.workers if count >= workers) or (held.workers,),
        tuple(count for count in space.servers if count >= servers) or (held.servers,),
        tuple(cores for cores in space.worker_cores if cores >= worker_cores) or (held.worker_cores,),
        tuple(cores for cores in space.server_cores if cores >= server_cores) or (held.server_cores,),
    )


def _as_fast_with_less(job: KnownJob) -> list[Size]:
    """The sizes that a job had before which are part of what it holds, and were as fast."""
    held = job.held
    assert held is not None
    present = next((row.mean for row in job.tried if row.size.shape == held.shape), 0.0)
    if not present:
        return []
    return [
        row.size
        for row in job.tried
        if row.mean >= AS_FAST * present
        and row.size.workers
        and all(part <= whole for part, whole in zip(row.size.shape, held.shape, strict=True))
    ]


def busy_cores(job: KnownJob, role: str, given: float) -> float:
    """The cores below which a member of a role would be slower, as far as its use tells; `given` where nothing was measured."""
    if peak := job.cores_peak.get(role):
        return ABOVE_BURSTS * peak
    return MOST_IN_BURSTS * job.cores_used.get(role, given)


def usable(axis: tuple[float, ...], now: float, used: float) -> tuple[float, ...]:
    """The cores of an axis that would be used: all, if a member uses up what it has, else no more than that."""
    return axis if used >= HELD_BACK * now else tuple(cores for cores in axis if cores <= now) or (now,)


def _counts_of_servers(job: KnownJob, held: Size, family_varied: bool) -> tuple[int, ...]:
    """The counts of servers that a job may have: its own, unless another number could make it faster.

    It could when it is not fixed, does not wait for input, and a server is busy; a rollout moves every second slot: it is not begun
    out of curiosity. Before any other number was measured one half more is as far as it goes. What another run of the family
    measured counts as much as what this one did.
    """
    if job.spec.servers.count or not held.servers:
        return (held.servers,)
    most = min(max(job.spec.servers.max_count, held.servers), MOST_SERVERS)
    least = max(min(job.spec.servers.least, most), 1)
    varied = family_varied or len({row.size.servers for row in job.tried}) > 1
    last = job.server_loads[-1] if job.server_loads else {}
    if job.held is None or not job.tried:
        return tuple(range(least, most + 1)) if family_varied and job.held is None else (held.servers,)
    present = next((row for row in job.tried if row.size.shape == held.shape), job.tried[-1])
    if present.input_share >= INPUT_BOUND_SHARE:
        return (held.servers,)
    if varied:
        return tuple(range(least, most + 1))
    busiest = max(last.values(), default=0.0)
    # A server's tables are one thread's, where no limit says otherwise.
    if busiest < (SERVERS_USED * held.server_cores or SERVERS_BUSY) and not _has_time_for_a_trial(job):
        return (held.servers,)
    return tuple(range(held.servers, min(held.servers + max(held.servers // 2, 1), most) + 1))


def _has_time_for_a_trial(job: KnownJob) -> bool:
    """Whether moving slots there and back, and measuring in between, takes little of what is left; first other sizes are known."""
    known = not job.cold or len(job.tried) >= LEAST_CONFIGURATIONS
    return known and 2 * job.change_s + TRIAL_WINDOWS * job.window_s < TRIAL_SHARE * job.remaining_s


def steps_of(job: KnownJob, role: RoleSpec, now: float) -> tuple[float, ...]:
    """The cores that a member may have: by doubling, and half way between, from what the user asked for to what he allows.

    Only those of now, where a host does not hold members to their cores: more of them would change nothing.
    """
    doubled = _doublings(role) if job.cores_bind else ()
    if len(doubled) < 2:
        return (now,)
    between = [(low + high) / 2 for low, high in pairwise(doubled)]
    return tuple(sorted({*doubled, *between}))


def _doublings(role: RoleSpec) -> tuple[float, ...]:
    if not role.max_cores > role.cores > 0:
        return (role.cores,)
    steps = [role.cores]
    while steps[-1] * 2 < role.max_cores:
        steps.append(steps[-1] * 2)
    return (*steps, role.max_cores)


def affordable(
    role: RoleSpec, axis: tuple[float, ...], now: float, count: int, spare: float
) -> tuple[float, ...]:
    """What a probe may give a member: twice its cores, which tells more, or half as much again where all of them together
    would not find room for that."""
    wide = tuple(cores for cores in axis if cores <= now or cores in _doublings(role))
    above = [cores for cores in wide if cores > now]
    return wide if above and count * (above[0] - now) <= spare else axis
