"""The flash store: `prepare`, `save`, `restore` of a dict of arrays, through memory that outlives the process.

    with FlashStore("my-job", "worker-0") as store:
        store.prepare(state)
        store.save(state, cut=1)                                  # all of it, at the speed of memcpy
        store.save(state, cut=2, touched={"embedding": ids})      # these rows, and every other array whole
    ...
    restored = FlashStore("my-job", "worker-0").restore()         # after a crash: checked, mapped copy-on-write, no copy

Fed by the owner of a part of a model (a parameter server, a training script); read by daemons through `staged` and
`journal`. The decisions are in `choice`, `layout` and `dirty`; this is their shell. One thread saves; cuts get digests
(of several parts: from the daemon) and rows are rolled forward behind its back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Any

import msgspec

from rover_bus.events.errors import InputError, NotEnoughMemory, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.flash import journal, locks, places
from rover_bus.flash.choice import choose_slot
from rover_bus.flash.copying import copy
from rover_bus.flash.dirty import Rows, check_touched
from rover_bus.flash.errors import (
    BrokenCheckpoint,
    LayoutChanged,
    NoCheckpoint,
    NotDigested,
    NotPrepared,
    PartHeld,
    SlotsBusy,
)
from rover_bus.flash.layout import Array, Layout, State, as_arrays, fit, plan_layout
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.pool import SlotPool, slot_bytes
from rover_bus.flash.seal import Head, Seal
from rover_bus.flash.slot import Slot
from rover_bus.flash.staged import StagedCut, open_staged
from rover_bus.flash.sweep import hold_job, sweep_job
from rover_bus.flash.verified import Verified, newest_verified

log = get_logger("rover.flash")


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What a save did. `overwritten_cut`: the cut that its slot held before; if that one had not been persisted, it
    is superseded.

    `prepared_bytes` > 0: no slot fitted the state, and this save paid for a new one.
    """

    cut: int
    save_number: int
    path: Path
    copied_bytes: int
    overwritten_cut: int | None = None
    prepared_bytes: int = 0


class FlashStore:
    """The one writer of one part of one job.

    `alone`: this part is the whole checkpoint, so that a cut is complete when it is staged, and this store makes its digests: on
    the thread behind training's back, at the latest before the next save. Several parts call `complete` instead (P12), after a
    restart `restore` or `complete` says which staged cut was, and a daemon makes digests.
    `slots`: two hold what is needed; with three, saves go on while a reader persists one.
    `headroom`: see `layout.plan_layout`. `regrow`: prepare again by itself when a state has outgrown its slot or
    has other keys (else: LayoutChanged). `background`: roll older slots forward to the newest cut on a thread of
    their own, so that a save copies only what was touched since the last one. `model`: see `seal.Head`. `timeline`
    and `generation` are stamped on every cut and may be set at any time. Raises PartHeld, InputError,
    NewerCheckpoint.
    """

    def __init__(  # noqa: PLR0913 - a public entry: users name the few settings that they change
        self,
        job: str,
        part: str = "state",
        *,
        root: Path | None = None,
        slots: int = 2,
        threads: int | None = None,
        headroom: float = 0.0,
        alone: bool = True,
        regrow: bool = True,
        background: bool = True,
        model: str = "",
        timeline: int = 0,
        generation: int = 0,
    ) -> None:
        if slots < 2:
            raise InputError(f"{slots} slot cannot hold a cut while the next is written: use two or more")
        self.directory, self.part = places.job_directory(root, job), places.checked(part, "part")
        self.timeline, self.generation, self.model = timeline, generation, model
        self._count, self._headroom, self._alone, self._regrow = slots, headroom, alone, regrow
        self._fixed: frozenset[str] = frozenset()  # arrays that never grow
        self._threads = threads or min(4, len(os.sched_getaffinity(0)))
        self._pool = SlotPool(self.directory, part)
        self._turn, self._hurry = Lock(), Event()
        self._copiers = ThreadPoolExecutor(self._threads, thread_name_prefix="rover-flash-copy")
        self._roller = ThreadPoolExecutor(1, thread_name_prefix="rover-flash-roll") if background else None
        self._rolling: Future[int] | None = None
        self._links: list[tuple[int, int, Rows]] = []  # sealed, not written yet: they are not waited for
        self._undigested: list[str] = []  # what a dead process left that is no source
        self._parent: int | None = None  # number of the save that the state comes from, if it is one of ours
        self._fds = [hold_job(self.directory)]
        try:
            self._own()
            self._pool.adopt()
        except BaseException:
            self.close()
            raise
        self._note_held()
        newest = self._pool.newest
        self._saves = newest.save_number if newest else 0
        if alone:
            self._forget_what_is_no_source()
        journal.forget_after(self.directory, part, self._saves)
        whole = self._pool.newest
        self._complete = whole.save_number if alone and whole else 0

    def _own(self) -> None:
        owner = locks.open_locked(places.owner_path(self.directory, self.part), exclusive=True)
        if owner is None:
            raise PartHeld(
                f"another process writes {self.part} in {self.directory}: end it, or choose another part name"
            )
        self._fds.append(owner)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Exclude the roller, which yields as soon as it sees a save in a hurry."""
        self._hurry.set()
        with self._turn:
            self._hurry.clear()
            try:
                yield
            finally:
                self._note_held()

    # -- saving --------------------------------------------------------------------------------------------------------

    def prepare(self, state: State, *, extra_bytes: int = 0, fixed: Collection[str] = frozenset()) -> int:
        """Allocate and populate slots for states like this one; return the bytes that were new. The newest complete cut is kept,
        in a slot that the state may have outgrown: it is made up for once another is complete.

        `fixed` names arrays that never grow: they get no headroom.

        After a `restore`, call it with the restored arrays: they live in a slot, which is replaced. Raises
        NotEnoughMemory, saying what all slots take, and InputError.
        """
        arrays = as_arrays(state)
        with self._my_turn():
            self._fixed = frozenset(fixed)
            layout = self._plan(arrays)
            there = self._pool.make_way(arrays, self._complete)
            try:
                fresh = [self._pool.add(layout, extra_bytes) for _ in range(there, self._count)]
            except NotEnoughMemory as error:
                wanted_bytes = self._count * slot_bytes(layout, extra_bytes)
                raise NotEnoughMemory(str(error), wanted_bytes) from None
        self._roll_later()
        return sum(slot.size_bytes for slot in fresh)

    def save(
        self, state: State, cut: int, *, touched: Mapping[str, Any] | None = None, extra: bytes = b""
    ) -> Staged:
        """Stage `state` as `cut`. The cut survives this process from the moment on that it has digests, the one before until then.

        `touched`: for each array named, the rows changed since the last save (ids in any order, repeats allowed, or
        a boolean mask); arrays not named are copied whole. It is noted first: after an error the same call may be
        repeated, touched rows included. Raises NotPrepared, SlotsBusy, LayoutChanged, NotEnoughMemory, InputError;
        in all of them the newest complete cut is untouched.
        """
        arrays = as_arrays(state)
        rows = check_touched(touched or {}, arrays)
        with self._my_turn():
            self._write_links()
            if self._alone:
                self._make_source()
            self._pool.note(rows, arrays)
            staged = self._stage(arrays, cut, rows, extra)
            if self._alone:
                self._finish(cut)
        self._roll_later()
        return staged

    def _stage(self, arrays: dict[str, Array], cut: int, rows: Rows, extra: bytes) -> Staged:
        before = {slot.number for slot in self._pool}
        slot = self._free_slot(arrays, len(extra))
        overwritten = slot.seal.cut if slot.seal else None
        try:
            layout, why = fit(slot.layout, arrays)
            if layout is None or not slot.holds_head(self._head(layout, extra, tuple(arrays))):
                slot = self._replace(slot, arrays, len(extra), why or "the extra bytes outgrew their room")
                layout = slot.layout
            copied = self._write(slot, arrays, layout, cut, rows, extra)
        finally:
            slot.release()
        return Staged(
            cut=cut,
            save_number=self._saves,
            path=slot.path,
            copied_bytes=copied,
            overwritten_cut=overwritten,
            prepared_bytes=0 if slot.number in before else slot.size_bytes,
        )

    @property
    def held_bytes(self) -> int:
        """Shared memory that slots take which are, or will be, free to be written. A turn is not waited for: as of the last one."""
        if self._turn.acquire(blocking=False):
            try:
                self._note_held()
            finally:
                self._turn.release()
        return self._held

    def _note_held(self) -> None:
        self._held = sum(slot.size_bytes for slot in self._pool.usable)

    def _plan(self, arrays: Mapping[str, Array]) -> Layout:
        return plan_layout(arrays, self._headroom, self._fixed)

    def _free_slot(self, arrays: Mapping[str, Array], extra_bytes: int) -> Slot:
        """Claim the slot to overwrite. Slots that are lent to a restored state are made up for."""
        if not len(self._pool):
            raise NotPrepared("nothing is prepared: call prepare(state) once before the first save")
        if self._regrow and len(self._pool.usable) < 2:
            self._pool.add(self._plan(arrays), extra_bytes)
        while True:
            chosen = choose_slot(
                [self._pool.candidate(slot, arrays, self._complete) for slot in self._pool], self._complete
            )
            slot = next(slot for slot in self._pool if slot.number == chosen.number)
            if slot.claim():
                return slot

    def _replace(self, slot: Slot, arrays: Mapping[str, Array], extra_bytes: int, why: str) -> Slot:
        """Give up a slot that is too small for one that fits. The old one goes first: it may be overwritten anyway."""
        if not self._regrow:
            raise LayoutChanged(f"the state no longer fits its slots ({why}): call prepare(state) again")
        layout = self._plan(arrays)
        self._pool.drop(slot)
        fresh = self._pool.add(layout, extra_bytes)
        fresh.claim()
        return fresh

    def _head(self, layout: Layout, extra: bytes, carried: tuple[str, ...]) -> Head:
        return Head(layout=layout, model=self.model, extra=extra, carried=carried)

    def _write(
        self, slot: Slot, arrays: Mapping[str, Array], layout: Layout, cut: int, rows: Rows, extra: bytes
    ) -> int:
        number, dirty = self._saves + 1, self._pool.dirty(slot)
        pieces = self._pool.pieces(slot, arrays, layout)
        whole = {name for name, piece in pieces.items() if piece.ids is None}
        carried = tuple(name for name, array in arrays.items() if array.nbytes and name not in whole)
        head = self._head(layout, extra, carried)
        todo, patches = slot.pack(pieces, layout, head)
        slot.invalidate()
        dirty.soil()  # until the last byte is copied
        copy(todo, self._threads, self._copiers)
        head = msgspec.structs.replace(head, patches=patches)
        slot.stamp(head, timeline=self.timeline, generation=self.generation, cut=cut, save_number=number)
        dirty.clean()
        if self._parent is not None:
            self._links.append((number, self._parent, rows))
        self._saves = self._parent = number
        return sum(piece.size_bytes for piece in pieces.values())

    def write_links(self) -> None:
        """Say what the saves so far touched, to what stores or copies less than everything. Needed without `background` only."""
        with self._turn:
            self._write_links()

    def _write_links(self) -> None:
        """After the seal, off the blocking path: a reader that comes too early, or meets a full tmpfs, copies the whole."""
        while self._links:
            number, previous, rows = self._links.pop(0)
            with suppress(OSError):
                journal.write_touched(self.directory, self.part, number, previous, rows)

    # -- completion ----------------------------------------------------------------------------------------------------

    def complete(self, cut: int) -> None:
        """The cut is complete over all parts: older slots may be overwritten, and are rolled forward to it."""
        with self._my_turn():
            self._finish(cut)
        self._roll_later()

    def _finish(self, cut: int) -> None:
        numbers = [slot.save_number for slot in self._pool if slot.seal and slot.seal.cut == cut]
        self._complete = max([self._complete, *numbers])
        if not self._alone:
            self._let_go_of_what_is_lent()

    def _let_go_of_what_is_lent(self) -> None:
        """A newer cut is complete, and a source: the slot under a restored state is never written again, nor restored."""
        for slot in self._pool:
            if slot.save_number < self._complete and self._pool.is_lent(slot):
                self._pool.drop(slot)  # its memory now belongs to the restored state alone

    def abandon(self, abandoned: Callable[[Seal], bool]) -> None:
        """These staged cuts will never be complete: their slots may be overwritten, unless a reader holds them."""
        with self._my_turn():
            for slot in self._pool:
                if slot.seal is None or not abandoned(slot.seal):
                    continue
                if self._pool.is_lent(slot):
                    self._pool.drop(slot)
                elif slot.claim():
                    self._pool.give_up(slot)
                    slot.release()
        self._roll_later()

    def tidy(self) -> int:
        """Free slots that the state has outgrown and that are not needed; return their bytes. Slow: not while training waits."""
        freed = 0
        with self._my_turn():
            for slot in sorted(self._pool, key=lambda slot: slot.save_number):
                spare = len(self._pool.usable) > self._count and slot.save_number < self._complete
                if spare and not self._pool.is_lent(slot) and slot.claim():
                    freed += slot.size_bytes
                    self._pool.drop(slot)
        self._roll_later()  # it gave way to us, perhaps before it was done
        return freed

    def _roll_later(self) -> None:
        waits = self._rolling is not None and not (self._rolling.running() or self._rolling.done())
        if self._roller and not waits:
            self._rolling = self._roller.submit(self.catch_up)

    def catch_up(self) -> int:
        """Put the packed rows of the newest cut into their places, and digest it if that is ours to do; once it is complete,
        copy the rows by which older slots lag from it, memory to memory, and return bytes copied.

        Training is not involved: it may run, and a `save` that comes meanwhile waits for the rows of one array at most, and for
        digests: without them the cut would be no source while the next one is written.
        """
        with self._turn:
            self._write_links()
            source = self._pool.newest
            if source is None or not source.fold(self._hurry.is_set):
                return 0
            if self._alone:
                self._make_source()
                if self._pool.newest is not source:
                    return 0
            # Rows of a save that was refused are noted everywhere, and in no slot: nothing of them is to be had from this one.
            if source.save_number != self._complete or not self._pool.dirty(source).is_clean:
                return 0
            return sum(self._roll(slot, source) for slot in self._pool if slot is not source)

    def _roll(self, slot: Slot, source: Slot) -> int:
        arrays, dirty = dict(source.views(source.layout)), self._pool.dirty(slot)
        layout, _ = fit(slot.layout, arrays)
        if dirty.everything or layout is None or not slot.claim():
            return 0
        try:
            pieces = self._pool.pieces(slot, arrays, layout)
            by_rows = {name: piece for name, piece in pieces.items() if piece.ids is not None}
            if by_rows:
                slot.invalidate()
            copied = 0
            for name, piece in by_rows.items():
                if self._hurry.is_set():
                    return copied
                copied += copy([piece], 1, None)
                dirty.clean_rows(name)
            return copied
        finally:
            slot.release()

    # -- digests of a store that is alone ------------------------------------------------------------------------------

    def _forget_what_is_no_source(self) -> None:
        """Cuts that a dead process left without digests: nothing will ever tell whether they are what it saved (P12)."""
        for slot in self._pool:
            if slot.seal is not None and not slot.is_digested and slot.claim():
                self._undigested.append(
                    f"{slot.path}: cut {slot.seal.cut} has no digests: its writer died before"
                )
                self._pool.give_up(slot)
                slot.release()

    def _make_source(self) -> None:
        """Digest the newest cut, so that the next save may overwrite the one before. Raises SlotsBusy where that cannot be."""
        try:
            self._digest_newest()
        except OSError as error:
            raise SlotsBusy(
                f"the last cut has no digests ({error.strerror}): make room, then save again"
            ) from None

    def _digest_newest(self) -> None:
        """A cut that is not what it should be is given up: the one before is the newest then, and the next save copies all."""
        slot = self._pool.newest
        if slot is None or slot.seal is None:
            return
        try:
            staged = None if slot.is_digested else open_staged(slot.path)
            if staged is not None:
                with staged:
                    digest_staged(staged)
            self._let_go_of_what_is_lent()
        except RoverError as error:
            log.error("a staged cut is damaged: the one before is kept", cut=slot.seal.cut, why=str(error))
            self._pool.give_up(slot)
            self._complete = max(
                each.save_number for each in self._pool
            )  # the one before is the newest again

    # -- restoring -----------------------------------------------------------------------------------------------------

    def restore(self, cut: int | None = None, *, of: tuple[int, int] | None = None) -> StagedCut:
        """The newest cut in memory that is what was digested, or the given one, mapped copy-on-write: nothing is copied until it
        is written to. `of`: its timeline and generation.

        The arrays may be trained in place; call `prepare` before the next save. Raises NoCheckpoint, OtherModel,
        BrokenCheckpoint naming file, array and bytes, NotDigested.
        """
        with self._my_turn():
            self._write_links()
            if self._alone:
                self._make_source()
            staged, refused = self._find(cut, of)
            for line in refused:
                log.warning("a newer cut is passed over", why=line)
            self._complete = max(self._complete, staged.seal.save_number)
            self._pool.lend(staged.path)
            self._parent = staged.seal.save_number
        return staged

    def _find(self, cut: int | None, of: tuple[int, int] | None) -> Verified:
        try:
            return newest_verified(self.directory, self.part, cut=cut, of=of, model=self.model, writable=True)
        except NoCheckpoint as error:
            lines = "; ".join([*self._pool.broken, *self._undigested, str(error)])
            if self._pool.broken:
                raise BrokenCheckpoint(lines) from None
            if self._undigested:
                raise NotDigested(lines) from None
            raise

    # -- its end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go; what is staged stays for the next process."""
        self._end_threads()
        self._write_links()
        if self._alone:
            with suppress(SlotsBusy):
                self._make_source()
        self._pool.close()
        while self._fds:
            os.close(self._fds.pop())

    def _end_threads(self) -> None:
        self._hurry.set()
        for executor in (self._copiers, self._roller):
            if executor:
                executor.shutdown()

    def remove(self) -> None:
        """The job is over: take every file of this part away, and the directory with its last part."""
        self._end_threads()
        self._links.clear()
        for path in self.directory.glob(f"{self.part}.*"):
            path.unlink(missing_ok=True)
        self.close()
        sweep_job(self.directory, even_if_staged=False)

    def __enter__(self) -> FlashStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A clean end removes the part; an error leaves it for the next start."""
        if kind is None:
            self.remove()
        else:
            self.close()
