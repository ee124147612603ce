"""The visiting order of an epoch: which row of the file stands at which position.

Fed by (rows, seed, epoch) alone, feeds the readers and the witness. It is apart because it is a promise, not a
convenience: after a restore every worker of every release must compute the same order (protocol P1), so it uses its own
integer hash and never a library's random streams, which may change between versions. Golden vectors pin both levels.

The permutation has two levels. Blocks of 512 consecutive rows are permuted by a keyed Feistel network with cycle
walking (O(1) memory; only full blocks take part, the short one comes last). The rows of every window of 16 permuted blocks
are permuted again, by a stable argsort of a keyed hash. A window is therefore 16 sequential reads, and as good as a full
shuffle; permuting blocks alone is not, because click logs are sorted by user or by time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK_ROWS = 512
WINDOW_BLOCKS = 16
WINDOW_ROWS = BLOCK_ROWS * WINDOW_BLOCKS
FEISTEL_ROUNDS = 8
"""Even, so that halves of unequal width end where they began; 8 because 4 are distinguishable on small domains."""

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(words: Words) -> Words:
    """Mix each 64-bit word: Steele's splitmix64 output function, a bijection on 64 bits. Shape is kept."""
    z = words + np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """Fold integers of any size (taken modulo 2^64) into one 64-bit key; their order matters."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = splitmix64(key ^ np.uint64(part & _WORD))
    return int(key[0])


@dataclass(frozen=True)
class Order:
    """Position -> row for one epoch over `rows` rows; a bijection on [0, rows), O(1) in memory (protocol P1)."""

    rows: int
    seed: int
    epoch: int
    """Unbounded (S8)."""

    @cached_property
    def _key(self) -> int:
        return derive_key(self.seed, self.epoch)

    @property
    def windows(self) -> int:
        """Number of windows of 8192 positions; the last may be short."""
        return -(-self.rows // WINDOW_ROWS)

    def blocks(self, window: int) -> Ints:
        """Return the blocks of a window in their permuted order: int64[<= 16]; IndexError outside the epoch."""
        if not 0 <= window < self.windows:
            raise IndexError(f"window {window} is outside an epoch of {self.windows} windows")
        full = self.rows // BLOCK_ROWS
        total = -(-self.rows // BLOCK_ROWS)
        first = window * WINDOW_BLOCKS
        places = np.arange(first, min(first + WINDOW_BLOCKS, total), dtype=np.int64)
        shuffled = places < full
        places[shuffled] = permute(places[shuffled], full, derive_key(self._key, 1))
        return places

    def shuffle(self, window: int) -> Ints:
        """Return the order of rows inside a window: int64[<= 8192], indices into its blocks laid end to end."""
        size = min(WINDOW_ROWS, self.rows - window * WINDOW_ROWS)
        key = np.uint64(derive_key(self._key, 2, window))
        places = np.arange(size, dtype=np.uint64)
        return np.argsort(splitmix64(splitmix64(places) ^ key), kind="stable").astype(np.int64, copy=False)

    def window(self, window: int) -> Ints:
        """Return the rows at the positions of a window: int64[<= 8192]."""
        places = self.shuffle(window)
        return self.blocks(window)[places // BLOCK_ROWS] * BLOCK_ROWS + places % BLOCK_ROWS

    def locate(self, first: int, last: int) -> Ints:
        """Return the rows at positions [first, last): int64[last - first]; raises IndexError outside the epoch."""
        if not 0 <= first <= last <= self.rows:
            raise IndexError(f"positions {first} to {last} are outside an epoch of {self.rows} rows")
        if first == last:
            return np.empty(0, np.int64)
        begin = first // WINDOW_ROWS
        rows = np.concatenate([self.window(w) for w in range(begin, (last - 1) // WINDOW_ROWS + 1)])
        return rows[first - begin * WINDOW_ROWS : last - begin * WINDOW_ROWS]


def permute(places: Ints, size: int, key: int) -> Ints:
    """Permute places, all in [0, size), by a keyed Feistel network; values that leave the range walk on until they return.

    The network's domain is the next power of two, so a place takes less than two walks in the mean.
    """
    bits = max(size - 1, 0).bit_length()
    walked = _feistel(places.astype(np.uint64), bits, key)
    outside = np.flatnonzero(walked >= size)
    while len(outside):
        walked[outside] = _feistel(walked[outside], bits, key)
        outside = outside[walked[outside] >= size]
    return walked.astype(np.int64)


def _feistel(words: Words, bits: int, key: int) -> Words:
    """One pass over the domain of `bits` bits: halves of ceil and floor of its width change places every round."""
    upper, lower = bits - bits // 2, bits // 2
    for number in range(FEISTEL_ROUNDS):
        left, right = words >> np.uint64(lower), words & np.uint64((1 << lower) - 1)
        mixed = splitmix64(right ^ np.uint64(derive_key(key, number)))
        words = (right << np.uint64(upper)) | ((left ^ mixed) & np.uint64((1 << upper) - 1))
        upper, lower = lower, upper
    return words
