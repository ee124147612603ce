"""Batches parsed ahead: one thread between the leases and the training loop.

Fed with assigned batches by an `Assignments` (connected or standalone) and with arrays by the program's source; feeds `job`. One
thread, because a click log parses a window of many batches at once; how far ahead is `ahead`'s to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rover_bus.client.ahead import Ahead
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.spans import HighWater, Records
from rover_bus.events.errors import InputError, TemporaryError
from rover_bus.events.job import Dataset

LAG_S = 10.0  # a shared file system may show rows that another host has seen as much later
LAG_PAUSE_S = 0.1


class Source(Protocol):
    """What can be trained on: data that knows its registration, and reads any batch of it. `ClickLog` is one."""

    def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
        """Return what is registered (protocol P1)."""

    def batch(self, epoch: int, number: int, dataset: Dataset) -> Any:
        """Return batch `number` of an epoch. May offer `positions`, `skipped`, `values_missing` and a length."""


@runtime_checkable
class Stream(Protocol):
    """What can be trained on while it grows: partitions without a total. `PartitionLog` is one. Used by one thread at a time."""

    def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
        """Return what is registered: the partitions by name."""

    def adopt(self, registered: Dataset) -> None:
        """Read the partitions that the job has registered, as the first worker scaled them."""

    def high_water(self) -> HighWater:
        """Look, and return what is readable now."""

    def batch_of(self, epoch: int, number: int, dataset: Dataset, records: Records) -> Any:
        """Return batch `number`, which is these records. What it offers is as for a Source; a TemporaryError: not readable yet."""


class Assignments(Protocol):
    """Where batches to train come from, and where it is said that they are done. Thread-safe."""

    def take(self, cancelled: Callable[[], bool]) -> Assigned | None:
        """Return the next batch, waiting for one; None when there will be none, or when `cancelled`."""

    def holds(self, assigned: Assigned, /) -> bool:
        """Whether work on a batch is still wanted."""

    def finish(self, assigned: Assigned, work: Work, servers: tuple[int, ...] | None, /) -> None:
        """Say that a batch is done, by which server incarnations."""

    def wake(self) -> None:
        """Let a `take` that waits look again."""


class Read(NamedTuple):
    """A batch as the program will see it, or the error that came instead; `assigned` is None where no batch was to blame."""

    assigned: Assigned | None
    batch: Any
    error: BaseException | None = None


END = Read(None, None)


class Reader:
    """Reads ahead from its start until training is over, or `stop`."""

    def __init__(
        self,
        assignments: Assignments,
        source: Source | Stream,
        dataset: Dataset,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """`pause` stands for the latency of a storage, once a batch."""
        self._assignments, self._source, self._dataset = assignments, source, dataset
        self._pause = pause
        self._stopped = False
        self.ended = False
        self.idle_s = 0.0  # how long no lease was there
        self._ready: Ahead[Read] = Ahead()
        self._thread = threading.Thread(target=self._read, name="rover-reader", daemon=True)
        self._thread.start()

    def poll(self) -> Read | None:
        """Return a batch that is ready, None when none is."""
        return self._note(self._ready.poll())

    def get(self) -> Read | None:
        """Return the next batch, waiting for it; None when there will be none (`ended`)."""
        return None if self.ended else self._note(self._ready.get())

    def _note(self, item: Read | None) -> Read | None:
        if item is END:
            self.ended = True
            return None
        return item

    def stop(self) -> None:
        """End the thread; what was read is dropped."""
        self._stopped = True
        self._ready.drop()
        self._assignments.wake()
        self._thread.join()

    def _take(self) -> Assigned | None:
        began = time.monotonic()
        assigned = self._assignments.take(lambda: self._stopped)
        self.idle_s += time.monotonic() - began
        return assigned

    def _read(self) -> None:
        try:
            while (assigned := self._take()) is not None:
                if self._assignments.holds(assigned):
                    self._ready.put(self._load(assigned))
        except Exception as error:  # noqa: BLE001 - it is raised again, in the training loop
            self._ready.put(Read(None, None, error))
        if not self._stopped:
            self._ready.put(END)

    def _load(self, assigned: Assigned) -> Read:
        if self._pause is not None:
            self._pause()
        try:
            return Read(assigned, self._batch(assigned))
        except Exception as error:  # noqa: BLE001 - it is raised again, in the training loop
            return Read(assigned, None, error)

    def _batch(self, assigned: Assigned) -> Any:
        if not isinstance(self._source, Stream):
            return self._source.batch(assigned.epoch, assigned.number, self._dataset)
        return self._batch_of(self._source, assigned)

    def _batch_of(self, stream: Stream, assigned: Assigned) -> Any:
        """Read a batch of a stream; rows that only another host sees as yet are waited for."""
        assert assigned.records is not None
        began = time.monotonic()
        while True:
            try:
                return stream.batch_of(assigned.epoch, assigned.number, self._dataset, assigned.records)
            except TemporaryError as error:
                if self._stopped or time.monotonic() - began >= LAG_S:
                    raise InputError(
                        f"{error}, {LAG_S:g} s ago: do all hosts see the same directory?"
                    ) from None
                time.sleep(min(error.delay_s, LAG_PAUSE_S))
