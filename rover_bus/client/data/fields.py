"""Bytes of whole lines -> where every field of every row starts and ends.

Fed by `index` (blocks of a file), feeds `numbers`, `ids` and `columns`. It is apart because here all the dialects end: after
it there are no lines, delimiters, quotes and CRs any more, only spans in a buffer. Rows with quotes are taken apart by the
csv module, one by one, and their plain contents appended to the buffer; all others are split at once.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.client.data.index import CR, LF, QUOTE

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

PADDING = 16
"""Zero bytes behind the text, so that an eight-byte word can be read at every field and eight bytes further."""


@dataclass(frozen=True)
class Spans:
    """Some fields of a buffer, all of one shape: field i is `text[starts[i]:ends[i]]`."""

    text: Bytes
    starts: Ints
    ends: Ints

    def bytes_at(self, place: int) -> bytes:
        """Return one field of a flat array of spans."""
        return self.text[self.starts[place] : self.ends[place]].tobytes()


@dataclass(frozen=True)
class FieldRows:
    """The usable rows of some lines: spans [n, width]; `lines` int64[n] ascending says which lines they were.

    `unusable` names the other lines and why; lines count from 0 inside the bytes that were split.
    """

    fields: Spans
    lines: Ints
    unusable: list[tuple[int, str]]

    def column(self, places: tuple[int, ...] | int) -> Spans:
        """Return the spans of one column [n], or of several [n, k]."""
        picked = places if isinstance(places, int) else list(places)
        return Spans(self.fields.text, self.fields.starts[:, picked], self.fields.ends[:, picked])

    def take(self, places: Ints) -> FieldRows:
        """Return some of the rows, in the given order."""
        fields = Spans(self.fields.text, self.fields.starts[places], self.fields.ends[places])
        return FieldRows(fields, self.lines[places], self.unusable)


def split_rows(data: bytes, width: int, separator: bytes, quoting: bool) -> FieldRows:
    """Split whole lines (each ended by LF, CR before it ignored) into rows of `width` fields."""
    text = np.frombuffer(data + bytes(PADDING), np.uint8)
    marks = np.flatnonzero((text[: len(data)] == separator[0]) | (text[: len(data)] == LF))
    line_marks = np.flatnonzero(text[marks] == LF)
    counts = np.diff(line_marks, prepend=-1)
    quoted = _quoted_lines(text, marks[line_marks]) if quoting and QUOTE in data else np.empty(0, np.int64)
    plain = counts == width
    plain[quoted] = False
    starts, ends = _plain_spans(text, marks, line_marks, plain, width)
    lines = np.flatnonzero(plain)
    if len(lines) == len(counts):
        return FieldRows(Spans(text, starts, ends), lines, [])

    wrong = counts != width
    wrong[quoted] = False
    unusable = [(line, _count(int(counts[line]), width)) for line in np.flatnonzero(wrong).tolist()]
    rows = FieldRows(Spans(text, starts, ends), lines, unusable)
    return _append_quoted(rows, data, marks[line_marks], quoted, separator, width) if len(quoted) else rows


def _plain_spans(
    text: Bytes, marks: Ints, line_marks: Ints, plain: NDArray[np.bool_], width: int
) -> tuple[Ints, Ints]:
    """Return starts and ends [n, width] of the lines that have exactly `width` fields and no quotes."""
    if plain.all():
        ends = marks.reshape(-1, width)
    else:
        ends = marks[line_marks[plain][:, None] + np.arange(1 - width, 1)]
    starts = np.empty_like(ends)
    starts[:, 1:] = ends[:, :-1] + 1
    line_starts = np.concatenate([[0], marks[line_marks[:-1]] + 1]) if len(line_marks) else line_marks
    starts[:, 0] = line_starts[plain]
    last = ends[:, -1]
    cr = (text[last - 1] == CR) & (last > starts[:, -1])
    if cr.any():
        ends = ends.copy()
        ends[:, -1] -= cr
    return starts, ends


def _quoted_lines(text: Bytes, line_ends: Ints) -> Ints:
    return np.unique(np.searchsorted(line_ends, np.flatnonzero(text == QUOTE)))


def _append_quoted(
    rows: FieldRows, data: bytes, line_ends: Ints, quoted: Ints, separator: bytes, width: int
) -> FieldRows:
    """Take the quoted lines apart and lay their contents behind the text; rows stay in the order of their lines."""
    pieces: list[bytes] = []
    lengths: list[list[int]] = []
    lines: list[int] = []
    unusable = list(rows.unusable)
    for line in quoted.tolist():
        begin = int(line_ends[line - 1]) + 1 if line else 0
        fields = _unquote(data[begin : int(line_ends[line])], separator)
        if len(fields) == width:
            pieces.extend(fields)
            lengths.append([len(field) for field in fields])
            lines.append(line)
        else:
            unusable.append((line, _count(len(fields), width)))
    sizes = np.array(lengths, np.int64).reshape(-1, width)
    ends = np.cumsum(sizes).reshape(-1, width) + len(data)
    order = np.argsort(np.concatenate([rows.lines, np.array(lines, np.int64)]), kind="stable")
    spans = Spans(
        np.frombuffer(data + b"".join(pieces) + bytes(PADDING), np.uint8),
        np.concatenate([rows.fields.starts, ends - sizes])[order],
        np.concatenate([rows.fields.ends, ends])[order],
    )
    return FieldRows(
        spans, np.sort(np.concatenate([rows.lines, np.array(lines, np.int64)])), sorted(unusable)
    )


def _unquote(line: bytes, separator: bytes) -> list[bytes]:
    """Return the contents of one line's fields; an empty list when the csv module cannot read it."""
    text = line.removesuffix(b"\r").decode("latin-1")
    try:
        return [
            field.encode("latin-1") for field in next(csv.reader([text], delimiter=separator.decode()), [])
        ]
    except csv.Error:
        return []


def _count(found: int, width: int) -> str:
    return f"{found} fields instead of {width}" if found else "the fields cannot be told apart"
