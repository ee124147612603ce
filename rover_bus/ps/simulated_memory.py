"""Shared memory of a simulation: what a flash store does for a server, as a dictionary that outlives it.

Fed by `staging`; keeps what P12 keeps: the newest complete cut and the one that is being taken. `forget` is a loss of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rover_bus.events.checkpoints import CutOrder, PartPlace, RestoreOrder, part_name
from rover_bus.ps.snapshots import Snapshot
from rover_bus.ps.staging import FoundPart, PartMissing

Staged = tuple[int, int, FoundPart]  # generation, cut, part


def nothing_stored(order: RestoreOrder) -> Sequence[FoundPart]:
    raise PartMissing(f"cut {order.cut} was never stored: use another cut")


class SharedMemory:
    """The memory of one host: staged parts by name."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Staged]] = {}
        self.read_storage: Callable[[RestoreOrder], Sequence[FoundPart]] = nothing_stored

    def forget(self, part: str) -> None:
        self.parts.pop(part, None)


class SimulatedMemory:
    """One server's port to the memory of its host."""

    def __init__(self, host: SharedMemory, index: int) -> None:
        self._host, self._part = host, part_name(index)

    def save(self, snapshot: Snapshot, order: CutOrder) -> int:
        arrays = {name: np.array(array) for name, array in snapshot.arrays.items()}
        kept = [each for each in self._host.parts.get(self._part, []) if each[1] == order.complete]
        taken = order.generation, order.cut, FoundPart(arrays, snapshot.extra, "memory")
        self._host.parts[self._part] = [*kept, taken]
        return sum(array.nbytes for array in arrays.values())

    async def prepare(self) -> None:
        """There is always room."""

    async def tidy(self) -> None:
        """Nothing is spare."""

    def close(self) -> None:
        """Nothing is held."""

    def find(self, order: RestoreOrder, wanted: Sequence[PartPlace]) -> Sequence[FoundPart]:
        try:
            if wanted:
                return [self._copy(order, place.part) for place in wanted]
        except PartMissing:
            if not order.path:
                raise
        return self._host.read_storage(order)

    def _copy(self, order: RestoreOrder, name: str) -> FoundPart:
        for generation, cut, part in self._host.parts.get(name, []):
            if (generation, cut) == (order.generation, order.cut):
                return part._replace(arrays={key: np.array(array) for key, array in part.arrays.items()})
        raise PartMissing(f"cut {order.cut} of {name} is not in memory: use another cut")
