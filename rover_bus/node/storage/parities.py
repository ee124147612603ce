"""Parity blocks that this host holds for others: kept up cut by cut, and served where a lost part is rebuilt (protocol P13).

Fed by the persister's tasks with sources of parts, asked by the server of peers.py. They lie in shared memory
(flash/parity_slots.py): a daemon that starts again finds the newest whole version of each. One thread keeps them up, others
read what is valid: a version replaces another whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.flash.copies import CopySource, Offer, Since
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint
from rover_bus.flash.images import read_delta
from rover_bus.flash.layout import Array
from rover_bus.flash.parity import Outcome, ParityBlock
from rover_bus.flash.parity_slots import ParitySlots, parity_of
from rover_bus.flash.places import job_directory, parts_in

log = get_logger("rover.node")
Connect = Callable[[str, bool], CopySource]  # a part's name, whether differences are wanted


class ServedParity(msgspec.Struct, frozen=True, kw_only=True):
    """A parity block as it goes to a host that rebuilds: `offer` describes the lost part, `parts` the group in order."""

    parity: int
    parts: list[str]
    offer: Offer
    size_bytes: int


class BlockDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a block in shared memory is, for a later incarnation of the daemon: its group, and the offers that it stands for."""

    parts: list[str]
    parity: int
    generation: int
    offers: dict[str, Offer]


BLOCKS = msgspec.msgpack.Decoder(BlockDescription)  # made once, at import: see journal.py


class HeldBlock:
    """One block, and the offers of the parts that its valid version stands for; `coming`: of the version that is being built."""

    def __init__(self, parts: tuple[str, ...], parity: int, generation: int, directory: Path | None) -> None:
        self.parts, self.parity, self.generation = parts, parity, generation
        self.offers: dict[str, Offer] = {}
        self.coming: dict[str, Offer] = {}
        self.slots = ParitySlots(directory, parts[0], self._describe) if directory else None
        self.block = ParityBlock(len(parts), parity, self.slots)

    def _describe(self) -> bytes:
        known = BlockDescription(
            parts=list(self.parts), parity=self.parity, generation=self.generation, offers=self.coming
        )
        return msgspec.msgpack.encode(known)

    @classmethod
    def found(cls, directory: Path, name: str) -> HeldBlock | None:
        """The block of a group as a former incarnation left it; None where no whole version is there."""
        held = cls((name,), 0, 0, directory)
        slots = held.slots
        assert slots is not None
        adopted = slots.adopt()
        if adopted is None:
            slots.close()
            return None
        valid, raw = adopted
        try:
            known = BLOCKS.decode(raw)
            held.parts, held.parity, held.generation = tuple(known.parts), known.parity, known.generation
            held.offers = known.offers
            cut = next(iter(known.offers.values())).cut
            held.block = ParityBlock.resume(len(known.parts), known.parity, cut, valid, slots)
        except BaseException:
            slots.close()  # else no sweep could take them away while we live
            raise
        return held

    def discard(self) -> None:
        """Another block takes its place."""
        if self.slots:
            self.slots.discard()


class Parities:
    """All blocks of this host. `root`: of its shared memory; None: they live in this process alone."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._held: dict[tuple[str, str], HeldBlock] = {}  # by (job uid, group)
        self._lock = threading.Lock()

    def find(self, uid: str) -> int:
        """Take over the blocks of a job that a former incarnation of the daemon held; return how many are whole."""
        directory = self._directory(uid)
        if directory is None or not directory.is_dir():
            return 0
        for name in parts_in(directory):
            try:
                held = HeldBlock.found(directory, name)
            except (RoverError, msgspec.MsgspecError, OSError, StopIteration) as error:
                log.warning("a parity block cannot be used", uid=uid, group=name, why=str(error))
                continue
            if held is not None:
                with self._lock:
                    self._held[uid, name] = held
        return sum(of == uid for of, _ in self._held)

    def _directory(self, uid: str) -> Path | None:
        return job_directory(self._root, parity_of(uid)) if self._root else None

    def keep_up(
        self, uid: str, parts: Sequence[str], parity: int, cut: tuple[int, int], connect: Connect
    ) -> None:
        """Bring the block of a group to a cut (generation, cut): by differences where every owner knows them, else from images.

        Raises what the sources raise; the version before stays valid then.
        """
        held = self._held.get((uid, parts[0]))
        fits = held and held.parts == tuple(parts) and held.parity == parity
        if held and fits and (held.generation, held.block.cut) == cut:
            return
        if held and fits and held.generation == cut[0] and self._follow(held, connect):
            return
        fresh = HeldBlock(tuple(parts), parity, cut[0], self._directory(uid))
        try:
            self._begin(fresh, connect)
        except BaseException:
            fresh.discard()
            raise
        with self._lock:
            self._held[uid, parts[0]] = fresh
        if held:
            held.discard()

    def _begin(self, held: HeldBlock, connect: Connect) -> None:
        held.coming = {}
        for number, part in enumerate(held.parts):
            held.coming[part], delta = read_delta(connect(part, False), number, 0, Since())
            held.block.add(delta)
        held.offers = held.coming

    def _follow(self, held: HeldBlock, connect: Connect) -> bool:
        """Add what changed since the valid version; False: some owner does not know it, or the block is damaged."""
        if not held.block.may_go_on:
            log.error(
                "a parity block is damaged in memory: it is made again", parts=held.parts, cut=held.block.cut
            )
            return False
        held.coming = {}
        try:
            for number, part in enumerate(held.parts):
                old = held.offers[part]
                since = Since(timeline=old.timeline, generation=old.generation, save_number=old.save_number)
                held.coming[part], delta = read_delta(connect(part, True), number, held.block.cut, since)
                if held.block.add(delta) not in (Outcome.ADDED, Outcome.COMPLETED):
                    held.block.abandon()
                    return False
        except BaseException:
            held.block.abandon()
            raise
        with self._lock:
            held.offers = held.coming
        return True

    def serve(self, uid: str, part: str, generation: int, cut: int) -> tuple[ServedParity, Array]:
        """Return the block that stands for a part of a cut, checked. Raises NoCheckpoint, BrokenCheckpoint."""
        with self._lock:
            for (of, _), held in self._held.items():
                offer = held.offers.get(part)
                if of == uid and offer is not None and (offer.generation, offer.cut) == (generation, cut):
                    if held.block.cut != cut:
                        continue
                    if not held.block.rebuilds:
                        raise BrokenCheckpoint(
                            f"the parity of cut {cut} of {part} is damaged in memory: use another source"
                        )
                    block = held.block.valid
                    served = ServedParity(
                        parity=held.parity, parts=list(held.parts), offer=offer, size_bytes=len(block)
                    )
                    return served, block
        raise NoCheckpoint(f"no parity of cut {cut} of {part} is held here")

    def forget(self, uid: str) -> None:
        """The job has ended."""
        with self._lock:
            ended = [held for key, held in self._held.items() if key[0] == uid]
            self._held = {key: held for key, held in self._held.items() if key[0] != uid}
        for held in ended:
            held.discard()

    def close(self) -> None:
        """The daemon ends; what is whole stays in shared memory."""
        for held in self._held.values():
            if held.slots:
                held.slots.close()
