"""Bytes of whole lines -> columns, and a part of them by place.

Fed by `index` (blocks of a file) and `growing` (those of a partition), feeds `click_log` and `partitions`. It is apart because both
kinds of log read alike: what a line means does not depend on whether the file goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rover_bus.client.data.columns import Columns, parse_labels, split_bags
from rover_bus.client.data.fields import Ints, split_rows
from rover_bus.client.data.ids import hash_fields
from rover_bus.client.data.numbers import parse_numbers
from rover_bus.client.data.scaling import Scaling
from rover_bus.client.data.schema import ColumnLayout, Schema
from rover_bus.events.data_facts import SkippedRow


@dataclass(frozen=True)
class ParsedPart:
    """What became of some places (positions of a window, or the caller's rows): usable ones ascending, others named."""

    columns: Columns
    places: Ints
    skipped: tuple[SkippedRow, ...]

    def cut(self, first: int, last: int) -> ParsedPart:
        """Return what lies in [first, last)."""
        begin, end = np.searchsorted(self.places, [first, last])
        skipped = tuple(row for row in self.skipped if first <= row.position < last)
        return ParsedPart(self.columns.take(np.arange(begin, end)), self.places[begin:end], skipped)


def parse_columns(
    data: bytes, layout: ColumnLayout, schema: Schema, scaling: Scaling
) -> tuple[Columns, list[tuple[int, str]]]:
    """Return the usable rows of some lines, and the other lines with the reason; both count lines from 0 (`Columns.rows`)."""
    rows = split_rows(data, layout.width, schema.separator, schema.quoting)
    labels, unlabelled = parse_labels(rows, layout, schema)
    if unlabelled:
        rows, labels = rows.take(np.flatnonzero(~np.isnan(labels))), labels[~np.isnan(labels)]
    dense, missing = parse_numbers(rows.column(layout.dense))
    columns = Columns(
        rows=rows.lines,
        labels=labels,
        dense=scaling.apply(dense, missing),
        dense_missing=missing.sum(1),
        categorical=hash_fields(rows.column(layout.categorical)),
        multi={
            name: split_bags(rows.column(place), mark.encode())
            for place, (name, mark) in zip(layout.multi, schema.multi.items(), strict=True)
        },
    )
    return columns, [*rows.unusable, *unlabelled]
