"""Where a server puts its part of a cut, and where it finds the parts of one that it goes back to (P9, P11, P12).

Fed by `service` (orders of the master), works on a `core.ServerCore` on the thread that owns its tables. The decisions are here and
pure; memory is a port: `flash_memory` live (shared memory, storage), a dictionary in simulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rover_bus.events.checkpoints import CutOrder, PartPlace, PartReport, RestoreOrder, RestoreReport
from rover_bus.events.errors import NotEnoughMemory, PermanentError, RoverError, TemporaryError
from rover_bus.ps import snapshots
from rover_bus.ps.core import ServerCore
from rover_bus.ps.snapshots import OpenedPart, Snapshot

Array = npt.NDArray[Any]
Int = npt.NDArray[np.int64]
WITNESS = "witness"  # a job's own: never taken over from another job


class FoundPart(NamedTuple):
    """A part as it was staged or stored. `source`: memory | peer | parity | storage; the arrays are private to the reader.

    `refused`: a line for each source that was tried before, and why it could not be believed.
    """

    arrays: Mapping[str, Array]
    extra: bytes
    source: str
    refused: tuple[str, ...] = ()


class RoomNotPrepared(TemporaryError):
    """There is no room yet for what is to be staged: prepare it off the tables' thread, then try again."""

    code = "not_prepared"


class PartMissing(PermanentError):
    """No memory and no storage has a part of the cut."""

    code = "part_missing"


class Memory(Protocol):
    """One server's part of memory that outlives it, and a way to the parts of others."""

    def save(self, snapshot: Snapshot, order: CutOrder) -> int:
        """Copy a snapshot as the order's cut; return bytes copied. Raises NotPrepared, and RoverError for what goes wrong."""

    async def prepare(self) -> None:
        """Make room for the snapshot that found none. Slow: training goes on meanwhile."""

    def missing_bytes(self, arrays: Mapping[str, Array], fixed: frozenset[str]) -> int:
        """Memory that cuts of a state like this will take beyond what they take now. `fixed`: arrays that never grow."""

    async def tidy(self) -> None:
        """Give back what the state has outgrown. May be slow."""

    def close(self) -> None:
        """Let go; what is staged stays."""

    def find(self, order: RestoreOrder, wanted: Sequence[PartPlace]) -> Sequence[FoundPart]:
        """Return these parts of a cut (all there are, where none is named). Raises RoverError saying what is missing."""


class Stager:
    """One server's staging. `clock` gives monotonic seconds: how long training stood still is part of the report."""

    def __init__(self, memory: Memory, clock: Any) -> None:
        self.memory, self._clock = memory, clock
        self.staged: PartReport | None = None
        self.restored: RestoreReport | None = None

    def is_due(self, order: CutOrder | None) -> bool:
        """Whether an order asks for what was not staged yet."""
        if order is None or not order.cut or order.round < 0:
            return False
        done = self.staged
        return (
            done is None
            or bool(done.problem)
            or ((done.cut, done.identity, done.round) != (order.cut, order.identity, order.round))
        )

    def stage(self, core: ServerCore, order: CutOrder) -> None:
        """Take the part, between two pushes. Raises NotPrepared; anything else becomes the report's problem."""
        began = self._clock()
        try:
            snapshot = core.snapshot(order.identity)
            copied = self.memory.save(snapshot, order)
        except RoomNotPrepared:
            raise
        except RoverError as error:
            self.staged = _refused(order, error)
            return
        if core.tables is not None:
            core.tables.follow_changes()
        self.staged = PartReport(
            cut=order.cut,
            identity=order.identity,
            round=order.round,
            slots=list(snapshot.slots),
            size_bytes=sum(array.nbytes for array in snapshot.arrays.values()),
            copied_bytes=copied,
            blocked_s=self._clock() - began,
        )

    async def prepare(self, order: CutOrder) -> None:
        """Make room, beside training. What goes wrong becomes the report's problem."""
        try:
            await self.memory.prepare()
        except RoverError as error:
            self.staged = _refused(order, error)

    def unstaged_bytes(self, core: ServerCore) -> int:
        """Return the shared memory that the next cuts will take beyond what cuts take now, as large as the tables are now."""
        return self.memory.missing_bytes(*snapshots.arrays_of(core.tables)) if core.tables is not None else 0

    def restore(self, core: ServerCore, order: RestoreOrder, slots: Int) -> None:
        """Load the slots that are wanted from the parts of a cut. What goes wrong becomes the report's problem."""
        began = self._clock()
        try:
            found = self.memory.find(order, needed(order, slots))
            part, source = assemble(found, order, slots)
            core.load(part)
        except RoverError as error:
            self.restored = RestoreReport(cut=order.cut, path=order.path, problem=str(error))
            return
        self.restored = RestoreReport(
            cut=order.cut,
            path=order.path,
            source=source,
            seconds=self._clock() - began,
            rows=part.tables.rows,
            refused=list(dict.fromkeys(line for each in found for line in each.refused)),
        )


def _refused(order: CutOrder, error: RoverError) -> PartReport:
    again = isinstance(error, TemporaryError)
    wanted = error.wanted_bytes if isinstance(error, NotEnoughMemory) else 0
    return PartReport(
        cut=order.cut,
        identity=order.identity,
        round=order.round,
        problem=str(error),
        again=again,
        wanted_bytes=wanted,
    )


def needed(order: RestoreOrder, slots: Int) -> list[PartPlace]:
    """Return the parts that have some of the slots: one alone where it has just these."""
    wanted = set(slots.tolist())
    some = []
    for place in order.parts:
        held = {slot for first, end in place.slots for slot in range(first, end)}
        if held == wanted:
            return [place]
        if held & wanted:
            some.append(place)
    return some


def assemble(found: Sequence[FoundPart], order: RestoreOrder, slots: Int) -> tuple[OpenedPart, str]:
    """Return the state of some slots, and where it came from. A part of just these slots is adopted without a copy."""
    wanted = np.sort(slots)
    opened = []
    for part in found:
        if order.identity and snapshots.describe(part.extra).identity != order.identity:
            raise PartMissing(
                f"a part in {part.source} is of another cut {order.cut}, which the log has lost: use another cut"
            )
        owned = np.array(snapshots.describe(part.extra).owned, np.int64)
        if np.array_equal(np.sort(owned), wanted):
            opened = [(snapshots.open_part(part.arrays, part.extra), part.source)]
            break
        if np.isin(owned, wanted).any():
            opened.append((snapshots.open_part(part.arrays, part.extra), part.source))
    if not opened:
        raise PartMissing(f"no part of cut {order.cut} was found for {len(wanted)} slots: use another cut")
    source = max((source for _, source in opened), key=("memory", "peer", "parity", "storage").index)
    first = opened[0][0]
    exact = len(opened) == 1 and np.array_equal(first.tables.owned, wanted)
    loaded = first if exact else snapshots.merge([each for each, _ in opened], wanted)
    if order.foreign:
        snapshots.forget_table(loaded, WITNESS)
        everything = tuple(group._replace(applied={}) for group in loaded.groups)
        loaded = loaded._replace(groups=everything, version=0, closed_before=0)
    return loaded, source
