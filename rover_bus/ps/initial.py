"""First values: a pure function of (job seed, table, id, column) (protocol P4).

Feeds the stores, which call it at declaration (dense, hashed) and at pulls and first pushes of unknown ids (growing). Only
integer arithmetic, one conversion and one product: the same bits on every machine. Golden vectors pin it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.ps.hashing import UintArray, mix
from rover_bus.ps.spec import Constant, Init, Normal, Uniform, Zeros

_COLUMN = np.uint32(0x9E3779B1)
_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_LOW16 = np.uint32(0xFFFF)
_NORMAL_DRAWS = 4  # 32-bit draws, two uniforms of 16 bits in each


def table_key(seed: int, salt: int) -> int:
    """Return what the first values of a table hang on: the job's seed and the table's name."""
    both = np.array([(seed & 0xFFFFFFFFFFFFFFFF) ^ 0x5DEECE66D, salt], np.uint64)
    return int(mix(mix(both[:1]) ^ both[1:])[0])


def first_values(
    init: Init, keys: UintArray | np.uint64, ids: npt.NDArray[np.int64], width: int, dtype: str
) -> npt.NDArray[Any]:
    """Return the first values, shape (len(ids), width). `keys`: `table_key` of each id's table, or one for all."""
    shape = (len(ids), width)
    if isinstance(init, Zeros):
        return np.zeros(shape, dtype)
    if isinstance(init, Constant):
        return np.full(shape, init.value, dtype)
    scrambled = mix(mix(ids.view(np.uint64) ^ keys))
    if isinstance(init, Uniform):
        return _uniform(scrambled, width, init)
    return _normal(scrambled, width, init)


def _draw(scrambled: UintArray, width: int, number: int) -> npt.NDArray[np.uint32]:
    """One 32-bit draw for each (id, column): murmur3's finaliser over the column, keyed by both halves of the id's hash."""
    low = (scrambled & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (scrambled >> np.uint64(32)).astype(np.uint32)
    columns = np.arange(number * width, (number + 1) * width, dtype=np.uint32) * _COLUMN
    draw = low[:, None] ^ columns[None, :]
    draw ^= draw >> np.uint32(16)
    draw *= _FIRST
    draw += high[:, None]
    draw ^= draw >> np.uint32(13)
    draw *= _SECOND
    draw ^= draw >> np.uint32(16)
    return draw


def _uniform(scrambled: UintArray, width: int, init: Uniform) -> npt.NDArray[np.float32]:
    draw = (_draw(scrambled, width, 0) >> np.uint32(8)).astype(np.float32)  # 24 bits: exact in float32
    draw -= np.float32(2**23)
    draw *= np.float32(init.scale * 2.0**-23)
    return draw


def _normal(scrambled: UintArray, width: int, init: Normal) -> npt.NDArray[np.float32]:
    total = np.zeros((len(scrambled), width), np.uint32)
    for number in range(_NORMAL_DRAWS):
        draw = _draw(scrambled, width, number)
        total += (draw & _LOW16) + (draw >> np.uint32(16))
    # Eight uniforms of [0, 65535]: mean 4 * 65535, variance 8 * (65536^2 - 1) / 12; the sum is below 2^24: exact.
    centred = total.astype(np.float32) - np.float32(4 * 65535)
    centred *= np.float32(init.std / np.sqrt(8 * (65536.0**2 - 1) / 12))
    return centred
