"""What a trained model needs beside its arrays to score a row: where it came from, its features, its tables' declarations.

Built by the master for a checkpoint's manifest, and by `rover export` for the model that a job left; read by client/scoring.py
from the model file. It is apart because three layers must agree on it. Its JSON form is a page in docs (docs/model-file.md).
"""

from __future__ import annotations

from typing import Any

import msgspec

from rover_bus.events.job import Dataset, Features, JobSpec

HASH = "splitmix64-words"  # client/data/ids.py: a value's bytes to an id; it has no seed


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """`seed`: of the first values (P4). `tables`: declarations, as ps/spec.py encodes them. `features`: None without a scaling."""

    format: int = 1
    job: str
    uid: str
    checkpoint: str = ""  # "" is the model at the job's end
    program: list[str] = []
    scoring: str = ""
    settings: dict[str, Any] = {}  # the job file's [model]
    data_schema: dict[str, Any] = {}  # the job file's [data.schema]
    hash: str = HASH
    features: Features | None = None
    seed: int = 0
    tables: list[dict[str, Any]] = []


def card_of(spec: JobSpec, uid: str, dataset: Dataset | None, checkpoint: str = "") -> ModelCard:
    """Return the card of a job's model. The export adds the arrays' seed and tables."""
    return ModelCard(
        job=spec.name,
        uid=uid,
        checkpoint=checkpoint,
        program=spec.program,
        scoring=spec.scoring,
        settings=spec.model,
        data_schema=spec.data.schema,
        features=dataset.features if dataset is not None else None,
    )
