"""The worker of bench/moves.py and bench/hot_server.py: pulls and pushes as fast as the servers answer, and writes down every step.

Run by a job, in its directory. `[model]` says what: tables, rows, width, ids a batch, skew. Steps go to steps-<pid>.bin: pairs of
float64 (end on the monotonic clock of the machine, seconds taken). While a file `digest` is there, it trains nothing and writes the
digest of every table to what that file names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import rover_bus.client as rover
from rover_bus.client.parameters import TrainingParameters
from rover_bus.events.job import Dataset
from rover_bus.ps.spec import Adagrad, Growing, Hashed, Normal, Table
from rover_bus.ps.store import BatchKey


class Numbers:
    """A source of batches without data: only their numbers matter."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
        return Dataset(records=self._batches * batch_size, batch_size=batch_size, epochs=epochs, seed=seed)

    def batch(self, epoch: int, number: int, dataset: Dataset) -> Any:
        return Number(epoch, number, dataset.batch_size)


class Number:
    """A batch."""

    def __init__(self, epoch: int, number: int, samples: int) -> None:
        self.epoch, self.number, self._samples = epoch, number, samples

    def __len__(self) -> int:
        return self._samples


def tables(model: dict[str, Any]) -> list[Table]:
    """Return what to declare: `kind`, `tables`, `rows` in all, `width`."""
    names = [f"t{at}" for at in range(model["tables"])]
    common: dict[str, Any] = {"width": model["width"], "optimizer": Adagrad(rate=0.05), "init": Normal(0.01)}
    if model.get("kind") == "growing":
        return [Growing(name=name, **common) for name in names]
    return [Hashed(name=name, rows=model["rows"] // len(names), **common) for name in names]


def draws(model: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield ids by table, Zipf(1.05) or uniform, for ever."""
    rng = np.random.default_rng(os.getpid())
    rows = model["rows"] // model["tables"]
    chances = np.arange(1, rows + 1) ** -1.05 if model.get("skew") == "zipf" else np.ones(rows)
    cumulative, spread = np.cumsum(chances / chances.sum()), np.random.default_rng(1).permutation(rows)
    shape = (model["batch"],)
    ready = [
        {
            f"t{t}": spread[np.searchsorted(cumulative, rng.random(shape)).clip(0, rows - 1)]
            for t in range(model["tables"])
        }
        for _ in range(64)
    ]
    while True:
        yield from ready


def fill(parameters: TrainingParameters, model: dict[str, Any]) -> None:
    """Push every id once: a growing table is moved at its full size."""
    rows = model["rows"] // model["tables"]
    for number, ids in enumerate(np.array_split(np.arange(rows), max(1, rows * model["tables"] // 200_000))):
        pulled = parameters.pull({f"t{t}": ids for t in range(model["tables"])})
        parameters.push(BatchKey(10**6, number), {name: np.full_like(v, 1e-3) for name, v in pulled.items()})
    parameters.flush()


def write_digest(parameters: TrainingParameters, wanted: Path) -> None:
    """Write one digest of all tables, row by row in the order of their ids."""
    parameters.flush()
    digest = xxhash.xxh3_128()
    for name, whole in sorted(parameters.export().items()):
        digest.update(name.encode())
        digest.update(whole.values.tobytes())
    wanted.with_suffix(".writing").write_text(digest.hexdigest())
    wanted.with_suffix(".writing").rename(wanted)


def main() -> None:
    with rover.join() as job:
        model = job.model
        parameters = job.parameters
        parameters.declare(*tables(model))
        ids = draws(model)
        rng = np.random.default_rng(3)
        if model.get("kind") == "growing" and job.elected("fill"):
            fill(parameters, model)
            job.result("fill")
        gradients = {
            f"t{t}": (rng.standard_normal((model["batch"], model["width"])) * 1e-3).astype(np.float32)
            for t in range(model["tables"])
        }
        asked = Path("digest")
        with Path(f"steps-{os.getpid()}.bin").open("ab", buffering=0) as steps:
            for batch in job.batches(Numbers(model.get("steps", 10**7))):
                while asked.exists():
                    wanted = Path(asked.read_text().strip())
                    if not wanted.exists():
                        write_digest(parameters, wanted)
                    time.sleep(0.05)
                began = time.monotonic()
                pulled = parameters.pull(next(ids))
                if model.get("compute_s"):
                    time.sleep(model["compute_s"])
                parameters.push(BatchKey(batch.epoch, batch.number), gradients, pulled=pulled)
                ended = time.monotonic()
                steps.write(np.array([ended, ended - began]).tobytes())


if __name__ == "__main__":
    main()
