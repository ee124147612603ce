"""What hosts have free, which of them a plan names, where its new members go, and which hosts it avoids.

Fed by the state: capacity of hosts, members and what each is counted with. Feeds `proposing` and `hosts`. Pure; docs/design/0039.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.placement import Node, place_jobs
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.loads import shares_hosts
from rover_bus.brain.sizing import host_order
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.facts import Size

MOST = 1 << 30  # members without any limit
_EPSILON = 1e-9


def free_of(host: str, state: BrainState) -> Budget:
    """What the members of all jobs leave of a host."""
    capacity, (cores, size_bytes) = state.hosts[host], state.host_load.get(host, (0.0, 0.0))
    return Budget(capacity.cores - cores, capacity.memory_bytes - size_bytes)


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


class MemberHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan's new and replaced members go: `slow` are avoided, as far as no host is named for a member."""

    slow: list[str] = []
    workers: list[str] = []
    servers: list[str] = []


def place(job: KnownJob, size: Size, state: BrainState, replaced: int = 0) -> MemberHosts:
    """Place what a plan adds or replaces (`replaced` workers).

    Members with limits go where the job runs, else on the fewest hosts that fit, equal shares on each (`decisions.placement`); on
    slow ones only where the others are full. Members without limits share what there is: they are spread over all usual hosts.
    """
    held = job.held or Size(workers=0, servers=0)
    workers, servers = max(size.workers - held.workers, 0) + replaced, max(size.servers - held.servers, 0)
    usual = usual_hosts(state)
    if not usual:
        return MemberHosts()
    if not workers + servers:
        return MemberHosts(slow=sorted(state.slow_hosts))  # for successors of members that are lost later
    wanted = job.charge(size).replace(workers=workers, servers=servers)
    if shares_hosts(size):
        fits = not state.slow_hosts or _holds(wanted, [free_of(host, state) for host in usual])
        return MemberHosts(slow=sorted(state.slow_hosts) if fits else [])
    own = sorted(
        {host for host in job.where.values() if host in state.hosts and host not in state.slow_hosts}
    )
    for hosts, slow in (
        (own, sorted(state.slow_hosts)),
        (usual, sorted(state.slow_hosts)),
        (list(state.hosts), []),
    ):
        placement = place_jobs([wanted], [_node(host, state) for host in hosts])[0]
        if not placement.missing and placement.shares:
            return MemberHosts(
                slow=slow,
                workers=[share.node for share in placement.shares for _ in range(share.workers)],
                servers=[share.node for share in placement.shares for _ in range(share.servers)],
            )
    return MemberHosts()  # it is more than hosts have room for: members then share them


def _node(host: str, state: BrainState) -> Node:
    free = free_of(host, state)
    return Node(host, max(free.cores, 0.0), max(int(free.memory_bytes), 0))


def _holds(wanted: Allocation, free: list[Budget]) -> bool:
    by_workers = room_for(wanted.worker_cores, wanted.worker_memory_bytes, free)
    by_servers = room_for(wanted.server_cores, wanted.server_memory_bytes, free)
    enough = wanted.cores <= sum(max(left.cores, 0.0) for left in free) + _EPSILON
    return enough and wanted.workers <= by_workers and wanted.servers <= by_servers
