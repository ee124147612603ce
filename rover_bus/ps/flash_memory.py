"""Shared memory and storage behind a server's staging: the flash store as the port that `staging` asks for.

The part of a server lies under `<root>/<job uid>` as `ps-<index>` and outlives its process; its next incarnation adopts it. A
restore looks there first (mapped copy-on-write: nothing is copied), then at the hosts that `peers` names, then in storage.
Nothing is believed that was not checked against its digests (P12). See docs/design/0014, 0020.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rover_bus.events.checkpoints import CutOrder, PartPlace, RestoreOrder, part_name
from rover_bus.events.errors import RoverError
from rover_bus.flash import errors as flash_errors
from rover_bus.flash import persist, places
from rover_bus.flash.layout import Array, plan_layout
from rover_bus.flash.location import open_files, parse_location
from rover_bus.flash.manifest import path_of
from rover_bus.flash.pool import slot_bytes
from rover_bus.flash.staged import StagedCut
from rover_bus.flash.store import FlashStore
from rover_bus.flash.verified import newest_verified
from rover_bus.ps.snapshots import Snapshot
from rover_bus.ps.staging import FoundPart, PartMissing, RoomNotPrepared

HEADROOM = 0.5  # growing tables grow in place for a while
FromPeers = Callable[[RestoreOrder, PartPlace, bool, list[str]], tuple[StagedCut, str] | None]


def ask_nobody(*_: object) -> None:
    """No other host has a part."""


class FlashMemory:
    """One server's slots in shared memory. Opened by the first cut or restore; `close` leaves what is staged for the next one."""

    def __init__(
        self, root: Path, uid: str, index: int, timeline: int, slots: int = 2, peers: FromPeers = ask_nobody
    ) -> None:
        self._root, self._uid, self._part = root, uid, part_name(index)
        self._history, self._slots, self._peers = timeline, slots, peers
        self._store: FlashStore | None = None
        self._waiting: Snapshot | None = None  # that found no room
        self._made_room: tuple[int, int] = (0, 0)  # the cut and round for which it was made last
        self._no_room: RoverError | None = None  # why that failed
        self._makes_room = False  # at this moment
        self._complete = 0

    def _open(self) -> FlashStore:
        if self._store is None:
            self._store = FlashStore(
                self._uid,
                self._part,
                root=self._root,
                slots=self._slots,
                headroom=HEADROOM,
                alone=False,
                regrow=False,
                timeline=self._history,
            )
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- staging -------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot, order: CutOrder) -> int:
        store = self._open()
        if order.complete > self._complete:
            store.complete(order.complete)
            self._complete = order.complete
        store.generation = order.generation
        store.abandon(
            lambda seal: seal.cut > order.complete
        )  # of this number too: another round, or a lost cut
        try:
            done = store.save(snapshot.arrays, order.cut, touched=snapshot.touched, extra=snapshot.extra)
        except (flash_errors.NotPrepared, flash_errors.LayoutChanged, flash_errors.SlotsBusy) as error:
            if self._made_room == (order.cut, order.round):
                raise self._no_room or error from None
            self._waiting, self._made_room = snapshot, (order.cut, order.round)
            raise RoomNotPrepared(str(error)) from None
        return done.copied_bytes

    async def prepare(self) -> None:
        snapshot, self._waiting, self._no_room = self._waiting, None, None
        if snapshot is None:
            return
        try:
            self._makes_room = True
            prepare = partial(self._open().prepare, snapshot.arrays, fixed=snapshot.fixed)
            await asyncio.to_thread(prepare, extra_bytes=len(snapshot.extra))
        except RoverError as error:
            self._no_room = error
            raise
        finally:
            self._makes_room = False

    def missing_bytes(self, arrays: Mapping[str, Array], fixed: frozenset[str]) -> int:
        if self._makes_room:
            return 0  # part of it is taken already, and would be counted twice
        held = self._store.held_bytes if self._store is not None else 0
        return max(self._slots * slot_bytes(plan_layout(arrays, HEADROOM, fixed), 0) - held, 0)

    async def tidy(self) -> None:
        if self._store is not None:
            await asyncio.to_thread(self._store.tidy)

    # -- restoring -----------------------------------------------------------------------------------------------------

    def find(self, order: RestoreOrder, wanted: Sequence[PartPlace]) -> Sequence[FoundPart]:
        """The parts that are wanted, from wherever they are: memory, peers; if one is in neither, all from storage."""
        if not wanted:
            return self._from_storage(order, ["it was never in memory here"])
        found: list[FoundPart] = []
        for place in wanted:
            refused: list[str] = []
            part = self._find_one(order, place, refused)
            if part is None:
                return self._from_storage(order, refused)
            found.append(part)
        return found

    def _find_one(self, order: RestoreOrder, place: PartPlace, refused: list[str]) -> FoundPart | None:
        """A part from this host's memory, else from another's. `refused` takes a line for each source that would not do."""
        elsewhere = False
        try:
            return self._from_memory(order, place, refused)
        except RoverError as error:
            refused.append(f"memory: {error}")
            elsewhere = isinstance(error, flash_errors.BrokenCheckpoint)
        answer = self._peers(order, place, elsewhere, refused)
        if answer is None:
            return None
        staged, source = answer
        if source == "memory" and self._is_ours(order, place):  # digested meanwhile: the store serves it
            staged.close()
            return self._from_memory(order, place, refused)
        return FoundPart(staged.arrays, staged.extra, source, tuple(refused))

    def _is_ours(self, order: RestoreOrder, place: PartPlace) -> bool:
        return place.part == self._part and order.uid == self._uid

    def _from_memory(self, order: RestoreOrder, place: PartPlace, refused: list[str]) -> FoundPart:
        of = order.timeline, order.generation
        if self._is_ours(order, place):
            cut = self._open().restore(order.cut, of=of)
        else:
            directory = places.job_directory(self._root, order.uid)
            cut = newest_verified(directory, place.part, cut=order.cut, of=of, writable=True).staged
        return FoundPart(cut.arrays, cut.extra, "memory", tuple(refused))

    def _from_storage(self, order: RestoreOrder, refused: Sequence[str]) -> list[FoundPart]:
        """All parts of a stored cut, every byte checked on the way."""
        if not order.path:
            raise PartMissing(
                f"cut {order.cut} cannot be had from memory ({'; '.join(refused)}) and was never stored: use another cut"
            )
        files = open_files(parse_location(order.path))
        manifest = persist.read_manifest(files, path_of(order.timeline, order.generation, order.cut))
        parts = [persist.read_chain(files, chain) for chain in manifest.parts]
        return [FoundPart(part.arrays, part.extra, "storage", tuple(refused)) for part in parts]
