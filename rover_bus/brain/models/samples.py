"""Configurations and observations with units, held as columns.

Fed by profiles (live) and CSV rows (`rover fit`); feeds every model. Apart, because the models are vectorised over
configurations and need one agreed layout, and because here is the one place where bad numbers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rover_bus.events.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Configuration(msgspec.Struct, frozen=True, order=True, gc=False):
    """One allocation of a job: how many workers and parameter servers, and how many cores each."""

    workers: int
    ps: int
    worker_cores: float = 1.0
    ps_cores: float = 1.0
    batch_size: float = 1.0  # samples: a worker's when asynchronous, the whole job's when synchronous


@dataclass(frozen=True, eq=False)
class Configurations:
    """Many configurations as float columns of one length n, all entries finite and above 0."""

    workers: FloatArray
    ps: FloatArray
    worker_cores: FloatArray
    ps_cores: FloatArray
    batch_size: FloatArray

    @classmethod
    def of(
        cls,
        workers: ArrayLike,
        ps: ArrayLike,
        worker_cores: ArrayLike = 1.0,
        ps_cores: ArrayLike = 1.0,
        batch_size: ArrayLike = 1.0,
    ) -> Configurations:
        """Broadcast the columns to one length. Raises InputError on a value that is not a finite number above 0."""
        raw = [
            np.asarray(column, dtype=np.float64)
            for column in (workers, ps, worker_cores, ps_cores, batch_size)
        ]
        columns = [np.array(column).ravel() for column in np.broadcast_arrays(*raw)]
        for field, column in zip(fields(cls), columns, strict=True):
            if not np.all(np.isfinite(column) & (column > 0)):
                raise InputError(
                    f"{field.name} must hold finite numbers above 0; correct or leave out those rows"
                )
        return cls(*columns)

    @classmethod
    def from_list(cls, configurations: list[Configuration]) -> Configurations:
        """Columns of a list of configurations. Those of jobs without servers have 0 of them: only `models.rings` can read these."""
        rows = np.array([msgspec.structs.astuple(c) for c in configurations], dtype=np.float64).reshape(-1, 5)
        if len(rows) and not rows[:, 1].any():
            whole = cls.of(rows[:, 0], 1.0, *rows[:, 2:].T)
            return cls(whole.workers, rows[:, 1].copy(), whole.worker_cores, whole.ps_cores, whole.batch_size)
        return cls.of(*rows.T)

    def columns(self) -> tuple[FloatArray, ...]:
        """Return the five columns in the order of the fields."""
        return (self.workers, self.ps, self.worker_cores, self.ps_cores, self.batch_size)

    def take(self, index: ArrayLike) -> Configurations:
        """Return the rows named by an index array or a mask."""
        chosen = _index(index)
        return Configurations(*(column[chosen] for column in self.columns()))

    def logs(self) -> FloatArray:
        """Return log coordinates, shape (n, 5): distances there are ratios of resources. No servers lie where one does."""
        return self._logs

    @cached_property
    def _logs(self) -> FloatArray:
        logs = np.empty((5, len(self))).T  # columns as they are read: each by itself
        for index, column in enumerate(self.columns()):
            logs[:, index] = np.log(np.maximum(column, 1.0) if index == 1 else column)
        return logs

    def distinct(self) -> int:
        """Count the different configurations."""
        return len(np.unique(np.stack(self.columns(), axis=1), axis=0))

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Configuration]:
        for w, p, worker_cores, ps_cores, batch in zip(*self.columns(), strict=True):
            yield Configuration(int(w), int(p), float(worker_cores), float(ps_cores), float(batch))


@dataclass(frozen=True, eq=False)
class Observations:
    """Measured throughput at configurations: samples a second of the whole job, finite and above 0, shape (n,)."""

    configurations: Configurations
    throughput: FloatArray

    @classmethod
    def of(cls, configurations: Configurations, throughput: ArrayLike) -> Observations:
        """Check and hold. Raises InputError on a throughput that is not a finite number above 0."""
        measured = np.asarray(throughput, dtype=np.float64).ravel()
        if len(measured) != len(configurations):
            raise InputError(f"{len(measured)} throughputs for {len(configurations)} configurations")
        if not np.all(np.isfinite(measured) & (measured > 0)):
            raise InputError("throughput must be finite numbers above 0; leave failed measurements out")
        return cls(configurations, measured)

    def take(self, index: ArrayLike) -> Observations:
        """Return the rows named by an index array or a mask."""
        chosen = _index(index)
        return Observations(self.configurations.take(chosen), self.throughput[chosen])

    def __len__(self) -> int:
        return len(self.throughput)


def _index(index: ArrayLike) -> NDArray[np.bool_] | IntArray:
    chosen = np.asarray(index)
    return chosen if chosen.dtype == np.bool_ else chosen.astype(np.int64)


class NotEnough(msgspec.Struct, frozen=True):
    """The honest answer of a model that cannot know yet: why, and how many more samples would do."""

    reason: str
    missing: int = 1
