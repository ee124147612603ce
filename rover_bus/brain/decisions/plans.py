"""What a plan is: an allocation, the space of allocations, and a decision with its reason, scores and losers.

Fed by job specs and menus of container sizes; used by every decision. An allocation is absolute (P22): it says what shall
be, never what to add.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.models.samples import Configuration, Configurations, FloatArray
from rover_bus.events.invariants import Bytes, Checked, Cores, Count

GIB = 2**30
Number = TypeVar("Number", int, float)


class Allocation(Checked, frozen=True, kw_only=True, gc=False):
    """How many members of each role, and how big each is. Memory is a member's limit in bytes."""

    workers: Count
    servers: Count
    worker_cores: Cores = 1.0
    server_cores: Cores = 1.0
    worker_memory_bytes: Bytes = 0
    server_memory_bytes: Bytes = 0

    @property
    def cores(self) -> float:
        """Cores of all members together."""
        return self.workers * self.worker_cores + self.servers * self.server_cores

    @property
    def memory_bytes(self) -> int:
        """Memory of all members together."""
        return self.workers * self.worker_memory_bytes + self.servers * self.server_memory_bytes

    @property
    def members(self) -> int:
        """Workers and servers."""
        return self.workers + self.servers

    def configuration(self, batch_size: float = 1.0) -> Configuration:
        """Return the point at which the throughput model is asked."""
        return Configuration(self.workers, self.servers, self.worker_cores, self.server_cores, batch_size)


class Prices(Checked, frozen=True, kw_only=True):
    """What resources cost, in any one currency: a core, and a GiB of memory."""

    core: float = 1.0
    memory_gib: float = 0.1

    def cost(self, allocation: Allocation) -> float:
        """Price of an allocation an hour, or whatever the currency's unit of time is."""
        return self.core * allocation.cores + self.memory_gib * allocation.memory_bytes / GIB


class Loser(msgspec.Struct, frozen=True):
    """An alternative that was not taken, and why."""

    allocation: Allocation
    reason: Reason
    score: float


class PlanDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be, why, by which scores, and what lost: the body of every plan that a person reads."""

    allocation: Allocation
    reason: Reason
    scores: dict[str, float] = {}
    losers: tuple[Loser, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class PlanSpace:
    """The grid of allocations: every combination of counts and container sizes."""

    workers: tuple[int, ...] = tuple(range(1, 65))
    servers: tuple[int, ...] = tuple(range(1, 17))
    worker_cores: tuple[float, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    server_cores: tuple[float, ...] = (1, 2, 3, 4, 6, 8, 12, 16)

    def __len__(self) -> int:
        return len(self.workers) * len(self.servers) * len(self.worker_cores) * len(self.server_cores)

    @cached_property
    def _grid(self) -> tuple[FloatArray, ...]:
        axes: tuple[tuple[float, ...], ...] = (
            self.workers,
            self.servers,
            self.worker_cores,
            self.server_cores,
        )
        arrays = [np.array(axis, dtype=np.float64) for axis in axes]
        return tuple(np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(*arrays, indexing="ij"))

    def configurations(self, batch_size: float = 1.0) -> Configurations:
        """Return every point of the grid, workers slowest: shape (len,)."""
        w, p, worker_cores, server_cores = self._grid
        return Configurations(w, p, worker_cores, server_cores, np.full(len(self), batch_size))

    def within(self, low: Allocation, high: Allocation) -> PlanSpace:
        """Return the part of the grid between two allocations, borders included. An axis never becomes empty."""
        return PlanSpace(
            _between(self.workers, low.workers, high.workers),
            _between(self.servers, low.servers, high.servers),
            _between(self.worker_cores, low.worker_cores, high.worker_cores),
            _between(self.server_cores, low.server_cores, high.server_cores),
        )


def _between(axis: tuple[Number, ...], low: float, high: float) -> tuple[Number, ...]:
    inside = tuple(value for value in axis if low <= value <= high)
    return inside or (min(axis, key=lambda value: abs(value - low)),)
