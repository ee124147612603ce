"""Parity blocks that this host holds for others: kept up cut by cut, and lent to whoever rebuilds a lost part (protocol P13).

Fed by the persister's tasks with sources of parts, asked by the server of peers.py. They lie in the daemon's own memory: one
that starts anew has none until the next cut. One thread keeps them up, others read what is valid: a version replaces another whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from rover_bus.flash.copies import Offer, Since, Source
from rover_bus.flash.errors import NoCheckpoint
from rover_bus.flash.images import read_delta
from rover_bus.flash.layout import Array
from rover_bus.flash.parity import Outcome, ParityBlock

Connect = Callable[[str, bool], Source]  # a part's name, whether differences are wanted


class Lent(msgspec.Struct, frozen=True, kw_only=True):
    """A parity block as it goes to a host that rebuilds: `offer` describes the lost part, `parts` the group in order."""

    parity: int
    parts: list[str]
    offer: Offer
    size_bytes: int


@dataclass(slots=True)
class Held:
    """One block, and the offers of the parts that its valid version stands for."""

    parts: tuple[str, ...]
    block: ParityBlock
    generation: int = 0
    offers: dict[str, Offer] = field(default_factory=dict)


class Parities:
    """All blocks of this host."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}  # by (job uid, group)
        self._lock = threading.Lock()

    def keep_up(
        self, uid: str, parts: Sequence[str], parity: int, cut: tuple[int, int], connect: Connect
    ) -> None:
        """Bring the block of a group to a cut (generation, cut): by differences where every owner knows them, else from images.

        Raises what the sources raise; the version before stays valid then.
        """
        held = self._held.get((uid, parts[0]))
        fits = held and held.parts == tuple(parts) and held.block.parity == parity
        if held and fits and (held.generation, held.block.cut) == cut:
            return
        if not (held and fits and held.generation == cut[0] and self._follow(held, connect)):
            held = Held(tuple(parts), ParityBlock(len(parts), parity), cut[0])
            self._begin(held, connect)
        with self._lock:
            self._held[uid, parts[0]] = held

    def _begin(self, held: Held, connect: Connect) -> None:
        offers = {}
        for number, part in enumerate(held.parts):
            offers[part], delta = read_delta(connect(part, False), number, 0, Since())
            held.block.add(delta)
        held.offers = offers

    def _follow(self, held: Held, connect: Connect) -> bool:
        """Add what changed since the valid version; False: some owner does not know it."""
        offers = {}
        try:
            for number, part in enumerate(held.parts):
                old = held.offers[part]
                since = Since(history=old.history, generation=old.generation, save_number=old.save_number)
                offers[part], delta = read_delta(connect(part, True), number, held.block.cut, since)
                if held.block.add(delta) not in (Outcome.ADDED, Outcome.COMPLETED):
                    held.block.abandon()
                    return False
        except BaseException:
            held.block.abandon()
            raise
        with self._lock:
            held.offers = offers
        return True

    def lend(self, uid: str, part: str, generation: int, cut: int) -> tuple[Lent, Array]:
        """Return the block that stands for a part of a cut. Raises NoCheckpoint."""
        with self._lock:
            for (of, _), held in self._held.items():
                offer = held.offers.get(part)
                if of == uid and offer is not None and (offer.generation, offer.cut) == (generation, cut):
                    if held.block.cut != cut:
                        continue
                    block = held.block.valid
                    lent = Lent(
                        parity=held.block.parity, parts=list(held.parts), offer=offer, size_bytes=len(block)
                    )
                    return lent, block
        raise NoCheckpoint(f"no parity of cut {cut} of {part} is held here")

    def forget(self, uid: str) -> None:
        """The job is over."""
        with self._lock:
            self._held = {key: held for key, held in self._held.items() if key[0] != uid}
