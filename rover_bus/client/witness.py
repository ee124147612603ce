"""The witness: a table in which every sample adds 1 at its own position (protocol, "How it is proved").

Pushed with each batch by `parameters`, read back by `rover witness` and by tests. Integers, so order does not matter: after E
epochs over N records a position that is not 1 was lost or applied twice, whatever the ledger says. Positions are packed into
rows of 16, so that a batch touches few rows; neighbouring batches may share one, which addition does not mind.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rover_bus.events.job import Dataset
from rover_bus.ps.spec import Add, Hashed
from rover_bus.ps.store import Exported

NAME = "witness"
WIDTH = 16
MAX_ROWS = 2**31 - 1

Ints = npt.NDArray[np.int64]


def witness_table(dataset: Dataset) -> Hashed | None:
    """Return the table for a data set; None where positions have no end (streams, endless epochs) or are too many."""
    rows = -(-dataset.samples_total // WIDTH)
    if not 0 < rows <= MAX_ROWS:
        return None
    return Hashed(name=NAME, rows=rows, width=WIDTH, optimizer=Add(), dtype="int32")


def witness_of(dataset: Dataset, epoch: int, positions: Ints) -> tuple[Ints, npt.NDArray[np.int32]]:
    """Return what a batch adds: row ids int64[n], values int32[n, 16]. `positions` int64[m] of the samples used, ascending."""
    if not len(positions):
        return np.empty(0, np.int64), np.empty((0, WIDTH), np.int32)
    places = positions + epoch * dataset.records
    first = int(places[0]) // WIDTH
    rows = int(places[-1]) // WIDTH + 1 - first
    values = np.zeros(rows * WIDTH, np.int32)
    values[places - first * WIDTH] = 1
    return np.arange(first, first + rows), values.reshape(rows, WIDTH)


def read_witness(exported: Exported, dataset: Dataset) -> npt.NDArray[np.int32]:
    """Return the exported table as counts by (epoch, position): int32[epochs, records]."""
    counts = np.zeros((-(-dataset.samples_total // WIDTH), WIDTH), np.int32)
    counts[slice(None) if exported.ids is None else exported.ids] = exported.values
    return counts.reshape(-1)[: dataset.samples_total].reshape(dataset.epochs, dataset.records)


def witness_rows(dataset: Dataset) -> Ints:
    """Return every row id of the table: what to read for the whole of it."""
    return np.arange(-(-dataset.samples_total // WIDTH))
