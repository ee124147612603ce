"""Arithmetic in GF(2^8), on whole buffers.

Feeds `parity`. Addition is XOR; a product with a constant is a look-up, two bytes at a time (a table of 65,536 sums
fits the second-level cache). The polynomial is 0x11d with generator 2, as in RAID 6 (H. P. Anvin, "The mathematics
of RAID-6").
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

POLYNOMIAL = 0x11D
BLOCK_BYTES = 128 << 10


def _powers() -> tuple[list[int], list[int]]:
    exponents, logarithms, value = [0] * 510, [0] * 256, 1
    for power in range(255):
        exponents[power] = exponents[power + 255] = value
        logarithms[value] = power
        value = value << 1 ^ (POLYNOMIAL if value & 0x80 else 0)
    return exponents, logarithms


EXPONENTS, LOGARITHMS = _powers()


def power(exponent: int) -> int:
    """2 to the power of `exponent`."""
    return EXPONENTS[exponent % 255]


def product(a: int, b: int) -> int:
    return EXPONENTS[LOGARITHMS[a] + LOGARITHMS[b]] if a and b else 0


def inverse(a: int) -> int:
    """Raises ZeroDivisionError for 0."""
    if not a:
        raise ZeroDivisionError("0 has no inverse in GF(2^8)")
    return EXPONENTS[255 - LOGARITHMS[a]]


@lru_cache(maxsize=64)
def _pairs(factor: int) -> npt.NDArray[np.uint16]:
    """Products of `factor` with both bytes of every 16-bit word."""
    single = np.array([product(factor, value) for value in range(256)], np.uint16)
    return (single[:, None] << np.uint16(8) | single).ravel()


def multiply(source: Bytes, factor: int) -> Bytes:
    """`factor` times every byte of a flat, contiguous buffer, in a new one."""
    if factor == 1:
        return source.copy()
    padded = source if len(source) % 2 == 0 else np.append(source, np.uint8(0))
    table, words, result = _pairs(factor), padded.view(np.uint16), np.empty(len(padded), np.uint8)
    out = result.view(np.uint16)
    for start in range(0, len(words), BLOCK_BYTES // 2):
        span = slice(start, start + BLOCK_BYTES // 2)
        table.take(words[span], mode="clip", out=out[span])
    return result[: len(source)]


def add_product(target: Bytes, source: Bytes, factor: int) -> None:
    """target += factor * source, in place; `target` may be longer."""
    for start in range(0, len(source), BLOCK_BYTES):
        span = source[start : start + BLOCK_BYTES]
        part = target[start : start + len(span)]
        np.bitwise_xor(part, span if factor == 1 else multiply(span, factor), out=part)
