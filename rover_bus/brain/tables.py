"""CSV tables of measured throughput: read with every fault named by its row, written with predictions.

Fed by users' files, feeds `fitting`. Apart, because here the outside comes in: nothing behind this page meets a bad number.

Columns: `workers, ps, throughput`, and optionally `worker_cores, ps_cores, batch_size, mode, group`. `throughput` is the
whole job's, in steps or samples a second (`unit`). `batch_size` is the whole job's when synchronous, a worker's when
asynchronous. Rows whose throughput is not a finite number above 0 are named and left out.

Fields are separated by commas, semicolons or tabs, whichever the header has most of; beside semicolons a comma may stand for the
point in a number, as spreadsheets write it.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rover_bus.brain.models.forms import Mode
from rover_bus.brain.models.samples import Configurations, FloatArray, Observations
from rover_bus.events.errors import InputError

Unit = Literal["steps", "samples"]
CANDIDATES = ("workers", "ps")
COLUMNS = ("workers", "ps", "throughput", "worker_cores", "ps_cores", "batch_size", "mode", "group")
_MODES: dict[str, Mode | None] = {
    "": None,
    "sync": "sync",
    "dist_sync": "sync",
    "synchronous": "sync",
    "async": "async",
    "dist_async": "async",
    "asynchronous": "async",
}
_MOST_ROWS = 1_000_000
_MOST_MEMBERS = 1_000_000
_SEPARATORS = ",;\t"
_LONGEST_HEADER = 1 << 16
_SHOWN = 40  # characters of a cell that a message repeats


class LeftOut(msgspec.Struct, frozen=True):
    """A row that was not used: its number (the first below the header is 1) and why."""

    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class Table:
    """Usable rows of one file. `throughput` in `unit` a second, nan where the table has none; `groups` a name a row."""

    path: str
    unit: Unit
    configurations: Configurations
    throughput: FloatArray
    groups: tuple[str, ...]
    modes: tuple[Mode | None, ...]
    left_out: tuple[LeftOut, ...] = ()
    numbers: tuple[int, ...] = ()  # of the rows in the file, where it came from one

    def __len__(self) -> int:
        return len(self.throughput)

    def take(self, index: ArrayLike) -> Table:
        """Return some rows, by index."""
        chosen = np.asarray(index, dtype=np.int64)
        return Table(
            self.path,
            self.unit,
            self.configurations.take(chosen),
            self.throughput[chosen],
            tuple(self.groups[i] for i in chosen),
            tuple(self.modes[i] for i in chosen),
            numbers=tuple(self.numbers[i] for i in chosen) if self.numbers else (),
        )

    def name(self, index: int) -> str:
        """Say which row is meant: by its number in the file, and its size."""
        at = self.configurations
        size = f"{at.workers[index]:g} workers, {at.ps[index]:g} ps"
        return f"row {self.numbers[index]} ({size})" if self.numbers else size

    def by_group(self) -> Iterator[tuple[str, Table]]:
        """Yield (group, its rows) in the order of first appearance."""
        for group in dict.fromkeys(self.groups):
            yield group, self.take([i for i, name in enumerate(self.groups) if name == group])

    def mode(self) -> Mode | None:
        """Return the mode that the rows state, or None. Raises InputError when they disagree."""
        stated = {mode for mode in self.modes if mode is not None}
        if len(stated) > 1:
            raise InputError(
                f"{self.path}: group {self.groups[0]!r} mixes sync and async rows; name two groups"
            )
        return stated.pop() if stated else None

    def observations(self, unit_of_speed: float = 1.0) -> Observations:
        """Return the rows as samples a second of the whole job, or as multiples of so much of the table's unit."""
        return Observations.of(self.configurations, self.throughput / unit_of_speed * self.samples_per_unit())

    def samples_per_unit(self) -> FloatArray:
        """Samples in one unit of throughput, a row: the batch size for steps, 1 for samples."""
        return self.configurations.batch_size if self.unit == "steps" else np.ones(len(self))


def read_table(
    path: str | Path, unit: Unit = "steps", measured: bool = True, columns: Sequence[str] = COLUMNS
) -> Table:
    """Read one CSV file. `measured = False`: candidates or a file to predict, whose throughput column may be missing.

    `columns`: those that are looked at, the others may hold anything. Raises InputError that names the file, and the row and column
    where one is at fault.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline(_LONGEST_HEADER)
            separator = max(_SEPARATORS, key=first.count)
            rows = csv.reader(chain([first], file), strict=True, delimiter=separator)
            return _parse(str(path), rows, unit, measured, columns, separator == ";")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; name a CSV file that can be read") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: cannot be read as CSV ({error}); give a UTF-8 file with a header line"
        ) from error


def _parse(
    path: str,
    reader: Iterable[list[str]],
    unit: Unit,
    measured: bool,
    columns: Sequence[str],
    decimal_commas: bool,
) -> Table:
    lines = iter(reader)
    header = [name.strip().lower() for name in next(lines, [])]
    _check_header(path, header, measured)
    numbers: list[list[float]] = []
    names: list[tuple[str, Mode | None]] = []
    left_out: list[LeftOut] = []
    used: list[int] = []
    row = 0
    for fields in lines:
        if not any(field.strip() for field in fields):
            continue
        row += 1
        if row > _MOST_ROWS:
            raise InputError(f"{path}: more than {_MOST_ROWS} rows; fit a sample of them")
        if len(fields) != len(header):
            raise InputError(f"{path}, row {row}: {len(fields)} fields where the header has {len(header)}")
        cells = {name: field.strip() for name, field in zip(header, fields, strict=True) if name in columns}
        values = _numbers(path, row, cells, decimal_commas)
        if "throughput" in cells and not (math.isfinite(values[-1]) and values[-1] > 0):
            left_out.append(LeftOut(row, f"throughput is {_shown(cells['throughput']) or 'empty'}"))
            continue
        numbers.append(values)
        used.append(row)
        names.append((cells.get("group", ""), _mode(path, row, cells.get("mode", ""))))
    table = np.array(numbers, dtype=np.float64).reshape(-1, 6).T
    groups, modes = tuple(n for n, _ in names), tuple(m for _, m in names)
    at = Configurations.of(*table[:5])
    return Table(path, unit, at, table[5], groups, modes, tuple(left_out), tuple(used))


def _shown(text: str) -> str:
    """A cell as a message may repeat it: on one line, without what a terminal would obey, and not endless."""
    short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return short if short.isprintable() else ascii(short)


def _check_header(path: str, header: list[str], measured: bool) -> None:
    if not header:
        raise InputError(f"{path}: the file is empty; give a header line with workers, ps, throughput")
    needed = ("workers", "ps", "throughput") if measured else ("workers", "ps")
    for name in needed:
        if name not in header:
            near = difflib.get_close_matches(name, header, 1, 0.5)
            hint = f"; is it {near[0]!r}?" if near else ""
            if all(_is_number(cell) for cell in header):
                hint = "; the first line must name the columns"
            raise InputError(f"{path}: no column {name!r} among {_shown(', '.join(header))}{hint}")
    twice = {name for name in header if name in COLUMNS and header.count(name) > 1}
    if twice:
        raise InputError(f"{path}: column {sorted(twice)[0]!r} stands twice in the header")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: str, row: int, cells: dict[str, str], decimal_commas: bool) -> list[float]:
    """Six numbers: workers, ps, worker_cores, ps_cores, batch_size, throughput (nan when absent or unusable)."""
    if decimal_commas:
        cells = {name: text if name == "group" else text.replace(",", ".") for name, text in cells.items()}
    values = [
        _number(path, row, cells, name)
        for name in ("workers", "ps", "worker_cores", "ps_cores", "batch_size")
    ]
    for name, value in zip(CANDIDATES, values, strict=False):
        if value != int(value) or value > _MOST_MEMBERS:
            wanted = "a whole number" if value <= _MOST_MEMBERS else f"below {_MOST_MEMBERS}"
            raise InputError(f"{path}, row {row}: {name} is {_shown(cells[name])}, not {wanted}")
    try:
        return [*values, float(cells.get("throughput", "nan"))]
    except ValueError:
        return [*values, math.nan]


def _number(path: str, row: int, cells: dict[str, str], name: str) -> float:
    text = cells.get(name, "1" if name not in CANDIDATES else "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        leave = "" if name in CANDIDATES else "; correct it, or leave the column out"
        raise InputError(f"{path}, row {row}: {name} is '{_shown(text)}', not a number above 0{leave}")
    return value


def _mode(path: str, row: int, text: str) -> Mode | None:
    if text.lower() not in _MODES:
        raise InputError(
            f"{path}, row {row}: mode is '{_shown(text)}'; write sync or async, or leave it empty"
        )
    return _MODES[text.lower()]
