"""A program whose model is integers: what it leaves depends only on which samples were applied, in no matter what order.

Run by rover as the workers of a job; `expected` says what one application of every sample of every epoch comes to.
"""

from __future__ import annotations

import sys

import numpy as np

import rover_bus.client as rover
from rover_bus.ps.spec import Add, Growing, Hashed
from rover_bus.ps.store import BatchKey

IDS, ROWS = 997, 513


def tables():
    return (
        Growing(name="grown", width=4, optimizer=Add(), dtype="int64"),
        Hashed(name="fixed", rows=ROWS, width=2, optimizer=Add(), dtype="int32"),
    )


def additions(epoch, positions):
    """What some samples add: ids (repeats are summed) and values, a table."""
    ids = positions * 2654435761 % IDS
    grown = np.stack([np.ones_like(ids), positions, positions * (epoch + 1), positions**2 % 1009], axis=1)
    rows = positions * 31 % ROWS
    fixed = np.stack([np.ones_like(rows), positions % 7 + epoch], axis=1).astype(np.int32)
    return {"grown": _summed(ids, grown), "fixed": _summed(rows, fixed)}


def _summed(ids, values):
    distinct, inverse = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(distinct), values.shape[1]), values.dtype)
    np.add.at(sums, inverse, values)
    return distinct, sums


def expected(records, epochs):
    """What each table holds in the end: (ids, values)."""
    grown, fixed = np.zeros((IDS, 4), np.int64), np.zeros((ROWS, 2), np.int32)
    for epoch in range(epochs):
        for name, (ids, values) in additions(epoch, np.arange(records)).items():
            {"grown": grown, "fixed": fixed}[name][ids] += values
    return {"grown": grown, "fixed": fixed}


def main() -> None:
    with rover.join() as job:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        job.parameters.declare(*tables())
        for batch in job.batches(log):
            key = BatchKey(batch.epoch, batch.number)
            job.parameters.push(key, {}, add=additions(batch.epoch, np.asarray(batch.positions)))


if __name__ == "__main__":
    sys.exit(main())
