"""Where members run: Optimus' theorem, fewest servers that fit, equal workers and parameter servers on each.

Fed by allocations and free nodes, feeds platforms. "fewest servers that fit, equal PS and workers on each, smallest job first"
(`algorithms.md §2` [paper]). Nodes are kept in a heap by what they have free of their scarcer resource, so that 100,000 tasks
on 16,000 nodes are placed in a tenth of a second: placing task by task would take eleven.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rover_bus.brain.decisions.plans import Allocation

MOST_NODES = 256
_MOST_MEMBERS = 1 << 30
_EPSILON = 1e-9


class Node(msgspec.Struct, frozen=True):
    """What a node has free."""

    name: str
    cores: float
    memory_bytes: int


class Share(msgspec.Struct, frozen=True):
    """How many members of a job one node holds."""

    node: str
    workers: int
    servers: int


class Placement(msgspec.Struct, frozen=True):
    """A job's members by node; `missing` members found no room (0 or all of them: jobs are placed whole)."""

    shares: tuple[Share, ...]
    missing: int = 0


# (minus the scarcer free resource in cores, free cores, free bytes, index of the node)
_Room = tuple[float, float, int, int]
_Split = list[tuple[_Room, int, int]]


def place_jobs(allocations: Sequence[Allocation], nodes: Sequence[Node]) -> list[Placement]:
    """Place each job whole, smallest first; the answer is in the order of the allocations.

    On a full cluster smallest first leaves scraps that large containers do not fit: then all is placed again, largest
    containers first, and the better of the two is taken [ours].
    """
    smallest_first = sorted(range(len(allocations)), key=lambda job: (allocations[job].cores, job))
    placed = _place_in_order(allocations, nodes, smallest_first)
    if not any(placement.missing for placement in placed):
        return placed
    largest_containers_first = sorted(smallest_first, key=lambda job: -_largest_container(allocations[job]))
    again = _place_in_order(allocations, nodes, largest_containers_first)
    return min(placed, again, key=lambda placements: sum(placement.missing for placement in placements))


def split_evenly(members: int, nodes: int) -> list[int]:
    """Split members over nodes as equally as whole members allow: the theorem's equal share."""
    share, more = divmod(members, nodes)
    return [share + (i < more) for i in range(nodes)]


def _largest_container(job: Allocation) -> float:
    return max(job.worker_cores if job.workers else 0.0, job.server_cores if job.servers else 0.0)


def _place_in_order(
    allocations: Sequence[Allocation], nodes: Sequence[Node], order: list[int]
) -> list[Placement]:
    yard = _FreeNodes.of(nodes)
    placed = [Placement(())] * len(allocations)
    for job in order:
        placed[job] = yard.place(allocations[job])
    return placed


@dataclass
class _FreeNodes:
    """The free nodes as a heap, roomiest first. `cores_per_byte` makes memory comparable with cores."""

    names: list[str]
    heap: list[_Room]
    cores_per_byte: float

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> _FreeNodes:
        ratio = sum(node.cores for node in nodes) / max(sum(node.memory_bytes for node in nodes), 1)
        yard = cls([node.name for node in nodes], [], ratio)
        yard.heap = [yard.room(node.cores, node.memory_bytes, i) for i, node in enumerate(nodes)]
        heapq.heapify(yard.heap)
        return yard

    def room(self, cores: float, free_bytes: int, node: int) -> _Room:
        return (-min(cores, free_bytes * self.cores_per_byte), cores, free_bytes, node)

    def place(self, job: Allocation) -> Placement:
        """Equal shares on the fewest of the roomiest nodes; where no equal split fits, fill them as they are."""
        if not job.members:
            return Placement(())
        taken: list[_Room] = []
        split: _Split | None = None
        # The cores alone already need so many nodes: fewer need not be tried.
        least = int(job.cores / max(self.heap[0][1], _EPSILON)) if self.heap else 1
        while split is None and self.heap and len(taken) < min(max(job.workers, job.servers), MOST_NODES):
            taken.append(heapq.heappop(self.heap))
            if len(taken) >= least:
                split = _split_equally(job, taken)
        split = split or self._fill(job, taken)
        if split is None:
            for room in taken:
                heapq.heappush(self.heap, room)
            return Placement((), job.members)
        return self._settle(job, split, taken)

    def _fill(self, job: Allocation, taken: list[_Room]) -> _Split | None:
        """Take nodes one by one, filling each; adds to `taken` what it pops. All or nothing.

        A node that has no room for a member is passed over: it may be roomy by its memory alone.
        """
        workers, servers, split = job.workers, job.servers, list[tuple[_Room, int, int]]()
        while workers + servers and len(split) < MOST_NODES:
            if len(split) == len(taken):
                if not self.heap:
                    return None
                taken.append(heapq.heappop(self.heap))
            room = taken[len(split)]
            p = min(servers, _fitting(room, job.server_cores, job.server_memory_bytes))
            rest = self.room(room[1] - p * job.server_cores, room[2] - p * job.server_memory_bytes, room[3])
            w = min(workers, _fitting(rest, job.worker_cores, job.worker_memory_bytes))
            split.append((room, w, p))
            workers, servers = workers - w, servers - p
        return None if workers + servers else split

    def _settle(self, job: Allocation, split: _Split, taken: list[_Room]) -> Placement:
        for room, w, p in split:
            cores = room[1] - w * job.worker_cores - p * job.server_cores
            free_bytes = room[2] - w * job.worker_memory_bytes - p * job.server_memory_bytes
            heapq.heappush(self.heap, self.room(cores, free_bytes, room[3]))
        for room in taken[len(split) :]:
            heapq.heappush(self.heap, room)
        return Placement(tuple(Share(self.names[room[3]], w, p) for room, w, p in split if w + p))


def _split_equally(job: Allocation, nodes: list[_Room]) -> _Split | None:
    """Equal shares on these nodes, or None when one is too small. Spare workers go where no spare server does."""
    workers, servers = split_evenly(job.workers, len(nodes)), split_evenly(job.servers, len(nodes))[::-1]
    for room, w, p in zip(nodes, workers, servers, strict=True):
        cores = w * job.worker_cores + p * job.server_cores
        needed = w * job.worker_memory_bytes + p * job.server_memory_bytes
        if cores > room[1] + _EPSILON or needed > room[2]:
            return None
    return list(zip(nodes, workers, servers, strict=True))


def _fitting(room: _Room, cores: float, needed_bytes: int) -> int:
    """How many members of a size a node holds."""
    by_cores = int((room[1] + _EPSILON) / cores) if cores > 0 else _MOST_MEMBERS
    by_memory = room[2] // needed_bytes if needed_bytes > 0 else _MOST_MEMBERS
    return max(min(by_cores, by_memory), 0)
