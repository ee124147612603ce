"""Digests that launder nothing: what a cut took over from the one before must be what that one was digested as.

A save copies touched rows; all others stay as the slot had them, from a former save, or were rolled there from another slot. Damage
that hit them since would get fresh digests with the next cut. So a cut is digested against an older one whose digests exist (its
base): with the rows touched since put back, each chunk must have the digest that it had. Fed with staged cuts and touched-links;
feeds the digests of slots. Apart from `digests`, which knows chunks and no history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import xxhash

from rover_bus.events.errors import RoverError
from rover_bus.flash.copying import as_bytes, put_rows, take_rows
from rover_bus.flash.digests import (
    CHUNK_BYTES,
    Damage,
    Digests,
    SlotDigests,
    Span,
    Stop,
    bind,
    digest_array,
    is_digested,
    name_damage,
    never,
    on_all_cores,
    read_digests,
    spans_of,
    write_digests,
)
from rover_bus.flash.dirty import Ids
from rover_bus.flash.errors import BrokenCheckpoint, SlotsBusy
from rover_bus.flash.journal import read_touched
from rover_bus.flash.layout import Array
from rover_bus.flash.staged import StagedCut, find_staged, open_staged


class Base(NamedTuple):
    """An older cut of the part: its digests, its arrays, and the rows touched since, by array, ascending."""

    staged: StagedCut
    digests: SlotDigests
    touched: Mapping[str, Ids]


class Examined(NamedTuple):
    """Digests of a span, and the chunks of it that are not what the base says."""

    name: str
    digests: Digests
    doubtful: list[Damage]


def digest_staged(staged: StagedCut, stop: Stop = never) -> SlotDigests:
    """Digest a staged cut and write the result next to its slot, for every later reader: from then on it is a source.

    On all cores. Raises BrokenCheckpoint where it is not what its base says, or where nothing tells what it took over; SlotsBusy
    while its touched-link is not written yet.
    """
    with ExitStack() as ends:
        try:
            base = _find_base(staged)
        except (BrokenCheckpoint, SlotsBusy):
            made = read_digests(staged.path, staged.seal)  # another was quicker, and its base is overwritten
            if made is None:
                raise
            return made
        if base is not None:
            ends.enter_context(base.staged)
        digests = bind(staged.seal, _examine_all(staged, base, stop))
    write_digests(staged.path, digests)
    return digests


def _examine_all(staged: StagedCut, base: Base | None, stop: Stop) -> dict[str, Digests]:
    arrays = staged.arrays
    examined = on_all_cores(
        lambda span: _examine(span, arrays[span.name], base), list(spans_of(arrays)), stop
    )
    if base is not None:
        _judge(staged, base, [each for one in examined for each in one.doubtful])
    found: dict[str, list[Digests]] = {name: [np.empty(0, np.uint64)] for name in arrays}
    for each in examined:
        found[each.name].append(each.digests)
    return {name: np.concatenate(parts) for name, parts in found.items()}


# -- the base ----------------------------------------------------------------------------------------------------------


def _find_base(staged: StagedCut) -> Base | None:
    """The newest older cut that has digests and whose difference to this one is known; None where none is needed, either."""
    directory, part = staged.path.parent, staged.path.name.partition(".")[0]
    linked = False
    for found in find_staged(directory, part):
        if found.seal.save_number >= staged.seal.save_number or not is_digested(found.path, found.seal):
            continue
        touched = read_touched(directory, part, staged.seal.save_number, found.seal.save_number)
        linked |= touched is not None
        opened = open_staged(found.path) if touched is not None else None
        if touched is None or opened is None:
            continue
        try:
            digests = read_digests(opened.path, opened.seal) if opened.seal == found.seal else None
        except RoverError:
            digests = None
        if digests is not None:
            return Base(opened, digests, touched)
        opened.close()
    if staged.head.carried and not linked:
        raise SlotsBusy(
            f"which rows cut {staged.cut} of {part} took over is not written yet: it is digested then",
            delay_s=0.1,
        )
    if staged.head.carried:
        raise BrokenCheckpoint(
            f"{staged.path}: nothing proves what cut {staged.cut} took over from the one before: the next cut is copied whole"
        )
    return None


# -- chunks ------------------------------------------------------------------------------------------------------------


def _examine(span: Span, array: Array, base: Base | None) -> Examined:
    digests = digest_array(span.raw)
    doubtful = [] if base is None else list(_doubt(span, array, digests, base))
    return Examined(span.name, digests, doubtful)


def _doubt(span: Span, array: Array, digests: Digests, base: Base) -> Iterator[Damage]:
    """The chunks that differ from the base in more than the rows touched since."""
    ids, old = base.touched.get(span.name), base.staged.arrays.get(span.name)
    if ids is None or old is None or not _only_grew(old, array):
        return  # all of it changed
    wanted = base.digests.digests_of(span.name)
    for chunk, digest in enumerate(digests.tolist(), span.first):
        start, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, old.nbytes)
        if start >= end:
            return
        former = _put_back(array, old, ids, start, end)
        if former is not None:
            digest = xxhash.xxh3_64_intdigest(former)  # type: ignore[arg-type]
        if digest != int(wanted[chunk]):
            yield Damage(span.name, start, end)


def _only_grew(old: Array, new: Array) -> bool:
    same = old.ndim and old.dtype == new.dtype and old.shape[1:] == new.shape[1:]
    return bool(same) and 0 < len(old) <= len(new)


def _put_back(array: Array, old: Array, ids: Ids, start: int, end: int) -> Array | None:
    """Bytes `start` to `end` of an array with the touched rows as they were; None: they are as they stand, a whole chunk."""
    row_bytes = old.nbytes // len(old)
    first, last = start // row_bytes, -(-end // row_bytes)
    some = ids[np.searchsorted(ids, first) : np.searchsorted(ids, last)]
    if not len(some):
        whole = end - start == min(CHUNK_BYTES, array.nbytes - start)
        return None if whole else as_bytes(array)[start:end]
    if row_bytes < CHUNK_BYTES:
        rows = array[first:last].copy()
        put_rows(rows, take_rows(old, some), some - first)
        return as_bytes(rows)[start - first * row_bytes : end - first * row_bytes]
    former = as_bytes(array)[start:end].copy()
    for row in some.tolist():
        begin, stop = max(start, row * row_bytes), min(end, (row + 1) * row_bytes)
        former[begin - start : stop - start] = as_bytes(old)[begin:stop]
    return former


def _judge(staged: StagedCut, base: Base, doubtful: list[Damage]) -> None:
    """Say which of the two is damaged. A damaged base is no reason against what was copied whole from the state itself."""
    mine, carried = [], []
    for each in doubtful:
        raw = as_bytes(base.staged.arrays[each.name])[each.start : each.end]
        if digest_array(raw)[0] == base.digests.digests_of(each.name)[each.start // CHUNK_BYTES]:
            mine.append(each)
        elif each.name in staged.head.carried:
            carried.append(each)
    if mine:
        raise name_damage(str(staged.path), mine)
    if carried:
        raise name_damage(f"{base.staged.path}, which cut {staged.cut} builds on", carried)
