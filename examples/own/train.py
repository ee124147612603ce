"""A program of one's own: logistic regression on a click log, elastic by the calls of `rover_bus.client` and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

import rover_bus.client as rover
from rover_bus.client.data import Columns
from rover_bus.client.scoring import Model

WEIGHTS = rover.Growing(name="weights", width=1, optimizer=rover.Adagrad(rate=0.1))
BIAS = rover.Dense(name="bias", shape=(1,), optimizer=rover.Adagrad(rate=0.1))


def probabilities(rows: Any, bias: Any) -> Any:
    """rows: float32[m, fields, 1], as pulled."""
    return 1 / (1 + np.exp(-(rows.sum(axis=(1, 2)) + bias[0])))


def predict(model: Model, columns: Columns) -> Any:
    """What `rover predict` calls: `scoring = "train:predict"` in job.toml."""
    return probabilities(model.rows("weights", columns.categorical), model.array("bias"))


def main() -> None:
    with rover.join() as job:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        job.parameters.declare(WEIGHTS, BIAS)
        for batch in job.batches(log):
            pulled = job.parameters.pull({"weights": batch.categorical})
            error = probabilities(pulled["weights"], pulled["bias"]) - batch.labels
            rows = np.broadcast_to(error[:, None, None], pulled["weights"].shape)
            gradients = {"weights": rows, "bias": error.sum(keepdims=True)}
            job.parameters.push(rover.BatchKey(batch.epoch, batch.number), gradients)
            job.report(loss=float(np.mean(np.abs(error))))


if __name__ == "__main__":
    main()
