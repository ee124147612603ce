"""A click log, read by batch number or by row.

Fed by a file and a schema; feeds training loops, evaluation and the registration of a data set. It is apart as the one door
to this room. Parsing happens a window (8192 positions) at a time, and the last few windows are kept: a lease of any size
costs its share of a window, and no thread or process is started here. One reader thread an object.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from rover_bus.client.data.columns import Batch, Columns
from rover_bus.client.data.fields import Ints, split_rows
from rover_bus.client.data.index import build_index
from rover_bus.client.data.numbers import parse_numbers
from rover_bus.client.data.order import BLOCK_ROWS, WINDOW_ROWS, Order
from rover_bus.client.data.parsing import ParsedPart, parse_columns
from rover_bus.client.data.scaling import Scaling
from rover_bus.client.data.schema import Schema
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.errors import InputError
from rover_bus.events.job import Dataset

SAMPLE_BLOCKS = 16
"""How much of a file its digest and its scaling are taken from: the same evenly spaced blocks in every worker."""


class ClickLog:
    """A CSV, TSV or raw Criteo file, indexed once. Reads by random access; any number of objects may read one file.

    `scaling` is for evaluation files: that of the training file (`train.scaling`), by default taken from a sample of this file.
    `cache` is a directory for the index, so that later processes need not scan the file again. Raises InputError, one line,
    for a file or a schema that cannot be used. Without `labelled` the labels are not read, and every one is 0.
    """

    def __init__(
        self,
        path: str | Path,
        schema: Schema,
        *,
        scaling: Scaling | None = None,
        cache: Path | None = None,
        windows_cached: int = 3,
        labelled: bool = True,
    ) -> None:
        schema.check()
        self.path = Path(path)
        self.schema = schema
        self._index = build_index(path, schema, cache)
        self._layout = schema.lay_out(self._index.header, labelled=labelled, width=self._width())
        self._given_scaling = scaling
        self._windows: OrderedDict[tuple[int, int, int], ParsedPart] = OrderedDict()
        self._windows_cached = windows_cached

    @property
    def records(self) -> int:
        """Number of rows, usable or not: every line after the header but blank ones at the end."""
        return self._index.rows

    @cached_property
    def scaling(self) -> Scaling:
        """How dense values are scaled: as given, or taken from a fixed sample of this file."""
        if self._given_scaling:
            return self._given_scaling
        rows = split_rows(self._sample(), self._layout.width, self.schema.separator, self.schema.quoting)
        return Scaling.fit(*parse_numbers(rows.column(self._layout.dense)))

    @cached_property
    def digest(self) -> str:
        """Tell this data from other data (S6): a hash of the schema, the size and a sample of the content."""
        parts = [msgspec.json.encode(self.schema, order="sorted"), str(self._index.size_bytes).encode()]
        return hashlib.blake2b(b"\0".join([*parts, self._sample()]), digest_size=16).hexdigest()

    def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
        """Return what is registered for this file: its records on a grid of batches (protocol P1)."""
        return Dataset(
            records=self.records,
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            digest=self.digest,
            features=self.scaling.features,
        )

    def batch(self, epoch: int, number: int, dataset: Dataset) -> Batch:
        """Return batch `number` of an epoch: positions [k*m, min((k+1)*m, N)) of its order, less the rows left out.

        Raises IndexError outside the grid, InputError when the data set is not this file's.
        """
        if dataset.records != self.records:
            raise InputError(
                f"{self.path} has {self.records} rows, but {dataset.records} are registered: was it changed since?"
            )
        if not 0 <= number < dataset.batches:
            raise IndexError(f"batch {number} is outside this grid of {dataset.batches} batches")
        first = number * dataset.batch_size
        last = min(first + dataset.batch_size, self.records)
        order = Order(self.records, dataset.seed, epoch)
        windows = range(first // WINDOW_ROWS, (last - 1) // WINDOW_ROWS + 1)
        parts = [self._window(order, window).cut(first, last) for window in windows]
        return Batch(
            **vars(Columns.join([part.columns for part in parts])),
            epoch=epoch,
            number=number,
            positions=np.concatenate([part.places for part in parts]),
            skipped=tuple(row for part in parts for row in part.skipped),
        )

    def read(self, rows: Ints) -> tuple[Columns, Ints, tuple[SkippedRow, ...]]:
        """Return the columns of some rows in their order, their places int64[m] among those asked for, and the rows left out.

        `rows` int64[n] in [0, records), repeats allowed; IndexError outside.
        """
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.records:
            raise IndexError(f"rows outside [0, {self.records}) of {self.path}")
        blocks, block = np.unique(rows // BLOCK_ROWS, return_inverse=True)
        part = self._pick(blocks, block * BLOCK_ROWS + rows % BLOCK_ROWS, 0)
        return part.columns, part.places, part.skipped

    def scan(self, rows_at_once: int = WINDOW_ROWS) -> Iterator[tuple[Columns, Ints, tuple[SkippedRow, ...]]]:
        """Read the whole file in its own order: yields `read` of consecutive rows. For evaluation."""
        for first in range(0, self.records, rows_at_once):
            yield self.read(np.arange(first, min(first + rows_at_once, self.records)))

    def _width(self) -> int:
        """Number of fields of the first row of a file without a header; 0 where the header says it."""
        if self._index.header is not None:
            return 0
        first_row = self._index.read(np.zeros(1, np.int64)).partition(b"\n")[0]
        return first_row.count(self.schema.separator) + 1

    def _sample(self) -> bytes:
        blocks = len(self._index.offsets) - 1
        return self._index.read(np.unique(np.linspace(0, blocks - 1, SAMPLE_BLOCKS).astype(np.int64)))

    def _window(self, order: Order, window: int) -> ParsedPart:
        key = (order.seed, order.epoch, window)
        part = self._windows.pop(key, None)
        if part is None:
            part = self._pick(order.blocks(window), order.shuffle(window), window * WINDOW_ROWS)
        self._windows[key] = part
        while len(self._windows) > self._windows_cached:
            self._windows.popitem(last=False)
        return part

    def _pick(self, blocks: Ints, lines: Ints, first: int) -> ParsedPart:
        """Parse some blocks laid end to end, and return their `lines` in that order; places count from `first`."""
        parsed, parsed_lines, unusable = self._parse(blocks)
        slots = np.full(len(blocks) * BLOCK_ROWS, -1)
        slots[parsed_lines] = np.arange(len(parsed_lines))
        slots = slots[lines]
        usable = np.flatnonzero(slots >= 0)
        skipped = []
        for line, reason in unusable:
            row = int(self._row(blocks, np.array(line)))
            for place in np.flatnonzero(lines == line).tolist():
                skipped.append(SkippedRow(first + place, row, self._index.line(row), reason))
        skipped.sort(key=lambda row: row.position)
        return ParsedPart(parsed.take(slots[usable]), usable + first, tuple(skipped))

    def _parse(self, blocks: Ints) -> tuple[Columns, Ints, list[tuple[int, str]]]:
        """Return the usable rows of some blocks, their lines (counted through the blocks), and the others with the reason."""
        columns, unusable = parse_columns(self._index.read(blocks), self._layout, self.schema, self.scaling)
        return replace(columns, rows=self._row(blocks, columns.rows)), columns.rows, unusable

    @staticmethod
    def _row(blocks: Ints, lines: Ints) -> Ints:
        return blocks[lines // BLOCK_ROWS] * BLOCK_ROWS + lines % BLOCK_ROWS
