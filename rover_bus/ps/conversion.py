"""What a training loop hands over, as the type that a table stores: a value that the type does not hold is refused.

Used by `plan` and `dense`, before anything leaves a worker. Apart, because numpy's own conversion cuts 2**40 to 0 and 1.5 to 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError


def stored_as(dtype: str, array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return the values as `dtype`, the same array if they are. Too large a float becomes infinite (`gradients.check_finite`).

    Raises InputError for values that an integer type does not hold, and for what is no number.
    """
    kind = np.dtype(dtype)
    if array.dtype == kind:
        return array
    if array.dtype.kind not in "biuf":
        raise InputError(f"what is pushed to {name!r} is of type {array.dtype}: numbers are needed")
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(kind)
    if kind.kind == "i" and not (np.can_cast(array.dtype, kind) or _all_held(kind, array)):
        raise InputError(f"what is pushed to {name!r}, which stores {dtype}, has values that are not {dtype}")
    return values


def _all_held(kind: np.dtype[Any], array: npt.NDArray[Any]) -> bool:
    if not array.size:
        return True
    bounds, least, most = np.iinfo(kind), array.min(), array.max()
    if array.dtype.kind == "f" and not (
        np.isfinite(least) and np.isfinite(most) and (np.trunc(array) == array).all()
    ):
        return False
    return bounds.min <= int(least) and int(most) <= bounds.max
