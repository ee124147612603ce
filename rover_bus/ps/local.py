"""The same parameters in one process, without servers: the same grouping, the same stores, the same optimizers.

Used by `rover run --plain`, by standalone mode, and by bench/ps.py as the yardstick for what servers cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError
from rover_bus.ps import update
from rover_bus.ps.catalogue import Keys
from rover_bus.ps.changes import HalfChanged, indivisible
from rover_bus.ps.gradients import added_parts, pushed_parts
from rover_bus.ps.hashing import SLOTS
from rover_bus.ps.intervals import NOTHING, Intervals
from rover_bus.ps.outgoing import DensePart, PullItem, SparsePart
from rover_bus.ps.parts import assemble
from rover_bus.ps.plan import group_ids, plan_sums, split
from rover_bus.ps.rows import Places
from rover_bus.ps.spec import Dense, Table
from rover_bus.ps.store import Acknowledged, Additions, BatchKey, Exported, Pulled
from rover_bus.ps.tables import TableSet
from rover_bus.ps.update import Trainable


class LocalParameters:
    """`store.Parameters` in this process. `seed`: the job's, for first values."""

    def __init__(self, seed: int = 0) -> None:
        self._whole = TableSet(np.arange(SLOTS), seed)
        self._broken: HalfChanged | None = None
        self._dense: list[DensePart] = []
        self._applied: dict[int, Intervals] = {}
        self._acknowledged: list[Acknowledged] = []
        self._latest: PullItem | None = None
        self._places: dict[SparsePart, Places] = {}  # of the latest pull: its push need not search again

    def declare(self, *tables: Table) -> None:
        self._tables.declare(tables)
        catalogue = self._tables.catalogue
        self._dense = [DensePart(catalogue, names) for names in catalogue.dense()]

    def pull(self, ids: Mapping[str, npt.NDArray[Any]]) -> Pulled:
        sparse = [SparsePart(group) for group in group_ids(self._tables.catalogue, ids)]
        self._places = {}
        pulled = Pulled()
        for part in sparse:
            pulled.update(self._rows(part))
        for dense in self._dense:
            pulled.update(self._arrays(dense))
        pulled.plan = self._latest = PullItem(sparse, self._dense, counted=True)
        return pulled

    def _rows(self, part: SparsePart) -> dict[str, npt.NDArray[Any]]:
        keys = part.group.keys
        store = self._tables.store(keys.names)
        places = self._places[part] = store.locate(keys)
        assert not isinstance(places, slice)
        inverse = part.group.inverse
        if len(places) and int(places.min()) < 0:
            return split(part.group, store.pull(keys, places).take(inverse, axis=0, mode="clip"))
        return split(part.group, store.rows.take(places.take(inverse)))

    def _arrays(self, part: DensePart) -> dict[str, npt.NDArray[Any]]:
        keys = _no_keys(part.layout.names)
        store = self._tables.store(keys.names)
        return part.layout.unpack(store.pull(keys, store.locate(keys)))

    def push(
        self,
        batch: BatchKey,
        gradients: Mapping[str, npt.NDArray[Any]],
        *,
        rate_scale: float = 1.0,
        add: Additions | None = None,
        pulled: Pulled | None = None,
    ) -> None:
        source = self._latest if pulled is None else pulled.plan
        sparse, dense = pushed_parts(self._dense, source, gradients)
        sparse += added_parts(self._tables.catalogue, add or {})
        held = self._applied.get(batch.epoch, NOTHING)
        if batch.number not in held:
            sections = [self._rows_to_train(part, plan_sums(part.group).of(rows)) for part, rows in sparse]
            sections += [self._lines_to_train(whole, lines) for whole, lines in dense]
            self._change(sections, rate_scale, {**self._applied, batch.epoch: held.add(batch.number)})
        self._acknowledged.append(Acknowledged(batch, 0, (), batch.number in held, 0))

    def _rows_to_train(self, part: SparsePart, sums: npt.NDArray[Any]) -> Trainable:
        keys = part.group.keys
        store = self._tables.store(keys.names)
        places = self._places.get(part)
        return Trainable(store, keys, store.locate(keys) if places is None else places, sums)

    def _lines_to_train(self, part: DensePart, lines: npt.NDArray[Any]) -> Trainable:
        keys = _no_keys(part.layout.names)
        store = self._tables.store(keys.names)
        return Trainable(store, keys, store.locate(keys), lines)

    def _change(self, sections: list[Trainable], rate_scale: float, applied: dict[int, Intervals]) -> None:
        """Train everything, or nothing. Raises HalfChanged: then these parameters are of no use any more, and say so."""
        sections = update.prepare(self._tables, sections)
        try:
            self._apply(sections, rate_scale, applied)
        except HalfChanged as broken:
            self._broken = broken
            raise

    @indivisible("a push")
    def _apply(self, sections: list[Trainable], rate_scale: float, applied: dict[int, Intervals]) -> None:
        update.apply(sections, rate_scale)
        self._applied = applied

    @property
    def _tables(self) -> TableSet:
        """The tables, unless a push stopped half way."""
        if self._broken is not None:
            raise self._broken
        return self._whole

    def acknowledged(self) -> list[Acknowledged]:
        done, self._acknowledged = self._acknowledged, []
        return done

    def flush(self) -> None:
        """Nothing is ever on its way."""

    def read(self, table: str, ids: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        if isinstance(self._tables.catalogue.entry(table).table, Dense):
            return self._arrays(DensePart(self._tables.catalogue, (table,)))[table]
        if ids is None:
            raise InputError(f"reading {table!r} needs ids: it has rows")
        [group] = group_ids(self._tables.catalogue, {table: ids})
        store = self._tables.store(group.keys.names)
        rows = store.pull(group.keys, store.locate(group.keys))
        return split(group, rows.take(group.inverse, axis=0, mode="clip"))[table]

    def export(self) -> dict[str, Exported]:
        tables = self._tables.catalogue.tables()
        return {table.name: assemble(table, [self._tables.export(table.name)]) for table in tables}

    def close(self) -> None:
        """Nothing to release."""


def _no_keys(names: tuple[str, ...]) -> Keys:
    none = np.empty(0, np.int64)
    return Keys(names, none, none)
