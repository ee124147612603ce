"""Rows in eight bits: little more than a quarter of the bytes for tables that can bear it.

Fed with float rows by `part`; optional, chosen by array. Each row is stored as low + step * q, q in 0..255, low and
step float32. For float32 or float16 rows the error of every element is at most

    step / 2 + 2^-22 * max|row| + 2^-140        with step = (max - min) / 255 of its own row

(half a step; the rounding of low, step and the result; the underflow of step). A table held to this bound is tested
by properties. Optimizer state that divides (Adagrad sums near zero) should stay raw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rover_bus.flash.layout import Array

LEVELS = 255
SCALE_BYTES = 8  # low and step a row


def can_encode(array: Array) -> bool:
    """Whether these are rows of float32 or float16, and wide enough to become shorter with their scale."""
    if array.ndim < 2 or array.dtype.kind != "f" or array.dtype.itemsize > 4 or not array.size:
        return False
    return bool(array[0].size * (array.dtype.itemsize - 1) > SCALE_BYTES)


def encode_rows(rows: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]] | None:
    """(n, width) finite floats to q (n, width) and (n, 2) low, step; None if a value is infinite or NaN: store such
    rows raw."""
    wide = rows.reshape(len(rows), -1).astype(np.float64)
    low, high = wide.min(axis=1), wide.max(axis=1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    scale = np.stack([low, (high - low) / LEVELS], axis=1).astype("<f4")
    step = scale[:, 1].astype(np.float64)
    np.divide(1.0, step, out=step, where=step > 0)
    wide -= scale[:, :1]
    wide *= step[:, None]
    np.rint(wide, out=wide)
    np.clip(wide, 0, LEVELS, out=wide)
    return wide.astype(np.uint8), scale


def decode_rows(levels: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32], out: Array) -> None:
    """Write (n, width) values to `out`."""
    wide = levels.astype(np.float64)
    wide *= scale[:, 1:]
    wide += scale[:, :1]
    limit = np.finfo(out.dtype).max
    np.clip(wide, -limit, limit, out=wide)
    out[...] = wide.reshape(out.shape)
