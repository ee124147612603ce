"""One push as a change of several tables: all memory is had before the first row changes (P3, docs/design/0023).

Used by `core` (a server) and by `local` (one process). `prepare` may refuse, and has then changed nothing that can be seen;
`apply` is not interrupted: what is raised in it is the end of the state (`changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from rover_bus.ps.catalogue import Keys
from rover_bus.ps.memory import SLACK_BYTES, look_for
from rover_bus.ps.rows import Places
from rover_bus.ps.storage import Store, missing
from rover_bus.ps.tables import TableSet


class Trainable(NamedTuple):
    """Rows of one section of a push, ready to be trained."""

    store: Store
    keys: Keys
    places: Places  # distinct; -1 where a row is still to be made
    gradients: npt.NDArray[Any]  # writeable: used as scratch


def prepare(tables: TableSet, sections: Sequence[Trainable], more_bytes: int = 0) -> list[Trainable]:
    """Have memory for every new row of a push, for what training them needs for a while, and for `more_bytes`.

    Return the sections with the places that are known by now. Raises BadMessage for keys of other slots, NotEnoughMemory,
    MemoryError; no row has changed then.
    """
    found = [each._replace(places=each.store.look_again(each.keys, each.places)) for each in sections]
    new = [missing(each.places) for each in found]
    tables.check_budget((each.store, rows) for each, rows in zip(found, new, strict=True))
    rooms: dict[int, tuple[Store, int]] = {}
    for each, rows in zip(found, new, strict=True):
        rooms[id(each.store)] = each.store, rows + rooms.get(id(each.store), (each.store, 0))[1]
    for store, rows in rooms.values():
        store.make_room(rows)
    scratch = [e.store.scratch_bytes(len(e.gradients), rows) for e, rows in zip(found, new, strict=True)]
    kept = sum(8 * len(each.gradients) for each in found)  # the places of rows that were missing
    look_for(SLACK_BYTES + max(scratch, default=0) + kept + more_bytes)
    return found


def apply(sections: Sequence[Trainable], rate_scale: float) -> list[Trainable]:
    """Make the rows that are missing, then train all; return the sections with every place. Part of a change."""
    placed: list[Trainable] = []
    for each in sections:
        places = each.places
        if any(other.store is each.store for other in placed):  # it may have made some of them
            places = each.store.look_again(each.keys, places)
        placed.append(each._replace(places=each.store.allocate(each.keys, places)))
    for store, _, places, gradients in placed:
        store.rows.train(places, gradients, rate_scale)
    return placed
