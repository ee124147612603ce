"""Shared memory of a simulation: what a flash store does for a server, as a dictionary that outlives it.

Fed by `staging`; keeps what P12 keeps: the newest complete cut and the one that is being taken. `forget` is a loss of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rover_bus.events.checkpoints import CutOrder, PartPlace, RestoreOrder, part_name
from rover_bus.ps.snapshots import Snapshot
from rover_bus.ps.staging import Array, FoundPart, PartMissing

Staged = tuple[int, int, FoundPart]  # generation, cut, part


def nothing_stored(order: RestoreOrder) -> Sequence[FoundPart]:
    raise PartMissing(f"cut {order.cut} was never stored: use another cut")


class SharedMemory:
    """The memory of one host: staged parts by name."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Staged]] = {}
        self.read_storage: Callable[[RestoreOrder], Sequence[FoundPart]] = nothing_stored
        self._digested: set[tuple[str, int, int]] = set()  # part, generation, cut

    def forget(self, part: str) -> None:
        self.parts.pop(part, None)

    def holds(self, part: str, generation: int, cut: int) -> bool:
        return any(each[:2] == (generation, cut) for each in self.parts.get(part, []))

    def stage(self, part: str, kept: list[Staged], taken: Staged) -> None:
        """What is staged again is no source before it has digests (P12)."""
        self._digested.discard((part, *taken[:2]))
        self.parts[part] = [*kept, taken]

    def digest(self, part: str, generation: int, cut: int) -> bool:
        """Make a part a source, if it lies here."""
        if self.holds(part, generation, cut):
            self._digested.add((part, generation, cut))
        return self.is_digested(part, generation, cut)

    def is_digested(self, part: str, generation: int, cut: int) -> bool:
        return (part, generation, cut) in self._digested


class SimulatedMemory:
    """One server's port to the memory of its host."""

    def __init__(self, host: SharedMemory, index: int) -> None:
        self._host, self._part = host, part_name(index)

    def save(self, snapshot: Snapshot, order: CutOrder) -> int:
        arrays = {name: np.array(array) for name, array in snapshot.arrays.items()}
        kept = [each for each in self._host.parts.get(self._part, []) if each[1] == order.complete]
        taken = order.generation, order.cut, FoundPart(arrays, snapshot.extra, "memory")
        self._host.stage(self._part, kept, taken)
        return sum(array.nbytes for array in arrays.values())

    async def prepare(self) -> None:
        """There is always room."""

    def missing_bytes(self, arrays: Mapping[str, Array], fixed: frozenset[str]) -> int:  # noqa: ARG002 - the port's
        """Nothing: it has no bounds."""
        return 0

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
                if not self._host.is_digested(name, generation, cut):
                    raise PartMissing(f"cut {cut} of {name} has no digests yet: use another cut")
                return part._replace(arrays={key: np.array(array) for key, array in part.arrays.items()})
        raise PartMissing(f"cut {order.cut} of {name} is not in memory: use another cut")
