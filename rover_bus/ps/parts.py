"""A server's part of the final state as a file, and the whole model from all parts.

Fed by `core` when the job ends; read by `rover export`, by `rover witness` and by evaluation after the servers are gone. A plain
npz without pickle: numpy alone can read it, its checksums find flipped bits. Written whole or not at all.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError, Refused
from rover_bus.ps.core import ServerCore
from rover_bus.ps.spec import Dense, Hashed, Table
from rover_bus.ps.store import Exported

Page = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]  # ids (line numbers of dense arrays) and their values


class PartHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a part file is: which incarnation of which server wrote it, and the tables in it."""

    format: int = 1
    timeline: int
    generation: int
    routing_epoch: int
    servers: int  # parts that make up the whole
    index: int
    incarnation: int
    seed: int  # of first values (P4)
    tables: tuple[Table, ...]
    statistics: dict[str, float]


HEADERS = msgspec.msgpack.Decoder(PartHeader)  # made once, at import: see journal.py


def assemble(table: Table, pages: Sequence[Page]) -> Exported:
    """Put the parts of one table together. Raises InputError when a row is missing or twice."""
    ids = np.concatenate([page for page, _ in pages]) if pages else np.empty(0, np.int64)
    order = np.argsort(ids)
    ids = ids[order]
    values = np.concatenate([page for _, page in pages])[order] if pages else np.empty((0, 1), table.dtype)
    if np.any(ids[1:] == ids[:-1]):
        raise InputError(f"table {table.name!r}: row {int(ids[:-1][ids[1:] == ids[:-1]][0])} is in two parts")
    if isinstance(table, Dense):
        _check_rows(table.name, ids, table.lines)
        return Exported(values.reshape(-1)[: table.size].reshape(table.shape))
    if isinstance(table, Hashed):
        _check_rows(table.name, ids, table.rows)
    return Exported(values, ids)


def _check_rows(name: str, ids: npt.NDArray[np.int64], rows: int) -> None:
    if len(ids) != rows:
        raise InputError(f"table {name!r}: {len(ids)} of {rows} rows; parts of some servers are missing")


def write_part(core: ServerCore, path: Path) -> int:
    """Write what a server holds; return the size in bytes. fsynced, then renamed: the path holds a whole part or none."""
    state, tables = core.state, core.tables
    if tables is None or state.routing is None:
        raise Refused(f"server {state.index} holds nothing yet", "not_admitted")
    header = PartHeader(
        timeline=state.timeline,
        generation=state.generation,
        routing_epoch=state.routing.epoch,
        servers=len(state.routing.servers),
        index=state.index,
        incarnation=state.incarnation,
        seed=tables.seed,
        tables=tuple(tables.catalogue.tables()),
        statistics=core.statistics(),
    )
    arrays: dict[str, Any] = {"header": np.frombuffer(msgspec.msgpack.encode(header), np.uint8)}
    for number, table in enumerate(header.tables):
        arrays[f"ids{number}"], arrays[f"values{number}"] = tables.export(table.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{state.incarnation}.writing")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return path.stat().st_size


def read_header(path: Path) -> PartHeader:
    """Return what a part file says of itself. Raises InputError."""
    return _read(path, lambda header, _: header)  # type: ignore[no-any-return]


def _read(path: Path, use: Any) -> Any:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            header = HEADERS.decode(arrays["header"].tobytes())
            return use(header, arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a whole part of a model: {error}") from None


def read_parts(paths: Iterable[Path], only: str | None = None) -> dict[str, Exported]:
    """Put a model (or one table of it) together from the parts of all servers. Raises InputError if they do not belong together."""
    paths = sorted(paths)
    headers = [read_header(path) for path in paths]
    if not headers:
        raise InputError("no part of a model was given: name those of all servers")
    origins = {(h.timeline, h.generation, h.routing_epoch, h.servers) for h in headers}
    if len(origins) > 1 or len({h.index for h in headers}) != headers[0].servers:
        found = ", ".join(f"server {h.index} of {h.servers} (generation {h.generation})" for h in headers)
        raise InputError(f"these parts are not one whole model: {found}")
    tables = {table.name: table for header in headers for table in header.tables}
    if only is not None and only not in tables:
        raise InputError(f"no table {only!r} in the model (there are: {', '.join(sorted(tables))})")
    wanted = [table for table in tables.values() if only in (None, table.name)]
    return {
        table.name: assemble(table, [_read_table(path, table.name) for path in paths]) for table in wanted
    }


def _read_table(path: Path, name: str) -> Page:
    def take(header: PartHeader, arrays: Any) -> Page:
        number = [table.name for table in header.tables].index(name)
        return arrays[f"ids{number}"], arrays[f"values{number}"]

    return _read(path, take)  # type: ignore[no-any-return]
