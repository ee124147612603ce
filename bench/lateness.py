"""What lateness costs: AUC and log loss over eight seeds in one process, with gradients 0, 1 and 2 batches late.

    OPENBLAS_NUM_THREADS=1 python -m bench.lateness TRAIN EVAL [--job JOB.toml] [--seeds 8] [--late 0 1 2] [--json]

Lateness L is simulated in one process as L + 1 asynchronous workers with one batch in flight each: a worker drawn at random
pushes the batch it has computed, then pulls the parameters for its next one. The evaluation file is read only after training.
Seeds change the first values, the order of the data and the interleaving of the workers. Nothing is tuned here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from rover_bus.client.data import Batch, ClickLog, Schema
from rover_bus.client.job_file import read_job
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.store import BatchKey, Pulled

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "dlrm"))
from dlrm import Dlrm, Settings
from scoring import Evaluation, evaluate

MOVIELENS = Path(__file__).parents[1] / "examples" / "jobs" / "movielens.toml"


@dataclass(frozen=True)
class InFlight:
    """A batch that one worker has computed and not yet pushed."""

    key: BatchKey
    pulled: Pulled
    gradients: dict[str, Any]


def visit(log: ClickLog, dataset: Dataset) -> Iterator[Batch]:
    """Yield the batches of all epochs in their order."""
    for epoch in range(dataset.epochs):
        for number in range(dataset.batches):
            yield log.batch(epoch, number, dataset)


def train(spec: JobSpec, train_log: ClickLog, evaluation_log: ClickLog, seed: int, late: int) -> Evaluation:
    """Train one job in this process, every gradient about `late` batches old, and evaluate it."""
    model = Dlrm(train_log.schema, Settings.parse(spec.model))
    dataset = train_log.dataset(spec.data.batch_size, spec.data.epochs, seed)
    parameters = LocalParameters(seed)
    parameters.declare(*model.tables())
    rng = np.random.default_rng(seed)
    flying: list[InFlight] = []

    def push(batch: InFlight) -> None:
        done = (batch.key.epoch + batch.key.number / dataset.batches) / dataset.epochs
        parameters.push(batch.key, batch.gradients, rate_scale=model.rate_scale(done), pulled=batch.pulled)

    for batch in visit(train_log, dataset):
        pulled = parameters.pull(model.ids(batch))
        _, gradients = model.gradients(batch, pulled)
        flying.append(InFlight(BatchKey(batch.epoch, batch.number), pulled, gradients))
        if len(flying) > late:
            push(flying.pop(int(rng.integers(len(flying)))))
    for last in flying:
        push(last)
    return evaluate(model, parameters, evaluation_log)


def measure(
    spec: JobSpec, train_log: ClickLog, evaluation_log: ClickLog, seeds: range, late: int
) -> dict[str, Any]:
    """Train once a seed with gradients so many batches late; return means, and the AUC of each."""
    started = time.perf_counter()
    results = [train(spec, train_log, evaluation_log, seed, late) for seed in seeds]
    aucs = [result.auc for result in results]
    return {
        "auc": statistics.mean(aucs),
        "auc_deviation": statistics.stdev(aucs) if len(aucs) > 1 else 0.0,
        "logloss": statistics.mean(result.logloss for result in results),
        "aucs": aucs,
        "seconds_a_run": (time.perf_counter() - started) / len(aucs),
    }


def describe(late: int, row: dict[str, Any]) -> str:
    """Return a row for people."""
    each = " ".join(f"{value:.4f}" for value in row["aucs"])
    return (
        f"{late} late: AUC {row['auc']:.4f} ± {row['auc_deviation']:.4f}, log loss {row['logloss']:.4f}, "
        f"{row['seconds_a_run']:.1f} s a run ({each})"
    )


def main() -> None:
    """Print a row a lateness, and with --json one JSON line after them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", help="click log to train on")
    parser.add_argument("evaluate", help="click log to evaluate on")
    parser.add_argument("--job", default=str(MOVIELENS), help="schema and settings")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--late", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other [model] settings")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    spec = read_job(options.job)
    changes = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in options.set)}
    epochs = options.epochs or spec.data.epochs
    spec = replace(spec, model={**spec.model, **changes}, data=replace(spec.data, epochs=epochs))
    schema = Schema.parse(spec.data.schema)
    train_log = ClickLog(options.train, schema)
    evaluation_log = ClickLog(options.evaluate, schema, scaling=train_log.scaling)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found: dict[str, Any] = {"job": spec.name, "seeds": list(seeds), "late": {}}
    for late in options.late:
        row = found["late"][str(late)] = measure(spec, train_log, evaluation_log, seeds, late)
        print(describe(late, row), flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
