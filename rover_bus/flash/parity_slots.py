"""The buffers of a parity block in shared memory: what is held for others outlives the daemon that holds it (protocol P12, P13).

Fed by `parity.ParityBlock`, whose two buffers are views of slots made here; feeds the next run of a daemon with the newest valid
version. A slot like any other: sealed when its version is whole and digested, void before a byte of it changes. Apart from
`parity.py`, which is arithmetic and knows no files. Where memory is short a block is kept in its process, and dies with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from rover_bus.events.errors import NotEnoughMemory, RoverError
from rover_bus.flash import places
from rover_bus.flash.digests import Digests, bind, digest_arrays, read_digests, write_digests
from rover_bus.flash.gf256 import Bytes
from rover_bus.flash.layout import plan_layout
from rover_bus.flash.seal import Head
from rover_bus.flash.slot import Slot
from rover_bus.flash.staged import find_staged
from rover_bus.flash.sweep import hold_job
from rover_bus.flash.verified import open_verified

MODEL = "parity block"  # of the head: no part's restore takes one for a state
Describe = Callable[[], bytes]


def parity_of(uid: str) -> str:
    """The directory, below a host's root, of the parity blocks that it holds for a job."""
    return places.checked(uid + places.PARITY, "job")


class ParitySlots:
    """Memory of one block: `parity.BlockMemory` on slots. `describe`: what a later run must know of the valid version."""

    def __init__(self, directory: Path, name: str, describe: Describe) -> None:
        self._directory, self._name, self._describe = directory, places.checked(name, "part"), describe
        self._slots: dict[int, Slot] = {}  # by the address of their first byte
        self._sealed: Digests | None = None  # of the newest whole version
        self._lock = hold_job(directory)
        found = find_staged(directory, name)
        self._saves = found[0].seal.save_number if found else 0

    def allocate(self, size_bytes: int) -> Bytes:
        """Return a buffer of zeros; in the process where shared memory has no room for it."""
        try:
            slot = self._create(size_bytes)
        except (NotEnoughMemory, OSError):
            return np.zeros(size_bytes, np.uint8)
        return self._own(slot)

    def _create(self, size_bytes: int) -> Slot:
        numbers = [number for number, _ in places.numbered(self._directory, self._name, "slot")]
        number = max(numbers, default=0) + 1
        path = places.slot_path(self._directory, self._name, number)
        return Slot.create(path, number, plan_layout({"block": np.broadcast_to(np.uint8(0), size_bytes)}))

    def _own(self, slot: Slot) -> Bytes:
        slot.claim()
        block: Bytes = slot.views(slot.layout)["block"]
        self._slots[_address(block)] = slot
        return block

    def release(self, block: Bytes) -> None:
        """A buffer is not used any more."""
        slot = self._slots.pop(_address(block), None)
        if slot is not None:
            slot.remove()

    def void(self, block: Bytes) -> None:
        """The buffer is about to change: whatever happens from here on, no reader takes it for a version."""
        slot = self._slots.get(_address(block))
        if slot is not None and slot.seal is not None:
            slot.invalidate()

    def seal(self, block: Bytes, cut: int) -> None:
        """The buffer holds a whole version: digest it and say so. Without room for its description it stays unsealed."""
        slot = self._slots.get(_address(block))
        if slot is None:
            return
        head = Head(layout=slot.layout, model=MODEL, extra=self._describe())
        if not slot.holds_head(head):
            return
        self._saves += 1
        self._sealed = digest_arrays({"block": block})["block"]
        slot.stamp(head, timeline=0, generation=0, cut=cut, save_number=self._saves)
        assert slot.seal is not None
        write_digests(slot.path, bind(slot.seal, {"block": self._sealed}))

    def agrees(self, block: Bytes) -> bool:
        """Whether a buffer is what the newest whole version was digested as; a buffer of the process is believed."""
        if self._sealed is None:
            return True
        return np.array_equal(digest_arrays({"block": block})["block"], self._sealed)

    def adopt(self) -> tuple[Bytes, bytes] | None:
        """Take over the newest whole version of a former run, checked; return it and its description. The rest is removed."""
        adopted = next(self._whole(), None)
        for _, path in places.numbered(self._directory, self._name, "slot"):
            if adopted is None or path != adopted[0].path:
                path.unlink(missing_ok=True)
                places.digests_path(path).unlink(missing_ok=True)
        if adopted is None:
            return None
        slot, description = adopted
        return self._own(slot), description

    def _whole(self) -> Iterator[tuple[Slot, bytes]]:
        for found in find_staged(self._directory, self._name):
            with suppress(RoverError, OSError, msgspec.MsgspecError, KeyError):
                staged = open_verified(found.path)
                if staged is None or staged.head.model != MODEL:
                    continue
                description = staged.extra
                known = read_digests(staged.path, staged.seal)
                staged.close()
                del staged
                self._sealed = known.digests_of("block") if known is not None else None
                slot = Slot.adopt(found.path, found.number)
                if slot is not None:
                    yield slot, description

    def close(self) -> None:
        """Let go of everything; sealed versions stay where they are."""
        for slot in self._slots.values():
            slot.release()
            slot.close()
        self._slots.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove everything that this block has."""
        for slot in self._slots.values():
            slot.remove()
        self._slots.clear()
        self.close()


def _address(block: Bytes) -> int:
    return int(block.__array_interface__["data"][0])
