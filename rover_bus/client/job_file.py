"""JOB.toml to a JobSpec: read, units turned into numbers, names and data checked before anything is submitted.

Fed by `rover submit` and `rover run --plain`; feeds `job.submitted`. It is apart because it is what a user writes: every
mistake comes back as one line that names the place and the right spelling. Keys follow the fields of
rover_bus.events.job without their unit (`memory = "2GiB"` is `memory_bytes`), so a new field is a new key.
docs/job-file.md describes each.
"""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rover_bus.client.programs import BUILT_IN, SCORER, SCORING, find_example
from rover_bus.events.errors import InputError
from rover_bus.events.job import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    LeaseSpec,
    MoveSpec,
    PlanSpec,
    RoleSpec,
    StopSpec,
    WorkersSpec,
)
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.subjects import name as check_name
from rover_bus.events.units import parse_bytes, parse_seconds, require_text
from rover_bus.events.written_settings import NOTHING_CHOSEN, Chosen, choose, complete
from rover_bus.flash.location import is_address, parse_location

TABLES: dict[str, type[msgspec.Struct]] = {
    "data": DataSpec,
    "workers": WorkersSpec,
    "servers": RoleSpec,
    "leases": LeaseSpec,
    "plan": PlanSpec,
    "moves": MoveSpec,
    "stop": StopSpec,
    "checkpoint": CheckpointSpec,
}
_UNITS: dict[str, Callable[[object, str], float]] = {"_bytes": parse_bytes, "_s": parse_seconds}
_OURS = frozenset({"directory", "start_from"})  # fields of a JobSpec that are no keys: known from elsewhere


def read_job(
    path: str | Path,
    *,
    name: str = "",
    seed: int | None = None,
    predictions: str | Path = "",
    stack: Chosen = NOTHING_CHOSEN,
) -> JobSpec:
    """Return the job that a file describes, paths made absolute, data not yet looked at.

    `name`, `seed` and `predictions` (relative to here, not to the file) replace what the file says. What the file leaves out is
    taken from the environment, then from `stack`, what was set where it will run. Raises InputError in one line.
    """
    path = Path(path).absolute()
    require_text(str(path), "job file")
    directory, named = path.parent, path.name
    fields = _fields_of(read_table(path), named, {**stack, **choose((), os.environ)})
    fields["name"] = name or fields.get("name") or path.stem
    if not isinstance(fields.get("predictions", ""), str):
        raise InputError(f"{named}: predictions must be the path of a file, in quotes")
    fields["directory"] = str(directory)
    data = fields["data"]
    for key in ("train", "evaluate"):
        if data.get(key):
            data[key] = str(directory / str(data[key]))
    if seed is not None:
        data["seed"] = seed
    if (checkpoint := fields.get("checkpoint")) and checkpoint.get("path"):
        checkpoint["path"] = _place_checkpoints(str(checkpoint["path"]), directory, named)
    if predictions or fields.get("predictions"):
        fields["predictions"] = str(
            Path(predictions).absolute() if predictions else directory / fields["predictions"]
        )
    return _to_spec(fields, named)


def to_job(table: Mapping[str, Any], name: str, named: str, stack: Chosen = NOTHING_CHOSEN) -> JobSpec:
    """Return the job that a table of the job file's keys means, its paths as they are written: those of where it will run.

    `named`: what errors call the table. Raises InputError in one line.
    """
    return _to_spec({**_fields_of(table, named, stack), "name": name}, named)


def _fields_of(table: Mapping[str, Any], named: str, chosen: Chosen) -> dict[str, Any]:
    """Return the fields of a JobSpec that a table sets, without what only its place can say. `chosen`: what it may leave out."""
    _check_numbers(table, "", named)
    fields = _convert_keys(table, JobSpec, "", named)
    complete(fields, chosen)
    if "data" not in fields:
        raise InputError(f'{named}: there is no [data]: say what to train on, `train = "clicks.csv"`')
    program = fields.get("program", "dlrm")
    if isinstance(program, str):
        fields.setdefault("scoring", program)
    fields["program"] = find_program(program, named)
    if (checkpoint := fields.get("checkpoint")) is not None:
        fields.setdefault("on_server_lost", "restore")
        if checkpoint.get("parity") and checkpoint.get("copies"):
            raise InputError(f"{named}: checkpoint: parity and copies say the same: choose one of them")
    return fields


def _to_spec(fields: dict[str, Any], named: str) -> JobSpec:
    """Return the job with these fields, each checked. Raises InputError in the words of the file."""
    try:
        spec = msgspec.convert(fields, JobSpec)
    except msgspec.ValidationError as error:
        raise InputError(f"{named}: {_spoken(error)}") from None
    check_name(spec.name, "job name")
    for role, asked in (("workers", spec.workers), ("servers", spec.servers)):
        if asked.min_count and asked.count:
            raise InputError(f"{named}: {role}: count is the least already: leave min_count out, or count")
        if asked.min_count > asked.max_count:
            raise InputError(f"{named}: {role}: min_count is larger than max_count")
    if spec.scoring and spec.scoring not in SCORING and not SCORER.fullmatch(spec.scoring):
        raise InputError(
            f'{named}: scoring must be "module:function", or a built-in program ({", ".join(SCORING)}), not {spec.scoring!r}'
        )
    return spec


def check_data(spec: JobSpec, index_cache: Path | None = None) -> dict[str, int]:
    """Read the data's headers and lines once, before anything is submitted; return the rows of `train` and `evaluate`.

    Raises InputError for a file that is missing or empty, a column that is not there, an output that cannot be written.
    """
    from rover_bus.client.data import ClickLog, Schema, open_log

    schema = Schema.parse(spec.data.schema)
    train = open_log(spec.data.train, schema, cache=index_cache)
    train.dataset(spec.data.batch_size, spec.data.epochs)
    rows = {"train": train.records}
    if spec.data.evaluate:
        rows["evaluate"] = ClickLog(spec.data.evaluate, schema, cache=index_cache).records
    if spec.predictions:
        if not spec.data.evaluate:
            raise InputError("predictions need an evaluation file: set data.evaluate in the job file")
        if not os.path.isdir(Path(spec.predictions).parent):
            raise InputError(
                f"predictions cannot be written: there is no directory {Path(spec.predictions).parent}"
            )
    return rows


def _place_checkpoints(text: str, directory: Path, named: str) -> str:
    """An address of an object store as it is, a directory made absolute."""
    if not is_address(text):
        return str(directory / text)
    try:
        return str(parse_location(text))
    except InputError as error:
        raise InputError(f"{named}: checkpoint.path: {error}") from None


def find_program(program: object, named: str) -> list[str]:
    """Return the worker's command line: a list as it stands, or a built-in program by its name."""
    if isinstance(program, str):
        if program not in BUILT_IN:
            close = suggest(program, BUILT_IN) or f" (there is {', '.join(BUILT_IN)})"
            raise InputError(
                f"{named}: no built-in program {program!r}{close}; a command of yours is a list: "
                'program = ["python", "train.py"]'
            )
        return [sys.executable, str(find_example(BUILT_IN[program]))]
    if not isinstance(program, list) or not program or not all(isinstance(word, str) for word in program):
        raise InputError(f'{named}: program must be a name, or a list of words like ["python", "train.py"]')
    return [str(word) for word in program]


def program_here(spec: JobSpec) -> list[str]:
    """Return the command line that runs the program on this machine. Raises InputError where it is not there.

    What a job's workers run is their hosts' to know, and their daemons are asked.
    """
    first, *rest = spec.program
    if first == OWN_PYTHON:
        return [sys.executable, *rest]
    if shutil.which(str(Path(spec.directory, first)) if "/" in first else first) is None:
        raise InputError(f"{spec.name}: program {first!r} is not there, or cannot be executed")
    return list(spec.program)


def read_table(path: str | Path) -> dict[str, Any]:
    """Return a job file as it is written. Raises InputError when it cannot be read as TOML."""
    path = Path(path)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no job file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read the job file {path}: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"the job file {path} is empty: docs/job-file.md has one to start from")
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise InputError(f"the job file {path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name}: {error}") from None


def _check_numbers(value: object, where: str, named: str) -> None:
    """Raise InputError for a number that no event can hold, also in the tables that are the program's own."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_numbers(each, f"{where}.{key}" if where else str(key), named)
    elif isinstance(value, list):
        for each in value:
            _check_numbers(each, where, named)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"{named}: {where}: {value} does not fit into 64 bits")


def _convert_keys(
    table: Mapping[str, Any], cls: type[msgspec.Struct], place: str, named: str
) -> dict[str, Any]:
    """Return the fields of `cls` that a table sets, its units read; an unknown key is refused by name."""
    keys = keys_of(cls)
    fields: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{place}{key}"
        if key not in keys:
            raise InputError(f"{named}: no key {where!r}{suggest(key, keys) or _elsewhere(key)}")
        field = keys[key]
        if field in TABLES and cls is JobSpec:
            if not isinstance(value, dict):
                raise InputError(f"{named}: {where} must be a table: write [{where}] and its keys below")
            value = _convert_keys(value, TABLES[field], f"{where}.", named)
        for suffix, parse in _UNITS.items():
            if field == key + suffix:
                value = parse(value, f"{named}: {where}")
        fields[field] = value
    return fields


def keys_of(cls: type[msgspec.Struct]) -> dict[str, str]:
    """Return the keys that a table may hold, and the field that each sets."""
    return {_key(field): field for field in cls.__struct_fields__ if field not in _OURS}


def _key(field: str) -> str:
    for suffix in _UNITS:
        if field.endswith(suffix):
            return field.removesuffix(suffix)
    return field


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" when a known word is close, else ""."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _elsewhere(key: str) -> str:
    """Say where a key would be known: forgetting the table's header is a common slip."""
    known: dict[str, type[msgspec.Struct]] = {"": JobSpec, **TABLES}
    for table, cls in known.items():
        if key in keys_of(cls):
            return f"; it belongs {'under [' + table + ']' if table else 'above the first [table]'}"
    return ": docs/job-file.md lists them all"


def _spoken(error: msgspec.ValidationError) -> str:
    """Return msgspec's complaint with our keys in place of its paths."""
    text = str(error)
    said, _, place = text.partition(" - at `$.")
    if not place:
        return said
    parts = [_key(part) for part in place.rstrip("`").split(".")]
    return f"{'.'.join(parts)}: {said[0].lower()}{said[1:]}"
