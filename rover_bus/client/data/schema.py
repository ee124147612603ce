"""The schema of a click log: which columns it has and what they mean.

Fed by the `[data]` table of a job file, feeds the readers. It is apart because it is what a user writes: every mistake in
it has to come back as one line that names the right spelling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rover_bus.events.errors import InputError

CRITEO_DENSE = tuple(f"I{n}" for n in range(1, 14))
CRITEO_CATEGORICAL = tuple(f"C{n}" for n in range(1, 27))


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read a click log. Lines end in LF or CRLF; every line is a row.

    `format` sets the defaults: `csv` (delimiter `,`, header, quoted fields), `tsv` (the same with tabs), `criteo` (raw
    Criteo: tabs, no header, no quotes, label, I1..I13, C1..C26). `columns` names the columns of a file without a header.
    `multi` maps a multi-valued column to the one character that separates its values. A label is the number 0 or 1;
    with `label_threshold` it is any number, and 1 from the threshold on.
    """

    format: Literal["csv", "tsv", "criteo"] = "csv"
    label: str = "label"
    dense: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    multi: dict[str, str] = {}
    delimiter: str = ""
    header: bool | None = None
    columns: tuple[str, ...] = ()
    label_threshold: float | None = None

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Schema:
        """Build a schema from a job file's table; unknown keys and wrong types are InputErrors that name the key."""
        for key in table:
            if key not in cls.__struct_fields__:
                raise InputError(f"no data setting {key!r}{_suggest(key, cls.__struct_fields__)}")
        try:
            schema = msgspec.convert(dict(table), cls, strict=True)
        except msgspec.ValidationError as error:
            raise InputError(f"data settings: {error}") from error
        schema.check()
        return schema

    @property
    def separator(self) -> bytes:
        """The byte between two fields."""
        return (self.delimiter or ("," if self.format == "csv" else "\t")).encode()

    @property
    def quoting(self) -> bool:
        """Whether a field that starts with a quote goes on to the closing one (raw Criteo knows no quotes)."""
        return self.format != "criteo"

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return self.format != "criteo" and not self.columns if self.header is None else self.header

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The dense columns; all thirteen of raw Criteo unless some are named."""
        return self.dense or (CRITEO_DENSE if self.format == "criteo" else ())

    @property
    def categorical_names(self) -> tuple[str, ...]:
        """The categorical columns; all twenty-six of raw Criteo unless some are named."""
        return self.categorical or (CRITEO_CATEGORICAL if self.format == "criteo" else ())

    def check(self) -> None:
        """Raise InputError where settings contradict each other."""
        for what, mark in [
            ("delimiter", self.separator),
            *((f"multi.{n}", s.encode()) for n, s in self.multi.items()),
        ]:
            if len(mark) != 1 or mark in b'"\r\n':
                raise InputError(f"{what} must be one plain ASCII character, not {mark.decode()!r}")
            if what != "delimiter" and mark == self.separator:
                raise InputError(f"{what} is the delimiter of the file: values could not be told from fields")
        names = [self.label, *self.dense_names, *self.categorical_names, *self.multi]
        if len(names) < 2:
            raise InputError("the schema names no feature: set dense, categorical or multi")
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"column {name!r} is named twice in the schema: a column has one role")
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise InputError(f"{name!r} stands twice in columns")
        if not self.has_header and not self.columns and self.format != "criteo":
            raise InputError("a file without a header needs its column names: set columns")

    def lay_out(self, header: Sequence[str] | None, *, labelled: bool = True, width: int = 0) -> ColumnLayout:
        """Find the columns in a file's header (None: the file has none); a missing one is an InputError.

        Without `labelled` no label is read: a file to score need not have one. `width` is what a file without a header has: one
        column less than it names means that the label is the one that it lacks.
        """
        names = list(header if header is not None else self.columns or self._criteo_columns())
        if not labelled and header is None and width == len(names) - 1 and self.label in names:
            names.remove(self.label)

        def find(wanted: Iterable[str]) -> tuple[int, ...]:
            for name in wanted:
                if name not in names:
                    hint = _suggest(name, names) or f"; the file has {', '.join(names[:50])}"
                    raise InputError(f"no column {name!r}{hint}")
            return tuple(names.index(name) for name in wanted)

        return ColumnLayout(
            len(names),
            find([self.label])[0] if labelled else None,
            find(self.dense_names),
            find(self.categorical_names),
            find(self.multi),
        )

    def _criteo_columns(self) -> tuple[str, ...]:
        return (self.label, *CRITEO_DENSE, *CRITEO_CATEGORICAL)


@dataclass(frozen=True)
class ColumnLayout:
    """Where the columns of a schema stand in a row: indices in [0, width). `label` is None where none is read."""

    width: int
    label: int | None
    dense: tuple[int, ...]
    categorical: tuple[int, ...]
    multi: tuple[int, ...]


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
