"""What a job leaves: its model and its witness, read from the parts that its servers wrote.

Fed by the summary of `job.ended` (where the parts are); feeds `rover export`, `rover witness` and report.py.
The witness is the judge of conservation: it is counted here from the servers' own tables, never taken from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.client.model_file import ModelFile
from rover_bus.client.witness import NAME as WITNESS
from rover_bus.client.witness import read_witness
from rover_bus.events.bus import Bus
from rover_bus.events.data_facts import DatasetRegistered
from rover_bus.events.errors import InputError
from rover_bus.events.facts import JobSubmitted
from rover_bus.events.job import Dataset
from rover_bus.events.looks import last_fact
from rover_bus.events.model_card import ModelCard, card_of
from rover_bus.events.subjects import job_fact
from rover_bus.ps.parts import read_header, read_parts
from rover_bus.ps.spec import Table
from rover_bus.ps.store import Exported


@dataclass(frozen=True, slots=True)
class WitnessCount:
    """Samples by how often they were applied: never, once, or more than once (`duplicated` counts the surplus)."""

    applied: int
    missing: int
    duplicated: int


def part_files(job: str, summary: Mapping[str, Any]) -> list[Path]:
    """Return the files that a job's servers wrote. Raises InputError when there are none, or they are not here."""
    paths = [Path(path) for path in summary.get("parts", ())]
    if not paths:
        raise InputError(
            f"job {job!r} left no model: its servers write it when training is over (`rover jobs`)"
        )
    absent = [path for path in paths if not path.is_file()]
    if absent:
        raise InputError(
            f"{absent[0]} is not here: it was removed, or lies on another host (`rover members JOB --all` says which)"
        )
    return paths


def load_witness(paths: Iterable[Path], dataset: Dataset) -> npt.NDArray[np.int32]:
    """Return how often each sample was applied: int32[epochs, records], by position in the order of its epoch."""
    return read_witness(read_parts(paths, only=WITNESS)[WITNESS], dataset)


def count_witness(witness: npt.NDArray[np.int32]) -> WitnessCount:
    """Count a witness table."""
    return WitnessCount(
        applied=int(np.count_nonzero(witness)),
        missing=int(np.count_nonzero(witness == 0)),
        duplicated=int(np.clip(witness.astype(np.int64) - 1, 0, None).sum()),
    )


def model_of_parts(paths: Iterable[Path], card: ModelCard) -> ModelFile:
    """Return the model that servers wrote. Raises InputError when parts are missing or do not belong together."""
    paths = list(paths)
    header = read_header(paths[0])
    return model_of(read_parts(paths), header.tables, card, header.seed)


async def read_card(bus: Bus, job: str) -> ModelCard:
    """Return what the facts of a job say of its model. Raises InputError for a job that was never submitted."""
    submitted = await last_fact(bus, job_fact(job, JobSubmitted.kind()), JobSubmitted)
    registered = await last_fact(bus, job_fact(job, DatasetRegistered.kind()), DatasetRegistered)
    if submitted is None:
        raise InputError(f"there is no job {job!r}: `rover jobs` lists them")
    dataset = registered.dataset if registered is not None else None
    return card_of(submitted.spec, submitted.uid, dataset)


def model_of(
    exported: Mapping[str, Exported], tables: Iterable[Table], card: ModelCard, seed: int
) -> ModelFile:
    """Return a model's tables as arrays by name and its card, the witness left out."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, table in exported.items():
        if name == WITNESS:
            continue
        arrays[name] = table.values
        if table.ids is not None:
            arrays[f"{name}.ids"] = table.ids
    listed = [msgspec.to_builtins(table) for table in tables if table.name != WITNESS]
    return ModelFile(arrays, msgspec.structs.replace(card, tables=listed, seed=seed))


def write_whole(out: Path, write: Any) -> None:
    """Write a file beside its place and rename it: all of it is there, or nothing. Raises InputError when it cannot be."""
    fresh = out.with_name(f".{out.name}.writing")
    try:
        with fresh.open("wb") as file:
            write(file)
        fresh.replace(out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        fresh.unlink(missing_ok=True)
