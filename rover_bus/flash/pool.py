"""The slots of one part: how many there are, what each lacks, which are under a restored state.

Fed by the store; feeds it slots to write and pieces to copy. It is apart from the store because memory (allocate,
adopt, drop) and cuts (save, complete, restore) change for different reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rover_bus.flash import places
from rover_bus.flash.choice import Candidate, may_overwrite
from rover_bus.flash.copying import Piece
from rover_bus.flash.dirty import DirtySet, Ids
from rover_bus.flash.errors import BrokenCheckpoint, NewerCheckpoint
from rover_bus.flash.layout import Array, Layout, fit
from rover_bus.flash.packing import PACKING_SHARE
from rover_bus.flash.slot import Slot, slot_room

CREATION_COST = 4  # a slot that must be allocated first costs as much as copying the state a few times


def slot_bytes(layout: Layout, extra_bytes: int) -> int:
    """Return what one slot takes."""
    return slot_room(layout, extra_bytes, int(PACKING_SHARE * layout.data_bytes))[1]


class SlotPool:
    """Slots of `part` in `directory`, with their dirty sets."""

    def __init__(self, directory: Path, part: str) -> None:
        self._directory, self._part = directory, part
        self._slots: dict[int, Slot] = {}
        self._dirty: dict[int, DirtySet] = {}
        self._restored: set[int] = set()
        self.broken: list[str] = []  # what was wrong with slots that could not be taken over

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def newest(self) -> Slot | None:
        """The slot that holds the newest save, if any does."""
        slot = max(self, key=lambda slot: slot.save_number, default=None)
        return slot if slot and slot.seal else None

    def adopt(self) -> None:
        """Take over what a former process left: whole cuts stay, everything else goes. Raises NewerCheckpoint."""
        for path in self._directory.glob(f"{self._part}.*.new"):
            path.unlink(missing_ok=True)  # a daemon may finish its digests at this moment
        for number, path in places.numbered(self._directory, self._part, "slot"):
            try:
                slot = Slot.adopt(path, number)
            except NewerCheckpoint:
                raise
            except BrokenCheckpoint as error:
                self.broken.append(f"{path}: {error}")
                slot = None
            if slot is None:
                path.unlink()
                places.digests_path(path).unlink(missing_ok=True)
            else:
                self._keep(slot)

    def add(self, layout: Layout, extra_bytes: int) -> Slot:
        """Allocate one more. Raises NotEnoughMemory."""
        number = 1 + max(self._slots, default=0)
        path = places.slot_path(self._directory, self._part, number)
        slot = Slot.create(path, number, layout, extra_bytes, int(PACKING_SHARE * layout.data_bytes))
        self._keep(slot)
        return slot

    def _keep(self, slot: Slot) -> None:
        self._slots[slot.number], self._dirty[slot.number] = slot, DirtySet()

    def drop(self, slot: Slot) -> None:
        """Remove a slot; its memory is freed when the last reader lets go."""
        del self._slots[slot.number], self._dirty[slot.number]
        self._restored.discard(slot.number)
        slot.remove()

    def make_way(self, arrays: Mapping[str, Array], newest_complete: int) -> int:
        """Drop slots that a state has outgrown and that may be overwritten: the old and the new of all slots together may be more
        than there is. Return how many stay for it: those that it fits into, and the newest complete cut until another one is.
        """
        stay = 0
        for slot in self.usable:
            if fit(slot.layout, arrays)[0] is not None or slot.save_number == newest_complete > 0:
                stay += 1
            elif may_overwrite(slot.save_number, newest_complete) and slot.claim():
                self.drop(slot)
        return stay

    def close(self) -> None:
        for slot in self:
            slot.close()
        self._slots.clear()

    # -- restored states -----------------------------------------------------------------------------------------------

    def lend(self, path: Path) -> None:
        """A state was restored copy-on-write from this slot: it must never be written while that state lives."""
        self._restored.update(slot.number for slot in self if slot.path == path)

    def is_lent(self, slot: Slot) -> bool:
        return slot.number in self._restored and slot.is_read

    @property
    def usable(self) -> list[Slot]:
        """Slots that are, or will be, free to be written."""
        return [slot for slot in self if not self.is_lent(slot)]

    # -- what a slot lacks ---------------------------------------------------------------------------------------------

    def note(self, touched: Mapping[str, Ids], arrays: Mapping[str, Array]) -> None:
        """Something changed: every slot is that much older."""
        for dirty in self._dirty.values():
            dirty.note(touched, arrays)

    def invalidate(self, slot: Slot) -> None:
        """From here on the slot holds no cut; what it lacks is known all the same."""
        self._note_unfolded(slot)
        slot.invalidate()

    def give_up(self, slot: Slot) -> None:
        """What the slot holds will never be a source: nothing in it is built on, the next save copies all of the state."""
        slot.invalidate()
        self._dirty[slot.number].soil()

    def _note_unfolded(self, slot: Slot) -> None:
        """Rows that were packed and never put into their places are as stale as if they had been touched."""
        held = {entry.name: entry for entry in slot.layout.entries}
        for name, ids in slot.unfolded.items():
            self._dirty[slot.number].add(name, ids, held[name].shape[0])

    def dirty(self, slot: Slot) -> DirtySet:
        return self._dirty[slot.number]

    def candidate(self, slot: Slot, arrays: Mapping[str, Array], newest_complete: int) -> Candidate:
        """The slot as `choice` sees it, for a save of `arrays`. What is not to be overwritten is not weighed."""
        if slot.save_number >= newest_complete > 0:
            cost = 0
        elif fit(slot.layout, arrays)[0] is None:
            cost = CREATION_COST * sum(array.nbytes for array in arrays.values())
        else:
            cost = self._dirty[slot.number].cost_bytes(arrays)
        cut = slot.seal.cut if slot.seal else 0
        return Candidate(
            number=slot.number, save_number=slot.save_number, cut=cut, cost_bytes=cost, busy=slot.is_read
        )

    def pieces(self, slot: Slot, arrays: Mapping[str, Array], layout: Layout) -> dict[str, Piece]:
        """What to copy so that a slot into which `arrays` fit, as `layout`, equals them. By name of the array."""
        held = {entry.name: entry for entry in slot.layout.entries}
        self._note_unfolded(slot)
        dirty, views = self._dirty[slot.number], slot.views(layout)
        pieces = {
            name: Piece(views[name], array, dirty.stale(held[name], array)) for name, array in arrays.items()
        }
        return {name: piece for name, piece in pieces.items() if piece.size_bytes}
