"""Rows with their optimizer state: gather, train, scatter.

Used by every kind of table (`tables`), which only decide where a row is. Rows are moved as opaque records of row length
(`np.take` and `np.put` on a void view: half the time of fancy indexing), in blocks that stay in the second-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import NotEnoughMemory
from rover_bus.flash.dirty import DirtyRows
from rover_bus.ps.memory import Pages, Stretch
from rover_bus.ps.optimizers import state_columns, step
from rover_bus.ps.spec import Table

BLOCK_BYTES = 128 << 10  # of values a block: with state and gradients it fits the second-level cache

Places = npt.NDArray[np.int64] | slice  # a slice is updated in place: dense arrays


def _records(array: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    records: npt.NDArray[np.void] = array.view(f"V{array.shape[1] * array.itemsize}").ravel()
    return records


def all_finite(values: npt.NDArray[Any]) -> bool:
    """Whether no value is NaN or infinite. One dot product says yes; only a no is looked into."""
    if values.dtype.kind != "f":
        return True
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)) or np.isfinite(flat).all())


class RowBudget:
    """Bytes that the rows of all tables may use together; 0: as many as the system gives."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes, self._used_bytes = limit_bytes, 0

    def bound(self, limit_bytes: int, more_bytes: int = 0) -> None:
        """Allow so many bytes from now on, `more_bytes`: at most so many more than are used now; 0: no such bound."""
        room = self._used_bytes + more_bytes if more_bytes else limit_bytes
        self._limit_bytes = min(limit_bytes, room) if limit_bytes else room

    def check(self, size_bytes: int) -> None:
        """Raise NotEnoughMemory unless so many more bytes may be used."""
        if self._limit_bytes and self._used_bytes + size_bytes > self._limit_bytes:
            text = f"tables would use {self._used_bytes + size_bytes >> 20} MiB, of {self._limit_bytes >> 20} MiB allowed"
            raise NotEnoughMemory(f"{text}: use more servers, or give them more memory")

    def charge(self, size_bytes: int) -> None:
        """Use some that `check` has allowed."""
        self._used_bytes += size_bytes

    def refund(self, size_bytes: int) -> None:
        """Give some back: rows that have left."""
        self._used_bytes -= size_bytes


class Rows:
    """Rows of `width` values and the state of the table's optimizer. Places below `count` are in use, or `freed` for others."""

    def __init__(self, table: Table, width: int, budget: RowBudget) -> None:
        self.width, self.dtype, self.optimizer = width, np.dtype(table.dtype), table.optimizer
        self.l2, self.clip = np.float32(table.l2), np.float32(table.clip)
        self._columns = ((width, table.dtype, 0.0), *state_columns(table.optimizer, width))
        self._row_bytes = sum(columns * np.dtype(dtype).itemsize for columns, dtype, _ in self._columns)
        self._block = max(256, BLOCK_BYTES // (width * self.dtype.itemsize))
        self._budget, self.count, self.freed, self.capacity = budget, 0, 0, 0
        self._stretches = [Stretch(columns, dtype) for columns, dtype, _ in self._columns]
        self.dirty: DirtyRows | None = None  # rows changed since the last cut; None: cuts are not taken
        self._hold()

    def _hold(self) -> None:
        self._arrays = [stretch.array for stretch in self._stretches]
        self._records = [_records(array) for array in self._arrays]

    @property
    def values(self) -> npt.NDArray[Any]:
        """The used rows, (count, width). A view: do not keep it over a growth."""
        return self._arrays[0][: self.count]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the used rows with their state; reserved pages that were never touched cost nothing."""
        return self.used * self._row_bytes

    @property
    def used(self) -> int:
        """Rows in use."""
        return self.count - self.freed

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its state."""
        return self._row_bytes

    def check_budget(self, rows: int) -> None:
        """Raise NotEnoughMemory unless so many more rows may be in use."""
        self._budget.check(rows * self._row_bytes)

    def make_room(self, extra: int) -> None:
        """Have memory for `extra` more rows behind those there are, doubling; no row changes. Raises NotEnoughMemory."""
        if self.count + extra <= self.capacity:
            return
        capacity = max(1024, 2 * self.capacity, self.count + extra)
        try:
            for stretch in self._stretches:
                stretch.grow(capacity)
            self.capacity = capacity
        finally:
            self._hold()  # also where only some could grow: what they were copied from is never looked at again

    def extend(self, extra: int) -> int:
        """Use `extra` more rows, whose contents must be written next; return the first. There must be room."""
        self._budget.charge(extra * self._row_bytes)
        first, self.count = self.count, self.count + extra
        return first

    def scratch_bytes(self, rows: int) -> int:
        """Return what training so many rows needs for a while, at most: the blocks of `_train`, and what `touch` looks through."""
        block = min(rows, self._block) * (2 * self._row_bytes + 4 * self.width * self.dtype.itemsize + 64)
        return block + (0 if self.dirty is None else 2 * self.count + 16 * rows)

    def cold(self) -> list[Pages]:
        """Return the pages of the used rows, and of some more, that were not asked for yet: to be populated before rows arrive."""
        return [pages for stretch in self._stretches for pages in stretch.cold(self.count)]

    # -- whole states (snapshots) ----------------------------------------------------------------------------------------

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the used rows: values, then the optimizer's state. Views: do not keep them over a growth."""
        return [array[: self.count] for array in self._arrays]

    def adopt(self, columns: list[npt.NDArray[Any]]) -> None:
        """Hold these very arrays as all the rows there are. Raises ValueError unless they are such columns."""
        wanted = [((width,), np.dtype(dtype)) for width, dtype, _ in self._columns]
        if [(column.shape[1:], column.dtype) for column in columns] != wanted:
            raise ValueError("columns of another kind of table")
        if len({len(column) for column in columns}) != 1:
            raise ValueError("columns of different lengths")
        self.count = self.capacity = len(columns[0])
        self._budget.charge(self.count * self._row_bytes)
        for stretch, column in zip(self._stretches, columns, strict=True):
            stretch.adopt(column)
        self._hold()

    def zero(self, places: npt.NDArray[np.int64]) -> None:
        """Set the values of rows to 0."""
        self.touch(places)
        self._arrays[0][places] = 0

    def touch(self, places: Places) -> None:
        """Note rows that change, for the next cut."""
        if self.dirty is not None:
            if isinstance(places, slice):
                self.dirty.add_whole()
            else:
                self.dirty.add(places, self.count)

    # -- rows that come and go -------------------------------------------------------------------------------------------

    def release(self, places: npt.NDArray[np.int64]) -> None:
        """These rows have left; what decides where rows lie may use their places again (`reclaim`)."""
        self.freed += len(places)
        self._budget.refund(len(places) * self._row_bytes)

    def reclaim(self, places: npt.NDArray[np.int64]) -> None:
        """Use released places again; their contents must be written next (`begin` or `copy_in`)."""
        self._budget.charge(len(places) * self._row_bytes)
        self.freed -= len(places)

    def begin(self, places: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        """Write first values and fresh state at places that are in use again."""
        self.touch(places)
        self._arrays[0][places] = values
        for array, (_, _, first) in zip(self._arrays[1:], self._columns[1:], strict=True):
            array[places] = first

    def copy_out(self, places: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Return copies of rows with their whole state, one array a piece: what a moved slot consists of (P3)."""
        return [self._gather(which, places) for which in range(len(self._arrays))]

    def copy_in(self, places: npt.NDArray[np.int64], pieces: list[npt.NDArray[Any]]) -> None:
        """Write rows with their whole state, as `copy_out` returned them."""
        self.touch(places)
        for records, piece in zip(self._records, pieces, strict=True):
            records[places] = _records(np.ascontiguousarray(piece))

    def pieces(self, rows: int) -> list[tuple[str, tuple[int, int]]]:
        """Return dtype and shape of each piece of `rows` rows."""
        return [(dtype, (rows, columns)) for columns, dtype, _ in self._columns]

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add rows with these first values and fresh state. There must be room."""
        start = self.extend(len(values))
        self._arrays[0][start : self.count] = values
        for array, (_, _, first) in zip(self._arrays[1:], self._columns[1:], strict=True):
            array[start : self.count] = first

    def take(self, places: Places) -> npt.NDArray[Any]:
        """Return a copy of the values at `places`, (n, width)."""
        if isinstance(places, slice):
            return self._arrays[0][places].copy()
        return self._gather(0, places)

    def _gather(self, which: int, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        array = self._arrays[which]
        gathered = self._records[which].take(places, mode="clip")
        return gathered.view(array.dtype).reshape(len(places), array.shape[1])

    def train(self, places: Places, gradients: npt.NDArray[Any], rate_scale: float) -> None:
        """Apply one optimizer step to distinct rows. `gradients` (n, width) is used as scratch."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a huge gradient ruins its row; it must not stop a push half way
            self._train(places, gradients, rate_scale)
        self.touch(places)

    def _train(self, places: Places, gradients: npt.NDArray[Any], rate_scale: float) -> None:
        if isinstance(places, slice):
            for start in range(0, len(gradients), self._block):
                part = gradients[start : start + self._block]
                first = places.start + start
                blocks = [array[first : first + len(part)] for array in self._arrays]
                self._step(blocks, part, rate_scale)
            return
        for start in range(0, len(places), self._block):
            part = places[start : start + self._block]
            blocks = [self._gather(which, part) for which in range(len(self._arrays))]
            self._step(blocks, gradients[start : start + self._block], rate_scale)
            for records, block in zip(self._records, blocks, strict=True):
                records.put(part, _records(block), mode="clip")

    def _step(self, blocks: list[npt.NDArray[Any]], gradients: npt.NDArray[Any], rate_scale: float) -> None:
        values, *state = blocks
        if self.clip:
            np.clip(gradients, -self.clip, self.clip, out=gradients)
        if self.l2:
            gradients += self.l2 * values
        step(self.optimizer, values, gradients, tuple(state), rate_scale)
