"""A digest a chunk, so that a flipped bit is found, and named.

Fed with staged arrays, off the blocking path (P12: copy and digest in one pass cost 1.5 to 1.75 times the copy);
feeds restores, persisters and mirrors, which believe nothing before its digests exist and agree (`verified`, `lineage`).
Chunks restart at every array: names in errors are then the user's own. The digests of a slot lie in a file beside it,
sealed themselves, and name the seal that they belong to.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from rover_bus.flash.copying import as_bytes
from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.flash.layout import Array
from rover_bus.flash.places import digests_path
from rover_bus.flash.seal import Seal
from rover_bus.flash.staged import StagedCut

CHUNK_BYTES = 1 << 20
SPAN_CHUNKS = 8  # of a thread's task
MOST_THREADS = 16  # more do not make memory faster
MAGIC = b"ROVERDIG"
WRITES = 5  # attempts, where what is written is removed before it has its name
Digests = npt.NDArray[np.uint64]
Stop = Callable[[], None]  # called between tasks; raises to call the work off
T = TypeVar("T")
R = TypeVar("R")


def never() -> None:
    """Never call the work off."""


# -- arrays ------------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Some chunks of one array: `first` is the number of the first."""

    name: str
    first: int
    raw: Array


class Damage(NamedTuple):
    """Bytes `start` to `end` of an array that are not what was digested."""

    name: str
    start: int
    end: int


def digest_array(array: Array, chunk_bytes: int = CHUNK_BYTES) -> Digests:
    """xxh3 of every chunk of a contiguous array."""
    raw = as_bytes(array)
    chunks = (raw[start : start + chunk_bytes] for start in range(0, len(raw), chunk_bytes))
    return np.fromiter((xxhash.xxh3_64_intdigest(chunk) for chunk in chunks), np.uint64)  # type: ignore[arg-type]


def digest_arrays(arrays: Mapping[str, Array], stop: Stop = never) -> dict[str, Digests]:
    """The digests of all arrays, on all cores that this process may use: the digest lets go of the interpreter."""
    found: dict[str, list[Digests]] = {name: [] for name in arrays}
    spans = list(spans_of(arrays))
    for span, digests in zip(
        spans, on_all_cores(lambda each: digest_array(each.raw), spans, stop), strict=True
    ):
        found[span.name].append(digests)
    return {name: np.concatenate([np.empty(0, np.uint64), *parts]) for name, parts in found.items()}


def spans_of(arrays: Mapping[str, Array]) -> Iterator[Span]:
    """Cut arrays into tasks."""
    step = SPAN_CHUNKS * CHUNK_BYTES
    for name, array in arrays.items():
        raw = as_bytes(array)
        for start in range(0, len(raw), step):
            yield Span(name, start // CHUNK_BYTES, raw[start : start + step])


def on_all_cores(work: Callable[[T], R], items: Sequence[T], stop: Stop = never) -> list[R]:
    """Do the same to all items, each on some thread; results in the order of the items."""

    def one(item: T) -> R:
        stop()
        return work(item)

    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS, len(items))
    if threads < 2:
        return [one(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="rover-flash-digest") as pool:
        return list(pool.map(one, items))


# -- of a slot ---------------------------------------------------------------------------------------------------------


class SlotDigests(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of what a slot held under one seal (`of`: that seal, digested), little-endian uint64, by array."""

    of: int
    arrays: dict[str, bytes]

    def digests_of(self, name: str) -> Digests:
        """The digests of one array; none if it was not there."""
        return np.frombuffer(self.arrays.get(name, b""), "<u8")


DIGESTS = msgspec.msgpack.Decoder(SlotDigests)  # made once, at import: see journal.py


def bind(seal: Seal, arrays: Mapping[str, Digests]) -> SlotDigests:
    """Say of which seal these are the digests."""
    return SlotDigests(
        of=name_of(seal), arrays={name: each.astype("<u8").tobytes() for name, each in arrays.items()}
    )


def name_of(seal: Seal) -> int:
    """What tells a seal from all others."""
    return xxhash.xxh3_64_intdigest(seal.encode())


def write_digests(slot: Path, digests: SlotDigests) -> None:
    """Put them beside their slot, for every later reader. Several may do so at once: the last one's stay."""
    body = msgspec.msgpack.encode(digests)
    path = digests_path(slot)
    for tries_left in reversed(range(WRITES)):
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        fresh.write_bytes(MAGIC + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body)
        try:
            fresh.rename(path)
        except FileNotFoundError:  # a server that takes the slots over removes what is not finished
            if not tries_left:
                raise
        else:
            return


def read_digests(slot: Path, seal: Seal) -> SlotDigests | None:
    """The digests of exactly this save, if they were made. Raises BrokenCheckpoint where they are damaged themselves."""
    path = digests_path(slot)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    body = raw[16:]
    if raw[:8] != MAGIC or xxhash.xxh3_64_intdigest(body) != int.from_bytes(raw[8:16], "little"):
        raise BrokenCheckpoint(f"{path} is damaged: nothing shows whether {slot.name} is, use another copy")
    try:
        digests = DIGESTS.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error}): use another copy") from None
    return digests if digests.of == name_of(seal) else None


def is_digested(slot: Path, seal: Seal) -> bool:
    """Whether usable digests of exactly this save exist: from then on it is a source."""
    try:
        return read_digests(slot, seal) is not None
    except BrokenCheckpoint:
        return False


# -- comparing ---------------------------------------------------------------------------------------------------------


def find_damage(arrays: Mapping[str, Array], digests: SlotDigests, stop: Stop = never) -> list[Damage]:
    """Every chunk that is not what was digested, on all cores. An array that was not digested is damaged as a whole."""

    def compare(span: Span) -> list[Damage]:
        found = digest_array(span.raw)
        wanted = digests.digests_of(span.name)[span.first : span.first + len(found)]
        differing = np.flatnonzero(found != wanted) if len(found) == len(wanted) else range(len(found))
        starts = [(span.first + int(each)) * CHUNK_BYTES for each in differing]
        end = span.first * CHUNK_BYTES + len(span.raw)
        return [Damage(span.name, start, min(start + CHUNK_BYTES, end)) for start in starts]

    lost = [
        Damage(name, 0, arrays[name].nbytes if name in arrays else 0)
        for name in sorted({*arrays, *digests.arrays})
        if name not in arrays or -(-arrays[name].nbytes // CHUNK_BYTES) != len(digests.digests_of(name))
    ]
    return lost or [each for found in on_all_cores(compare, list(spans_of(arrays)), stop) for each in found]


def name_damage(where: str, found: Sequence[Damage]) -> BrokenCheckpoint:
    """The error that names file, array and bytes of the first damage, and how much more there is."""
    name, start, end = found[0]
    more = f", and {len(found) - 1} more places" if len(found) > 1 else ""
    return BrokenCheckpoint(
        f"{where}: bytes {start} to {end} of {name}{more} are not what was written: use another copy"
    )


def verify_arrays(arrays: Mapping[str, Array], digests: SlotDigests, where: str, stop: Stop = never) -> None:
    """Check every array. Raises BrokenCheckpoint, naming the first chunk that differs."""
    if found := find_damage(arrays, digests, stop):
        raise name_damage(where, found)


def verify_staged(staged: StagedCut) -> SlotDigests | None:
    """Check everything that a staged cut holds; None: it has no digests yet. Raises BrokenCheckpoint."""
    digests = read_digests(staged.path, staged.seal)
    if digests is not None:
        verify_arrays(staged.arrays, digests, str(staged.path))
    return digests
