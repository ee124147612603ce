"""History as a table: one flat record a job, and the files that other tools read.

Fed by `history.py`, feeds `rover history`. The columns are one list for the screen, CSV and Parquet, so that no form knows
more than another. Parquet is written by pyarrow, the extra `parquet`; CSV needs nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.history import History, JobLine, Usage
from rover_bus.events.errors import InputError

Row = dict[str, Any]

_SIZES: dict[str, type] = {
    "workers": int,
    "servers": int,
    "worker_cores": float,
    "server_cores": float,
    "worker_memory_bytes": int,
    "server_memory_bytes": int,
}
_USED: dict[str, type] = {"incarnations": int, "member_s": float, "cpu_s": float, "peak_memory_bytes": int}
_ROLES = ("worker", "ps")

# Names and types in the order of every export; "asked" and "held" are allocations, "worker" and "ps" what each role used.
COLUMNS: dict[str, type] = {
    "job": str,
    "submitted_at_s": float,
    "ended_at_s": float,
    "state": str,
    "reason": str,
    "plans_applied": int,
    "user": str,
    "dataset": str,
    "family": str,
    **{f"asked_{name}": kind for name, kind in _SIZES.items()},
    **{f"held_{name}": kind for name, kind in _SIZES.items()},
    **{f"{role}_{name}": kind for role in _ROLES for name, kind in _USED.items()},
    "samples_committed": int,
    "samples_dead_lettered": int,
    "peak_samples_per_s": float,
    "auc": float,
    "logloss": float,
}


def history_rows(history: History) -> list[Row]:
    """Return one record a job in the order of submission, keys as in COLUMNS; None where nothing is known."""
    return [_row(line) for line in sorted(history.values(), key=lambda line: (line.submitted_at_s, line.job))]


def history_csv(history: History) -> str:
    """Return the history as CSV, a line a job; nothing known is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history_rows(history))
    return out.getvalue()


def write_history(path: Path, history: History) -> None:
    """Write a .csv or a .parquet file. Raises InputError for another ending, a lacking pyarrow, a place that cannot be written."""
    writers: dict[str, Callable[[Path, History], None]] = {".csv": _write_csv, ".parquet": _write_parquet}
    write = writers.get(path.suffix.lower())
    if write is None:
        raise InputError(f"the name {path.name!r} says neither CSV nor Parquet: end it in .csv or .parquet")
    fresh = path.with_name(f".{path.name}.writing")
    try:
        write(fresh, history)
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        fresh.unlink(missing_ok=True)


def _write_csv(path: Path, history: History) -> None:
    path.write_text(history_csv(history), encoding="utf-8")


def _write_parquet(path: Path, history: History) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow: `pip install 'rover-bus[parquet]'`, or name a .csv file"
        ) from None
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    with path.open("wb") as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(history_rows(history), schema=schema), file)


def _row(line: JobLine) -> Row:
    row: Row = {name: getattr(line, name, None) for name in COLUMNS}
    row |= {"user": line.traits.user, "dataset": line.traits.dataset, "family": line.traits.family}
    row |= {f"asked_{name}": getattr(line.asked, name) for name in _SIZES}
    row |= _allocation("held", line.held)
    for role in _ROLES:
        used = line.used.get(role, Usage())
        row |= {f"{role}_{name}": getattr(used, name) for name in _USED}
    row["ended_at_s"] = line.ended_at_s or None
    return row


def _allocation(prefix: str, held: Allocation | None) -> Row:
    return {f"{prefix}_{name}": getattr(held, name) if held else None for name in _SIZES}
