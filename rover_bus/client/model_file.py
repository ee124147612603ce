"""A trained model as one `.npz`: arrays that numpy alone can read, and a card in JSON that says what they mean.

Written by `rover export` and `rover checkpoint restore`; read by scoring.py. It is apart because the format is a promise
(docs/model-file.md): a dense array is `<name>`; a table is `<name>`, its rows, and `<name>.ids`, ascending; the card is
`model.json`, UTF-8 as uint8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rover_bus.events.errors import InputError
from rover_bus.events.model_card import ModelCard
from rover_bus.ps.spec import Dense, Growing, Hashed, Table

CARD = "model.json"
FORMAT = 1
BEGINNINGS = (
    b"PK",
    b"\x93NUMPY",
)  # of an archive and of a single array: numpy takes anything else for a pickle


class ModelFile(NamedTuple):
    """Arrays by name, and the card."""

    arrays: dict[str, NDArray[Any]]
    card: ModelCard


def write_model(file: IO[bytes], model: ModelFile) -> None:
    """Write a model. The caller writes beside the place and renames."""
    card = np.frombuffer(msgspec.json.encode(model.card), np.uint8)
    np.savez(file, allow_pickle=False, **{**model.arrays, CARD: card})


def read_model(path: str | Path) -> ModelFile:
    """Read a whole model file. Raises InputError, one line, for a file that is none, of another format, or cut short."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            if not file.peek().startswith(BEGINNINGS):
                raise ValueError("it is no .npz")
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise InputError(f"{path} is a single array, not what `rover export` writes")
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise InputError(f"there is no model file {path}") from None
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - what numpy and zipfile raise of foreign bytes is no closed set
        raise InputError(
            f"{path} is no whole model file ({_spoken(error)}): export it again, `rover export JOB {path.name}`"
        ) from None
    return ModelFile(arrays, _read_card(arrays.pop(CARD, None), path))


def _read_card(raw: NDArray[Any] | None, path: Path) -> ModelCard:
    if raw is None:
        raise InputError(f"{path} has no {CARD}: it is not what `rover export` writes (docs/model-file.md)")
    try:
        version = msgspec.json.decode(raw.tobytes(), type=dict[str, Any]).get("format")
        if version == FORMAT:
            return msgspec.json.decode(raw.tobytes(), type=ModelCard)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: its {CARD} cannot be read: {error}") from None
    raise InputError(
        f"{path} has format {version}, this release reads {FORMAT}: read it with the release that wrote it"
    )


def check_arrays(arrays: Mapping[str, NDArray[Any]], tables: Iterable[Table], path: str) -> None:
    """Raise InputError, one line, where an array is not what the card declares: looked up, it would score rows wrongly."""
    for table in tables:
        for name, problem in _problems(arrays, table):
            if problem:
                raise InputError(f"{path}: the array {name!r} {problem}: export it again")


def _problems(arrays: Mapping[str, NDArray[Any]], table: Table) -> Iterable[tuple[str, str]]:
    found = arrays.get(table.name)
    if found is None:
        yield table.name, "is missing"
        return
    count = table.rows if isinstance(table, Hashed) else len(found) if found.ndim else 0
    shape = table.shape if isinstance(table, Dense) else (count, table.width)
    if found.shape != shape or found.dtype != table.dtype:
        yield table.name, f"is {found.dtype}{list(found.shape)}, not {table.dtype}{list(shape)}"
    if isinstance(table, Growing):
        yield f"{table.name}.ids", _problem_of_ids(arrays.get(f"{table.name}.ids"), count)


def _problem_of_ids(ids: NDArray[Any] | None, rows: int) -> str:
    if ids is None:
        return "is missing"
    if ids.shape != (rows,) or ids.dtype != np.int64:
        return f"is {ids.dtype}{list(ids.shape)}, not int64[{rows}]"
    return "" if (ids[1:] > ids[:-1]).all() else "does not ascend"


def _spoken(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
