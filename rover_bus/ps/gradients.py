"""From what a training loop pushes to what is sent: gradients matched with their pull, additions grouped by id.

Used by `exchange` and `local`. Everything is copied out of the caller's arrays and checked here, before anything leaves: a batch is
refused whole, in words, or pushed whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps.catalogue import Catalogue, stored_width
from rover_bus.ps.outgoing import DensePart, PullItem, SparsePart
from rover_bus.ps.plan import gather, group_ids, narrow
from rover_bus.ps.rows import all_finite
from rover_bus.ps.store import Additions


def pushed_parts(
    dense: list[DensePart], source: PullItem | None, gradients: Mapping[str, npt.NDArray[Any]]
) -> tuple[list[tuple[SparsePart, npt.NDArray[Any]]], list[tuple[DensePart, npt.NDArray[Any]]]]:
    """Match gradients with what was pulled, copied out of the caller's arrays.

    Raises InputError for tables that were not pulled, for wrong shapes, and for values that are not finite.
    """
    left = set(gradients)
    sparse_parts, dense_parts = [], []
    for part in source.sparse if source else ():
        names = left.intersection(part.group.keys.names)
        if names:
            group = narrow(part.group, frozenset(names))
            values = gather(group, gradients)
            sparse_parts.append((part if group is part.group else SparsePart(group), values))
            left -= names
    for whole in dense:
        names = left.intersection(whole.layout.names)
        if names:
            some = whole if len(names) == len(whole.layout.names) else whole.narrow(names)
            dense_parts.append((some, some.layout.pack(gradients)))
            left -= names
    if left:
        raise InputError(f"gradients for {', '.join(sorted(left))}, which the last pull did not ask for")
    for part, rows in sparse_parts:
        check_finite(part.group.keys.names, rows)
    for whole, lines in dense_parts:
        check_finite(whole.layout.names, lines)
    return sparse_parts, dense_parts


def check_finite(names: tuple[str, ...], values: npt.NDArray[Any]) -> None:
    """Refuse values that would ruin rows for all workers."""
    if not all_finite(values):
        raise InputError(f"what is pushed to {', '.join(names)} is not all finite: the batch was not pushed")


def added_parts(catalogue: Catalogue, add: Additions) -> list[tuple[SparsePart, npt.NDArray[Any]]]:
    """Group additions to tables that were not pulled. Values are shaped as the ids, (+ width); scalars spread.

    Raises InputError for wrong shapes, and for values that a table does not hold.
    """
    parts = []
    for group in group_ids(catalogue, {name: ids for name, (ids, _) in add.items()}):
        spread = {}
        for entry, shape in zip(group.entries, group.shapes, strict=True):
            values, width = np.asarray(add[entry.table.name][1]), stored_width(entry.table)
            if width == 1 and values.ndim == len(shape):
                values = values[..., None]
            spread[entry.table.name] = _spread(entry.table.name, values, (*shape, width))
        rows = gather(group, spread)
        check_finite(group.keys.names, rows)
        parts.append((SparsePart(group), rows))
    return parts


def _spread(name: str, values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        text = f"what is added to {name!r} has the shape {values.shape}, which does not spread to {shape}"
        raise InputError(text) from None
