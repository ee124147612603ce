"""Click logs on disk, read by position: the order of an epoch, the schema of a file, and vectorised readers.

Fed by the leases of `client` (batch numbers of an epoch), feeds training loops with arrays. It is apart from the rest of
`client` because it knows neither the bus nor leases: a file, a schema and a batch number are enough. All of it is
synchronous; a reader thread is its caller's business.

    order.py      position -> row: the two-level permutation of protocol P1
    schema.py     which columns a file has, and what they mean
    index.py      where every block of 512 rows starts in the file
    fields.py     bytes -> the start and end of every field of every row
    numbers.py    fields -> float64, without a Python loop
    ids.py        fields -> 64-bit ids
    scaling.py    raw dense values -> what a model can digest
    columns.py    the arrays that a training loop sees
    parsing.py    all of these, from the bytes of whole lines
    click_log.py  a file, behind `batch(epoch, number, dataset)`
    growing.py    where the rows of a file start that its writer still appends to
    partitions.py a directory of such files, behind `high_water()` and `read(partition, first, end)`
"""

from __future__ import annotations

import os
from pathlib import Path

from rover_bus.client.data.click_log import ClickLog
from rover_bus.client.data.columns import Bag, Batch, Columns
from rover_bus.client.data.order import Order
from rover_bus.client.data.partitions import PartitionLog
from rover_bus.client.data.scaling import Scaling
from rover_bus.client.data.schema import Schema

__all__ = ["Bag", "Batch", "ClickLog", "Columns", "Order", "PartitionLog", "Scaling", "Schema", "open_log"]


def open_log(path: str | Path, schema: Schema, *, cache: Path | None = None) -> ClickLog | PartitionLog:
    """Open what `train` of a job file names: a click log, or a directory of partitions that may still grow. Raises InputError.

    `cache`: a directory for the index of a click log (what grows is indexed as it grows).
    """
    return PartitionLog(path, schema) if os.path.isdir(path) else ClickLog(path, schema, cache=cache)
