"""Which slot the next cut may overwrite (P12): the decider of the store.

Fed with what each slot holds; feeds `store`. Pure. The rule: a slot that holds a cut is overwritten only when a
newer cut is complete over all parts. So between any two steps of any writer there is a complete cut in memory,
whichever process dies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rover_bus.flash.errors import SlotsBusy


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A slot. `save_number` 0: it holds nothing. `cost_bytes`: what bringing it up to date would copy."""

    number: int
    save_number: int
    cut: int
    cost_bytes: int
    busy: bool


def may_overwrite(save_number: int, newest_complete: int) -> bool:
    """Whether P12 allows it, of the slot that holds this save (0: none). `newest_complete` is the number of the newest save that
    is complete over all parts (0: none)."""
    return save_number == 0 or save_number < newest_complete


def choose_slot(candidates: Sequence[Candidate], newest_complete: int) -> Candidate:
    """The cheapest slot that may be overwritten. Raises SlotsBusy, saying for what the slots are kept."""
    free = [item for item in candidates if may_overwrite(item.save_number, newest_complete) and not item.busy]
    if free:
        return min(free, key=lambda item: (item.cost_bytes, item.save_number, item.number))
    raise SlotsBusy(
        f"no slot is free: {'; '.join(_reason(item, newest_complete) for item in candidates)}. "
        "Complete the newer cut, wait for the reader, or prepare one more slot"
    )


def _reason(item: Candidate, newest_complete: int) -> str:
    if may_overwrite(item.save_number, newest_complete):
        return f"a reader holds cut {item.cut}"
    return f"cut {item.cut} has no complete successor"
