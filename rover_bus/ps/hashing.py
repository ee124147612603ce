"""From names and ids to slots: the one place where it is decided which of the 4096 slots holds what.

Feeds `plan` (the worker's side) and the stores (the servers' side), which must agree for ever: golden vectors pin every
function here. Slots do not depend on the job's seed, so that a checkpoint can be restored into another job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

SLOTS = 4096
SLOT_BITS = 12

UintArray = npt.NDArray[np.uint64]

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_TOP = np.uint64(64 - SLOT_BITS)


def mix(values: UintArray) -> UintArray:
    """Scramble 64-bit integers; a bijection (the finaliser of splitmix64, Steele et al. 2014)."""
    values = values ^ (values >> _30)
    values *= _FIRST
    values ^= values >> _27
    values *= _SECOND
    values ^= values >> _31
    return values


def salt_of(table: str) -> int:
    """Return a table's own 64-bit number, from its name."""
    return xxhash.xxh3_64_intdigest(table.encode())


def growing_slots(ids: npt.NDArray[np.int64], salts: UintArray | np.uint64) -> npt.NDArray[np.int64]:
    """Slots of ids of growing tables (and of chunks of dense arrays): the top bits of the scrambled id."""
    scrambled: UintArray = mix(ids.view(np.uint64) ^ salts)
    scrambled >>= _TOP
    return scrambled.view(np.int64)


def hashed_slots(rows: npt.NDArray[Any], salts: Any) -> npt.NDArray[np.int64]:
    """Slots of rows of hashed tables: 4096 consecutive rows visit every slot once, from a place that the name decides.

    So a slot's rows are an arithmetic series, stored side by side without any index.
    """
    slots: npt.NDArray[np.int64] = (rows + salts) & (SLOTS - 1)
    return slots


def chunk_slots(table: str, chunks: int) -> npt.NDArray[np.int64]:
    """Slots of the chunks 0 .. chunks-1 of a dense array."""
    return growing_slots(np.arange(chunks, dtype=np.int64), np.uint64(salt_of(table)))
