"""Decimal fields -> float64, a column or a whole table at once.

Fed by `fields`, feeds `columns`. It is apart because it is pure arithmetic on words: eight characters are one uint64, and
their digits become a number in three multiplications (D. Lemire, "Quickly parsing eight digits", 2018). What fits no such
word (exponents, more than 15 digits, signs other than -) is left to float(), field by field, with equal results.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.fields import Bytes, Ints, Spans

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]


def _word(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


ONES, ZEROS, DOTS, HIGH = _word(1), _word(ord("0")), _word(ord(".")), _word(0x80)
FIRST_BYTES = np.array([(1 << 8 * length) - 1 for length in range(9)], np.uint64)
POWERS = np.array([float(10**n) for n in range(17)])
"""Exact in float64; an integer below 2^53 divided by one of them is rounded once, as float() rounds."""


def parse_numbers(spans: Spans) -> tuple[Floats, Flags]:
    """Return values float64 and missing bool, shaped as the spans; a missing value is 0.

    Missing is what float() refuses, the empty field, and what is not finite. Fields of up to 16 characters with up to 15
    digits take the fast path.
    """
    starts, ends = spans.starts.ravel(), spans.ends.ravel()
    lengths = ends - starts
    negative = (spans.text[starts] == ord("-")) & (lengths > 0)
    digits_at, digits = starts + negative, lengths - negative
    values, plain = _parse_short(spans.text, digits_at, digits)
    long = np.flatnonzero(digits > 8)
    if len(long):
        values[long], plain[long] = _parse_long(spans.text, digits_at[long], digits[long])
    np.negative(values, out=values, where=negative)
    missing = lengths == 0
    values[missing] = 0.0
    flat = Spans(spans.text, starts, ends)
    for place in np.flatnonzero(~plain & ~missing).tolist():
        values[place], missing[place] = _parse_slowly(flat.bytes_at(place))
    return values.reshape(spans.starts.shape), missing.reshape(spans.starts.shape)


def _parse_slowly(field: bytes) -> tuple[float, bool]:
    try:
        value = float(field)
    except ValueError:
        return 0.0, True
    return (value, False) if math.isfinite(value) else (0.0, True)


def words_at(text: Bytes, places: Ints) -> Words:
    """Return the eight bytes at each place as little-endian words (the text must go on for eight bytes)."""
    everywhere: Words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
    return everywhere[places]


def keep_bytes(words: Words, lengths: Ints) -> Words:
    """Keep the first `lengths` (0 to 8) bytes of each word and clear the others."""
    return words & FIRST_BYTES[lengths]


def _parse_short(text: Bytes, places: Ints, lengths: Ints) -> tuple[Floats, Flags]:
    """Parse fields of 1 to 8 characters: digits with at most one dot. Others are not plain, their value has no meaning."""
    short = np.minimum(lengths, 8)
    words = keep_bytes(words_at(text, places), short)
    words, fractions, length = _take_out_dot(words, short)
    values, plain = _digits(words, length)
    plain &= (length > 0) & (lengths <= 8)
    return values / POWERS[fractions] if fractions.any() else values, plain


def _parse_long(text: Bytes, places: Ints, lengths: Ints) -> tuple[Floats, Flags]:
    """Parse fields of 9 to 16 characters in two words: at most 15 digits, so that the sum is exact."""
    bounded = np.minimum(lengths, 16)
    head, head_fractions, head_length = _take_out_dot(words_at(text, places), np.full_like(places, 8))
    tail = keep_bytes(words_at(text, places + 8), bounded - 8)
    tail, tail_fractions, tail_length = _take_out_dot(tail, bounded - 8)
    head_dot = head_length < 8
    head_values, head_plain = _digits(head, head_length)
    tail_values, tail_plain = _digits(tail, tail_length)
    digits = head_length + tail_length
    plain = head_plain & tail_plain & (lengths <= 16) & (digits <= 15) & (digits >= lengths - 1)
    fractions = np.where(head_dot, head_fractions + tail_length, tail_fractions)
    return (head_values * POWERS[tail_length] + tail_values) / POWERS[fractions], plain


def _take_out_dot(words: Words, lengths: Ints) -> tuple[Words, Ints, Ints]:
    """Close the gap of the first dot: return the words without it, the digits behind it, and the lengths left."""
    x = words ^ DOTS
    hits = (x - ONES) & ~x & HIGH
    dotted = hits != 0
    if not dotted.any():
        return words, np.zeros_like(lengths), lengths
    # The lowest hit is bit 7 of the dot's byte; the bits below that byte stay where they are.
    below = ((hits & (~hits + np.uint64(1))) - np.uint64(1)) >> np.uint64(7)
    before = (((below & ONES) * ONES) >> np.uint64(56)).astype(np.int64)
    keep = np.where(dotted, below, ~np.uint64(0))
    closed = (words & keep) | ((words >> np.uint64(8)) & ~keep)
    return closed, np.where(dotted, lengths - 1 - before, 0), lengths - dotted


def _digits(words: Words, lengths: Ints) -> tuple[Floats, Flags]:
    """Turn the first `lengths` (0 to 8) bytes, ASCII digits, into numbers; say where they are nothing but digits."""
    # Shift the digits to the end of the word; cleared bytes in front count as zeros.
    # A shift by 64 is undefined, so empty fields shift by less: they have no bytes anyway.
    bits = (np.minimum(8 - lengths, 7) << 3).astype(np.uint64)
    values = (words ^ (ZEROS & FIRST_BYTES[lengths])) << bits
    plain = (((values + _word(0x76)) | values) & HIGH) == 0
    values = (values * np.uint64(2561)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    values = (values * np.uint64(6553601)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    values = (values * np.uint64(42949672960001)) >> np.uint64(32)
    return values.astype(np.float64), plain
