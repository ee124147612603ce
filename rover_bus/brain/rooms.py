"""What hosts have free, which of them a plan names, and which of these it avoids.

Fed by the state: capacity of hosts, members and what each is counted with. Feeds `proposing` and `hosts`. Pure; docs/design/0039.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.sizing import host_order
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.facts import Size

MOST = 1 << 30  # members without any limit
_EPSILON = 1e-9


def free_by_host(state: BrainState, hosts: Collection[str]) -> dict[str, Budget]:
    """What the members of all jobs leave of these hosts. One pass over all members."""
    free = {
        host: [state.hosts[host].cores, float(state.hosts[host].memory_bytes)]
        for host in hosts
        if host in state.hosts
    }
    for job in state.jobs.values():
        if job.held is None:
            continue
        charged = job.charge(job.held)
        worker = (charged.worker_cores, charged.worker_memory_bytes)
        server = (charged.server_cores, charged.server_memory_bytes)
        for name, where in job.where.items():
            if where in free:
                cores, memory_bytes = server if name.startswith("ps-") else worker
                free[where][0] -= cores
                free[where][1] -= memory_bytes
    return {host: Budget(*left) for host, left in free.items()}


def room_for(cores: float, memory_bytes: int, free: Iterable[Budget]) -> int:
    """How many members of a size there is room for, each on one host."""
    total = 0
    for left in free:
        by_cores = int(left.cores / cores + _EPSILON) if cores > 0 else MOST
        by_memory = int(left.memory_bytes / memory_bytes + _EPSILON) if memory_bytes > 0 else MOST
        total += max(min(by_cores, by_memory), 0)
    return total


def usual_hosts(state: BrainState) -> list[str]:
    """The hosts that are not slow."""
    return [host for host in state.hosts if host not in state.slow_hosts]


def named_hosts(job: KnownJob, state: BrainState) -> list[str]:
    """The hosts of a plan: those of the job's first one, then those that came since; of all the slow ones last."""
    came = [host for host in host_order(state.hosts) if host not in job.hosts]
    return sorted([*job.hosts, *came], key=lambda host: host in state.slow_hosts)


def avoided_hosts(job: KnownJob, size: Size, state: BrainState, replaced: int = 0) -> list[str]:
    """The slow hosts, while the others have room for the members that a plan adds or replaces; else none."""
    others = usual_hosts(state)
    if not state.slow_hosts or not others:
        return []
    held, each = job.held or Size(workers=0, servers=0), job.charge(size)
    workers, servers = max(size.workers - held.workers, 0) + replaced, max(size.servers - held.servers, 0)
    free = list(free_by_host(state, others).values())
    by_workers = room_for(each.worker_cores, each.worker_memory_bytes, free)
    by_servers = room_for(each.server_cores, each.server_memory_bytes, free)
    cores = workers * each.worker_cores + servers * each.server_cores
    enough = cores <= sum(max(left.cores, 0.0) for left in free) + _EPSILON
    return sorted(state.slow_hosts) if enough and workers <= by_workers and servers <= by_servers else []
