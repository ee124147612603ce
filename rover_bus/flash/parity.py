"""Parity groups: k parts in memory of k hosts, and r more that rebuild any r of them (r <= 2).

Fed with images of parts (the data bytes of a staged cut) and with deltas between two cuts; feeds what rebuilds a
lost part. Pure and vectorised. Parity 0 is the XOR of all parts, parity 1 their sum weighted with 2^i (Reed-Solomon
over GF(2^8)). Blocks are versioned by cut (P13): a second buffer is built while the first still rebuilds the cut
before, and no delta is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec
import numpy as np

from rover_bus.events.errors import InputError
from rover_bus.flash.copying import as_bytes, take_rows
from rover_bus.flash.dirty import Ids
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint
from rover_bus.flash.gf256 import Bytes, add_product, inverse, multiply, power, product

MAX_PARTS = 255
MAX_PARITY = 2


def weight(part: int, parity: int) -> int:
    """With what factor part number `part` enters parity block `parity`."""
    if not 0 <= part < MAX_PARTS or not 0 <= parity < MAX_PARITY:
        raise InputError(
            f"part {part}, parity {parity}: a group has at most {MAX_PARTS} parts and {MAX_PARITY} parities"
        )
    return power(part * parity)


def encode(parts: Sequence[Bytes], parities: int) -> list[Bytes]:
    """The parity blocks of some images; shorter images count as if filled with zeros."""
    size = max((len(part) for part in parts), default=0)
    blocks = [np.zeros(size, np.uint8) for _ in range(parities)]
    for number, part in enumerate(parts):
        for parity, block in enumerate(blocks):
            add_product(block, part, weight(number, parity))
    return blocks


def rebuild(count: int, parts: Mapping[int, Bytes], parities: Mapping[int, Bytes]) -> dict[int, Bytes]:
    """The lost ones of `count` parts, from the others and enough parity blocks of the same cut. Filled with zeros
    to the parity's length.

    Raises NoCheckpoint if more are lost than there is parity for.
    """
    lost = [number for number in range(count) if number not in parts]
    if len(lost) > len(parities):
        names = ", ".join(map(str, lost))
        raise NoCheckpoint(
            f"parts {names} are lost and {len(parities)} parity blocks are left: restore from storage"
        )
    used = sorted(parities)[: len(lost)]
    sums = [_remainder(parts, parities[parity], parity) for parity in used]
    if len(lost) == 1:
        (number,), (parity,), (rest,) = lost, used, sums
        return {number: multiply(rest, inverse(weight(number, parity)))}
    return _solve_two(lost, sums) if lost else {}


def _remainder(parts: Mapping[int, Bytes], block: Bytes, parity: int) -> Bytes:
    """What the lost parts contribute to a parity block."""
    rest = block.copy()
    for number, part in parts.items():
        add_product(rest, part, weight(number, parity))
    return rest


def _solve_two(lost: Sequence[int], sums: Sequence[Bytes]) -> dict[int, Bytes]:
    """x + y = p and a*x + b*y = q, for parities 0 and 1."""
    (first, second), (plain, weighted) = lost, sums
    a, b = weight(first, 1), weight(second, 1)
    scale = inverse(a ^ b)
    y = multiply(weighted, scale)
    add_product(y, plain, product(a, scale))
    return {first: plain ^ y, second: y}


# -- deltas ------------------------------------------------------------------------------------------------------------


class RowsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Differences (old XOR new) of some rows of one array: distinct `ids` of rows of `row_bytes`, counted from
    `offset_bytes`.

    Without ids: one run of bytes that begins at `offset_bytes`.
    """

    offset_bytes: int
    row_bytes: int
    ids: Ids
    difference: Bytes


class PartDelta(msgspec.Struct, frozen=True, kw_only=True):
    """How one part's image changed between two cuts. `base_cut` 0: from nothing."""

    part: int
    base_cut: int
    cut: int
    size_bytes: int
    changes: tuple[RowsChanged, ...]


class Outcome(Enum):
    """What became of a delta."""

    ADDED = "added"
    COMPLETED = "completed"  # it was the last of its cut: that cut is now valid
    REPEATED = "repeated"  # this part's delta of this cut was already in
    STALE = "stale"  # the cut is already valid, or older
    EARLY = "early"  # the cut before is not complete yet: send it again later
    GAP = "gap"  # it does not build on the valid cut: send a whole image


class BlockMemory(Protocol):
    """Where the two buffers of a block lie, and what records which of them is a whole version (`parity_slots.py`)."""

    def allocate(self, size_bytes: int) -> Bytes:
        """Return a buffer of zeros."""
        ...

    def release(self, block: Bytes) -> None:
        """The buffer is not used any more."""
        ...

    def void(self, block: Bytes) -> None:
        """The buffer is about to change."""
        ...

    def seal(self, block: Bytes, cut: int) -> None:
        """The buffer holds version `cut`, whole."""
        ...

    def agrees(self, block: Bytes, /) -> bool:
        """Whether the buffer still holds what was sealed last."""
        ...


class ProcessMemory:
    """Buffers of the process: no other process finds them."""

    def allocate(self, size_bytes: int) -> Bytes:
        return np.zeros(size_bytes, np.uint8)

    def release(self, block: Bytes) -> None:
        """Nothing to do: the last reference frees it."""

    def void(self, block: Bytes) -> None:
        """Only this process reads it."""

    def seal(self, block: Bytes, cut: int) -> None:
        """Only this process reads it."""

    def agrees(self, _block: Bytes) -> bool:
        """Only this process writes it."""
        return True


class ParityBlock:
    """One parity block of a group of `parts`, at one holder. `cut` is the version that rebuilds now; 0: none yet."""

    def __init__(self, parts: int, parity: int, memory: BlockMemory | None = None) -> None:
        weight(parts - 1, parity)
        self.parts, self.parity, self.cut = parts, parity, 0
        self._memory = memory or ProcessMemory()
        self._valid, self._building = np.zeros(0, np.uint8), np.zeros(0, np.uint8)
        self._deltas: dict[int, PartDelta] = {}

    @classmethod
    def resume(cls, parts: int, parity: int, cut: int, valid: Bytes, memory: BlockMemory) -> ParityBlock:
        """A block whose version `cut` was kept up by a former run."""
        block = cls(parts, parity, memory)
        block.cut, block._valid = cut, valid
        block.abandon()
        return block

    @property
    def valid(self) -> Bytes:
        """The block of version `cut`. A new version never changes it in place, until the one after that begins."""
        return self._valid

    @property
    def rebuilds(self) -> bool:
        """Whether the valid version is what it was when it became whole: shared memory is damaged by neighbours."""
        return self._memory.agrees(self._valid)

    @property
    def may_go_on(self) -> bool:
        """Whether the next version may be built on what both buffers hold. Before its first delta."""
        return self.rebuilds and self._memory.agrees(self._building[: len(self._valid)])

    def add(self, delta: PartDelta) -> Outcome:
        """Take one part's delta in. Raises BrokenCheckpoint for one that does not fit its own size."""
        outcome = self._decide(delta)
        if outcome is not Outcome.ADDED:
            return outcome
        _check(delta)
        self._building = self._grown(self._building, delta.size_bytes)
        self._apply(self._building, delta)
        self._deltas[delta.part] = delta
        if len(self._deltas) < self.parts:
            return outcome
        self._complete(delta.cut)
        return Outcome.COMPLETED

    def _decide(self, delta: PartDelta) -> Outcome:
        weight(delta.part, self.parity)
        if delta.part >= self.parts:
            raise InputError(f"part {delta.part} is not in this group of {self.parts}")
        if delta.cut <= self.cut:
            return Outcome.STALE
        building = next(iter(self._deltas.values()), None)
        if building is not None and delta.cut != building.cut:
            return Outcome.EARLY if delta.cut > building.cut else Outcome.STALE
        if delta.part in self._deltas:
            return Outcome.REPEATED
        if delta.base_cut != self.cut:
            return Outcome.EARLY if delta.base_cut > self.cut else Outcome.GAP
        return Outcome.ADDED

    def _complete(self, cut: int) -> None:
        """The second buffer becomes the valid one; the first is brought to the same version, to build the next."""
        self._memory.seal(self._building, cut)
        self._memory.void(self._valid)
        self._valid, self._building = self._building, self._grown(self._valid, len(self._building))
        for delta in self._deltas.values():
            self._apply(self._building, delta)
        self.cut, self._deltas = cut, {}

    def abandon(self) -> None:
        """The cut being built will never be complete: go back to the valid one."""
        self._building, self._deltas = self._grown(self._building, len(self._valid)), {}
        self._building[: len(self._valid)] = self._valid
        self._building[len(self._valid) :] = 0

    def _apply(self, block: Bytes, delta: PartDelta) -> None:
        factor = weight(delta.part, self.parity)
        for change in delta.changes:
            target = block[change.offset_bytes :]
            if not len(change.ids):
                add_product(target, change.difference, factor)
                continue
            rows = target[: len(target) // change.row_bytes * change.row_bytes].reshape(-1, change.row_bytes)
            fresh = take_rows(rows, change.ids)
            add_product(as_bytes(fresh), change.difference, factor)
            record = f"V{change.row_bytes}"
            rows.view(record).ravel().put(change.ids, fresh.view(record).ravel(), mode="clip")

    def _grown(self, block: Bytes, size_bytes: int) -> Bytes:
        if len(block) >= size_bytes:
            return block
        larger = self._memory.allocate(size_bytes)
        larger[: len(block)] = block
        self._memory.release(block)
        return larger


def _check(delta: PartDelta) -> None:
    for change in delta.changes:
        ids, size = change.ids, len(change.difference)
        rows = int(ids[-1]) + 1 if len(ids) else 0
        end = change.offset_bytes + (rows * change.row_bytes if rows else size)
        ordered = bool((np.diff(ids) > 0).all()) and (not len(ids) or (ids[0] >= 0 and change.row_bytes > 0))
        if change.offset_bytes < 0 or end > delta.size_bytes or not ordered:
            raise BrokenCheckpoint(f"a delta of part {delta.part} leaves its image: send a whole image")
        if len(ids) and size != len(ids) * change.row_bytes:
            raise BrokenCheckpoint(
                f"a delta of part {delta.part} has {size} bytes for {len(ids)} rows: send it again"
            )
