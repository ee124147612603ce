"""The arrays that a training loop sees, and how they are taken from the rows of a file.

Fed by `fields`, `numbers`, `ids`, `scaling`; feeds `click_log`. It is apart because it is the vocabulary of user programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.fields import FieldRows, Ints, Spans
from rover_bus.client.data.ids import hash_fields
from rover_bus.client.data.numbers import parse_numbers
from rover_bus.client.data.schema import ColumnLayout, Schema
from rover_bus.events.data_facts import SkippedRow


@dataclass(frozen=True)
class Bag:
    """A multi-valued column: row i holds `values[offsets[i]:offsets[i + 1]]`, ids int64; offsets int64[m + 1]. May be empty."""

    values: Ints
    offsets: Ints

    def take(self, places: Ints) -> Bag:
        """Return the bags at some places, in their order."""
        firsts, sizes = self.offsets[places], np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Bag(self.values[np.repeat(firsts - offsets[:-1], sizes) + np.arange(offsets[-1])], offsets)

    @classmethod
    def join(cls, bags: Sequence[Bag]) -> Bag:
        """Lay some bags end to end."""
        sizes = np.concatenate([np.diff(bag.offsets) for bag in bags])
        return cls(np.concatenate([bag.values for bag in bags]), np.concatenate([[0], np.cumsum(sizes)]))


@dataclass(frozen=True)
class Columns:
    """Usable rows of a click log as arrays of m rows.

    `rows` int64[m]: their number in the file. `labels` float32[m]: 0 or 1. `dense` float32[m, D]: scaled, 0 where missing.
    `dense_missing` int64[m]: how many of a row's dense fields were missing (an empty categorical field is not missing: it is a
    value with an id of its own). `categorical` int64[m, C]: ids. `multi`: a bag a column.
    """

    rows: Ints
    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    dense_missing: Ints
    categorical: Ints
    multi: Mapping[str, Bag]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def values_missing(self) -> int:
        """How many dense fields were missing, and imputed."""
        return int(self.dense_missing.sum())

    def take(self, places: Ints) -> Columns:
        """Return the rows at some places, in their order."""
        return Columns(
            self.rows[places],
            self.labels[places],
            self.dense[places],
            self.dense_missing[places],
            self.categorical[places],
            {name: bag.take(places) for name, bag in self.multi.items()},
        )

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """Lay some columns of one schema end to end."""
        return Columns(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.dense for part in parts]),
            np.concatenate([part.dense_missing for part in parts]),
            np.concatenate([part.categorical for part in parts]),
            {name: Bag.join([part.multi[name] for part in parts]) for name in parts[0].multi},
        )


@dataclass(frozen=True)
class Batch(Columns):
    """Batch `number` of an epoch: its usable rows, their positions int64[m] in the epoch, and the rows left out.

    Of a stream positions are offsets in the batch's partition; rows left out stand in `file` ("": the registered one), and their
    position is on the grid of batches in any case (number * batch_size + place), which is how the master counts them (P6).
    """

    epoch: int
    number: int
    positions: Ints
    skipped: tuple[SkippedRow, ...]
    file: str = ""


def parse_labels(
    rows: FieldRows, layout: ColumnLayout, schema: Schema
) -> tuple[NDArray[np.float32], list[tuple[int, str]]]:
    """Return labels float32[n], NaN where unusable, and the lines where they are, with the reason; zeros where none are read."""
    if layout.label is None:
        return np.zeros(len(rows.lines), np.float32), []
    spans = rows.column(layout.label)
    values, missing = parse_numbers(spans)
    if schema.label_threshold is None:
        labels, usable = values, ~missing & ((values == 0) | (values == 1))
        rule = "is neither 0 nor 1"
    else:
        labels, usable = (values >= schema.label_threshold).astype(np.float64), ~missing
        rule = "is not a number"
    wrong = np.flatnonzero(~usable)
    named = [(int(rows.lines[n]), f"label {_show(spans.bytes_at(n))} {rule}") for n in wrong.tolist()]
    return np.where(usable, labels, np.nan).astype(np.float32), named


def split_bags(column: Spans, separator: bytes) -> Bag:
    """Split every field of a column at a separator and hash the values; empty values are no values."""
    ascending = np.argsort(column.starts, kind="stable")
    starts, ends = column.starts[ascending], column.ends[ascending]
    marks = np.flatnonzero(column.text == separator[0])
    owner = np.searchsorted(starts, marks, side="right") - 1
    inside = (owner >= 0) & (marks < ends[owner]) if len(starts) else np.zeros(len(marks), bool)
    marks = marks[inside]
    # Fields do not overlap, so sorted starts and sorted ends belong together.
    values = Spans(
        column.text, np.sort(np.concatenate([starts, marks + 1])), np.sort(np.concatenate([ends, marks]))
    )
    filled = np.flatnonzero(values.ends > values.starts)
    values = Spans(column.text, values.starts[filled], values.ends[filled])
    sizes = np.bincount(np.searchsorted(starts, values.starts, side="right") - 1, minlength=len(starts))
    bag = Bag(hash_fields(values), np.concatenate([[0], np.cumsum(sizes)]))
    return bag if (ascending[1:] > ascending[:-1]).all() else bag.take(np.argsort(ascending))


def _show(field: bytes) -> str:
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")
