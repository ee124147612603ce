"""The machines: who runs where, what is free. The production placement decides, for every policy alike.

Fed by the engine's changes; feeds nothing but its answers. A job is placed whole or not at all, on the hosts that a policy
names where these have room. Else growth adds members, shrinking takes them off the nodes that hold fewest, and a new container
size stays in place where the nodes have room and moves the whole job elsewhere where they have not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.simulation.port import Hosts, Size, Wanted
from rover_bus.brain.decisions.placement import Node, place_jobs
from rover_bus.brain.decisions.plans import GIB, Allocation

_EPSILON = 1e-6


def allocation_of(size: Size) -> Allocation:
    """A size in the Brain's words."""
    return Allocation(
        workers=size.workers,
        servers=size.servers,
        worker_cores=size.worker_cores,
        server_cores=size.server_cores,
        worker_memory_bytes=int(size.worker_gib * GIB),
        server_memory_bytes=int(size.server_gib * GIB),
    )


def size_of(allocation: Allocation) -> Size:
    """The Brain's words as a size."""
    return Size(
        allocation.workers,
        allocation.servers,
        allocation.worker_cores,
        allocation.server_cores,
        allocation.worker_memory_bytes / GIB,
        allocation.server_memory_bytes / GIB,
    )


class Machines:
    """`where[job][node]` is (workers, servers); `cores`, `gib` are what each node has free. `beside[job]`: what workers take that
    train on until their successors come, by node.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.cores, self.gib = hosts.cores.copy(), hosts.gib.copy()
        self.largest_gib = float(hosts.gib.max())
        self.hosts = list(zip(hosts.cores.tolist(), hosts.gib.tolist(), strict=True))
        self.where: dict[str, dict[int, tuple[int, int]]] = {}
        self.sizes: dict[str, Size] = {}
        self.beside: dict[str, list[tuple[int, float, float]]] = {}

    def hosts_of(self, job: str, on: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The hosts of a job's workers, those that train (`on`) first, and of its servers."""
        held = self.where.get(job, {})
        workers = Counter({node: w for node, (w, _) in held.items()})
        servers = tuple(node for node, (_, p) in held.items() for _ in range(p))
        here, left = list[int](), Counter(workers)
        for node in on:  # one that trains on until its successor comes has no place of its own any more
            if left[node] > 0:
                left[node] -= 1
                here.append(node)
        return (*here, *(+left).elements()), servers

    def start(self, job: str, size: Size) -> bool:
        """Place a job that holds nothing. False: no room."""
        shares = self._find(size)
        if shares is None:
            return False
        self._put(job, size, {node: (workers, servers) for node, workers, servers in shares})
        return True

    def stop(self, job: str) -> None:
        """Free all that a job holds."""
        self._free(job)
        self.leave_beside(job)

    def stay_beside(self, job: str, node: int, cores: float, gib: float) -> bool:
        """Let workers of a job stay on a node beside what it holds there. False: no room."""
        if self.cores[node] < cores - _EPSILON or self.gib[node] < gib - _EPSILON:
            return False
        self.beside.setdefault(job, []).append((node, cores, gib))
        self.cores[node] -= cores
        self.gib[node] -= gib
        return True

    def leave_beside(self, job: str) -> None:
        """Those that stayed go."""
        for node, cores, gib in self.beside.pop(job, []):
            self.cores[node] += cores
            self.gib[node] += gib

    def _free(self, job: str) -> None:
        for node, (workers, servers) in list(self.where.pop(job, {}).items()):
            self._charge(node, self.sizes[job], -workers, -servers)
        self.sizes.pop(job, None)

    def change(self, job: str, size: Size) -> bool | None:
        """Make a placed job hold `size`. True: in place; False: moved elsewhere, all members new; None: no room, nothing
        changed."""
        if self._change_in_place(job, size):
            return True
        before, shares = self.sizes[job], dict(self.where[job])
        self._free(job)
        if self.start(job, size):
            return False
        self._put(job, before, shares)
        return None

    def seat(self, wanted: Wanted) -> bool:
        """Put a job's members on the hosts that are named for them. False: none are, or they lack room; nothing changed."""
        job, size = wanted.job, wanted.size
        if (len(wanted.worker_hosts), len(wanted.server_hosts)) != (size.workers, size.servers):
            return False
        workers, servers = Counter(wanted.worker_hosts), Counter(wanted.server_hosts)
        before, had = self.sizes.get(job), dict(self.where.get(job, {}))
        self._free(job)
        self._put(job, size, {node: (workers[node], servers[node]) for node in workers | servers})
        if self._has_room:
            return True
        self._free(job)
        if before is not None:
            self._put(job, before, had)
        return False

    @property
    def _has_room(self) -> bool:
        return bool(self.cores.min() >= -_EPSILON and self.gib.min() >= -_EPSILON)

    def _put(self, job: str, size: Size, seats: Mapping[int, tuple[int, int]]) -> None:
        self.where[job], self.sizes[job] = {}, size
        for node, (workers, servers) in seats.items():
            self._take(job, node, workers, servers)

    def grow(self, job: str, size: Size) -> bool:
        """Make a placed job hold more where it is. False: no room, nothing changed."""
        return self._change_in_place(job, size)

    def add_worker(self, job: str, host: int) -> bool:
        """Make a placed job hold one worker more: on a host, or where there is room if it has none (-1: on any). False: no room."""
        size = self.sizes[job]
        if host < 0 or self.cores[host] < size.worker_cores - _EPSILON or self.gib[host] < size.worker_gib:
            return self.grow(job, size._replace(workers=size.workers + 1))
        self.sizes[job] = size._replace(workers=size.workers + 1)
        self._take(job, host, 1, 0)
        return True

    def leave(self, job: str, node: int) -> None:
        """One worker of a job leaves a node."""
        size, (workers, servers) = self.sizes[job], self.where[job][node]
        self._charge(node, size, -1, 0)
        self.sizes[job] = size._replace(workers=size.workers - 1)
        self.where[job][node] = (workers - 1, servers)
        if workers + servers == 1:
            del self.where[job][node]

    def crowd(self, node: int) -> dict[str, tuple[int, int]]:
        """Who runs on a node."""
        return {job: shares[node] for job, shares in self.where.items() if node in shares}

    def _change_in_place(self, job: str, size: Size) -> bool:
        old, shares = self.sizes[job], dict(self.where[job])
        fewer = (old.workers - size.workers, old.servers - size.servers)
        kept = _without(shares, max(fewer[0], 0), max(fewer[1], 0))
        cores, gib = self.cores.copy(), self.gib.copy()
        self._free(job)
        self._put(job, size, kept)
        more = size._replace(workers=max(-fewer[0], 0), servers=max(-fewer[1], 0))
        shares_more = self._find(more) if self._has_room else None
        if shares_more is None:
            self.cores, self.gib = cores, gib
            self.where[job], self.sizes[job] = shares, old
            return False
        for node, workers, servers in shares_more:
            self._take(job, node, workers, servers)
        return True

    def _find(self, size: Size) -> list[tuple[int, int, int]] | None:
        if not size.members:
            return []
        nodes = [
            Node(str(i), float(cores), int(gib * GIB))
            for i, (cores, gib) in enumerate(zip(self.cores, self.gib, strict=True))
        ]
        placement = place_jobs([allocation_of(size)], nodes)[0]
        if placement.missing:
            return None
        return [(int(share.node), share.workers, share.servers) for share in placement.shares]

    def _take(self, job: str, node: int, workers: int, servers: int) -> None:
        held = self.where[job].get(node, (0, 0))
        self.where[job][node] = (held[0] + workers, held[1] + servers)
        self._charge(node, self.sizes[job], workers, servers)

    def _charge(self, node: int, size: Size, workers: int, servers: int) -> None:
        self.cores[node] -= workers * size.worker_cores + servers * size.server_cores
        self.gib[node] -= workers * size.worker_gib + servers * size.server_gib


def _without(shares: dict[int, tuple[int, int]], workers: int, servers: int) -> dict[int, tuple[int, int]]:
    """Take members off the nodes that hold fewest of the job first, so that nodes become free."""
    kept = dict(shares)
    for node in sorted(kept, key=lambda n: (sum(kept[n]), n)):
        w, p = kept[node]
        w_off, p_off = min(w, workers), min(p, servers)
        workers, servers = workers - w_off, servers - p_off
        kept[node] = (w - w_off, p - p_off)
    return {node: share for node, share in kept.items() if sum(share)}
