"""Copies of staged parts in another host's memory, kept up by deltas (protocol P12, P13).

    holder: what it has of the part  ->  owner: an offer (seal, head, digests), then bytes: all, or the rows touched since

Fed on the owner's side with staged cuts and touched-links, on the holder's side with a port that yields the owner's
bytes (node/storage/peers.py: a socket). A holder keeps the cut before until the new one is whole and its digests are checked:
two slots, as the owner has them, so that a server started there restores from a copy as from its own memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from rover_bus.flash import places
from rover_bus.flash.copying import as_bytes, take_rows
from rover_bus.flash.digests import SlotDigests, name_of, verify_arrays, verify_staged, write_digests
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, NotDigested, SlotsBusy
from rover_bus.flash.journal import read_touched
from rover_bus.flash.layout import Array, Layout, fit, plain_dtype, plan_layout, size_of
from rover_bus.flash.seal import Head, Seal
from rover_bus.flash.slot import Slot
from rover_bus.flash.staged import StagedCut, find_staged, open_staged
from rover_bus.flash.sweep import hold_job
from rover_bus.flash.verified import open_verified

BLOCK_BYTES = 1 << 20
MOST_SLOTS = 3  # one more than two, for a reader that holds one


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder has: a delta may build on it. `save_number` 0: nothing."""

    timeline: int = 0
    generation: int = 0
    save_number: int = 0


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One array as it comes: `rows` of it with their ids before them, or all of it (None)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int | None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner is about to send. `base_save`: the save that the rows build on, 0: everything comes."""

    timeline: int
    generation: int
    cut: int
    save_number: int
    base_save: int
    model: str
    extra: bytes
    arrays: tuple[Sent, ...]
    digests: dict[str, bytes]


class CopySource(Protocol):
    """The owner, as the holder sees it."""

    def ask(self, since: Since, /) -> Offer:
        """Say what is there, get the offer. Raises NoCheckpoint, BrokenCheckpoint, StorageFailed."""
        ...

    def read_into(self, target: Array) -> None:
        """Fill a uint8 array with the next bytes."""
        ...


def copies_of(uid: str) -> str:
    """The directory, below a host's root, of the parts of a job that it holds for others."""
    return places.checked(uid + places.COPIES, "job")


# -- the owner's side --------------------------------------------------------------------------------------------------


def open_exactly(directory: Path, part: str, generation: int, cut: int) -> StagedCut:
    """The staged part of exactly this cut, locked. Raises NoCheckpoint, BrokenCheckpoint."""
    for found in find_staged(directory, part):
        if (found.seal.generation, found.seal.cut) == (generation, cut):
            staged = open_staged(found.path)
            if staged is not None and (staged.seal.generation, staged.seal.cut) == (generation, cut):
                return staged
    raise NoCheckpoint(
        f"cut {cut} of {part} is not in the shared memory of this host any more: the next cut will be taken"
    )


def serve(
    directory: Path, staged: StagedCut, part: str, since: Since, *, differences: bool = False
) -> tuple[Offer, Iterator[Array]]:
    """The offer for a holder that has `since`, and the bytes to send after it, checked first. Raises NotDigested, BrokenCheckpoint.

    `differences`: old XOR new, for a holder of parity, as long as the cut that it has lies here, too, and has the same arrays.
    """
    digests = verify_staged(staged)
    if digests is None:
        raise NotDigested(f"cut {staged.cut} of {part} has no digests yet: nothing is served before (P12)")
    seal, touched = staged.seal, None
    arrays = staged.arrays
    if (since.timeline, since.generation) == (seal.timeline, seal.generation) and since.save_number:
        touched = read_touched(directory, part, seal.save_number, since.save_number)
    former = _former(directory, part, since, staged) if differences else {}
    if former:
        touched = touched or {}
    elif differences:
        touched = None
    offer = Offer(
        timeline=seal.timeline,
        generation=seal.generation,
        cut=seal.cut,
        save_number=seal.save_number,
        base_save=since.save_number if touched is not None else 0,
        model=staged.head.model,
        extra=staged.extra,
        arrays=tuple(_sent(name, array, touched or {}) for name, array in arrays.items()),
        digests=digests.arrays,
    )
    return offer, _bytes_of(arrays, touched or {}, former)


def _former(directory: Path, part: str, since: Since, staged: StagedCut) -> Mapping[str, Array]:
    """The arrays of the cut that a holder has, if it lies here and nothing changed its shape since; else nothing."""
    for found in find_staged(directory, part):
        wanted = since.timeline, since.generation, since.save_number
        if (found.seal.timeline, found.seal.generation, found.seal.save_number) != wanted:
            continue
        try:
            opened = open_verified(found.path)
        except (NotDigested, BrokenCheckpoint):
            return {}
        if opened is None or opened.seal != found.seal or opened.head.model != staged.head.model:
            return {}
        old, new = opened.arrays, staged.arrays
        same = {name: (each.dtype, each.shape) for name, each in old.items()}
        return old if same == {name: (each.dtype, each.shape) for name, each in new.items()} else {}
    return {}


def _sent(name: str, array: Array, touched: Mapping[str, Array]) -> Sent:
    rows = len(touched[name]) if name in touched and array.ndim else None
    return Sent(name=name, dtype=array.dtype.str, shape=array.shape, rows=rows)


def _bytes_of(
    arrays: Mapping[str, Array], touched: Mapping[str, Array], former: Mapping[str, Array]
) -> Iterator[Array]:
    for name, array in arrays.items():
        old = former.get(name)
        ids = touched.get(name) if array.ndim else None
        if ids is None:
            raw = as_bytes(np.ascontiguousarray(array))
            before = None if old is None else as_bytes(np.ascontiguousarray(old))
            for start in range(0, len(raw), BLOCK_BYTES):
                end = start + BLOCK_BYTES
                yield raw[start:end] if before is None else raw[start:end] ^ before[start:end]
            continue
        yield as_bytes(ids.astype("<u8"))
        step = _rows_a_block(array)
        for start in range(0, len(ids) if array.nbytes else 0, step):
            some = ids[start : start + step]
            rows = as_bytes(take_rows(array, some))
            yield rows if old is None else rows ^ as_bytes(take_rows(old, some))


def _rows_a_block(array: Array) -> int:
    return max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))


# -- the holder's side -------------------------------------------------------------------------------------------------


def has_good_copy(root: Path, uid: str, part: str, generation: int, cut: int) -> bool:
    """Whether this host holds a copy of exactly this cut that is what was digested. Those that are not lose their names."""
    directory = places.job_directory(root, copies_of(uid))
    drop_damaged(directory, part)
    return any(
        (found.seal.generation, found.seal.cut) == (generation, cut) for found in find_staged(directory, part)
    )


def drop_damaged(directory: Path, part: str) -> None:
    """Take the copies of a part that are not what was digested out of sight; a reader of one goes on."""
    for _, path in places.numbered(directory, part, "slot"):
        try:
            staged = open_verified(path)
        except (NotDigested, BrokenCheckpoint):
            path.unlink(missing_ok=True)
            places.digests_path(path).unlink(missing_ok=True)
            continue
        if staged is not None:
            staged.close()


def hold_copy(root: Path, uid: str, part: str, source: CopySource) -> Seal:
    """Bring this host's copy of a part up to what the owner offers; return its seal. The cut before stays until then.

    Raises what the source raises, BrokenCheckpoint for bytes that are not what was digested, NotEnoughMemory, SlotsBusy.
    """
    directory = places.job_directory(root, copies_of(uid))
    lock = hold_job(directory)
    try:
        with _target(directory, part) as slot:
            had = slot.seal if slot else None
            offer = source.ask(_since(had))
            return _receive(directory, part, slot, offer, source)
    finally:
        os.close(lock)


def _since(seal: Seal | None) -> Since:
    if seal is None:
        return Since()
    return Since(timeline=seal.timeline, generation=seal.generation, save_number=seal.save_number)


@contextmanager
def _target(directory: Path, part: str) -> Iterator[Slot | None]:
    """The slot to overwrite, claimed: the older of two whole ones. None: there is room for a new one."""
    found = find_staged(directory, part)
    for number, path in places.numbered(directory, part, "slot"):
        if number not in {item.number for item in found}:
            path.unlink(missing_ok=True)  # a holder died while it wrote
    slot = None
    for item in reversed(found[1:]):
        try:
            adopted = Slot.adopt(item.path, item.number)
        except BrokenCheckpoint:
            item.path.unlink(missing_ok=True)
            continue
        if adopted is not None and adopted.claim():
            slot = adopted
            break
        if adopted is not None:
            adopted.close()
    if slot is None and len(found) >= MOST_SLOTS:
        raise SlotsBusy(f"readers hold every copy of {part}: it is brought up to date when they let go")
    try:
        yield slot
    finally:
        if slot is not None:
            slot.close()


def _receive(directory: Path, part: str, slot: Slot | None, offer: Offer, source: CopySource) -> Seal:
    layout = _fitting(slot, offer) if slot is not None else None
    if slot is not None and layout is None:
        slot.path.unlink(missing_ok=True)
        raise SlotsBusy(f"the copy of {part} outgrew its memory: it is made again", delay_s=0.1)
    if slot is None or layout is None:
        layout, slot = plan_layout(_shapes(offer)), None
    fresh = slot or Slot.create(
        _new_path(directory, part), _next_number(directory, part), layout, len(offer.extra)
    )
    try:
        fresh.claim()
        fresh.invalidate()
        arrays = dict(fresh.views(layout))
        for sent in offer.arrays:
            _fill(arrays[sent.name], sent, source)
        verify_arrays(arrays, SlotDigests(of=0, arrays=offer.digests), f"the copy of {part}")
        head = Head(layout=layout, model=offer.model, extra=offer.extra)
        fresh.stamp(
            head,
            timeline=offer.timeline,
            generation=offer.generation,
            cut=offer.cut,
            save_number=offer.save_number,
        )
        del arrays
        seal = fresh.seal
        assert seal is not None
        write_digests(fresh.path, SlotDigests(of=name_of(seal), arrays=offer.digests))
        return seal
    finally:
        if slot is None:
            fresh.close()


def _fitting(slot: Slot, offer: Offer) -> Layout | None:
    """The offered arrays in the room of a slot, if they have it and nothing but the last cut's rows must come."""
    layout, _ = fit(slot.layout, _shapes(offer))
    head = Head(layout=layout, model=offer.model, extra=offer.extra) if layout else None
    return layout if head is not None and slot.holds_head(head) else None


def _shapes(offer: Offer) -> dict[str, Array]:
    """Arrays of the offered shapes that take no memory."""
    shapes = {}
    for sent in sorted(offer.arrays, key=lambda item: item.name):
        size_of(sent.dtype, sent.shape)
        shapes[sent.name] = np.broadcast_to(np.zeros((), plain_dtype(sent.dtype)), sent.shape)
    return shapes


def _next_number(directory: Path, part: str) -> int:
    return max((number for number, _ in places.numbered(directory, part, "slot")), default=-1) + 1


def _new_path(directory: Path, part: str) -> Path:
    return places.slot_path(directory, part, _next_number(directory, part))


def _fill(target: Array, sent: Sent, source: CopySource) -> None:
    if sent.rows is None:
        raw = as_bytes(target)
        for start in range(0, len(raw), BLOCK_BYTES):
            source.read_into(raw[start : start + BLOCK_BYTES])
        return
    ids = np.empty(sent.rows, "<u8")
    if sent.rows:
        source.read_into(as_bytes(ids))
    if len(ids) and int(ids.max()) >= len(target):
        raise BrokenCheckpoint(f"rows of {sent.name} came that it does not have: the copy is made again")
    step = _rows_a_block(target)
    for start in range(0, len(ids) if target.nbytes else 0, step):
        rows = np.empty((len(ids[start : start + step]), *target.shape[1:]), target.dtype)
        source.read_into(as_bytes(rows))
        target[ids[start : start + step].astype(np.int64)] = rows
