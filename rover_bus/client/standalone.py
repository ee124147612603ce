"""The same loop without a bus: one process, its own parameters, every batch in order (`rover run --plain`, notebooks, tests).

Stands where `connected` stands for a worker of a job, and offers the job the same few calls. Counts what a master would count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rover_bus.client.group import ALONE, TrainingGroup
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.reader import Stream
from rover_bus.client.spans import flow
from rover_bus.client.witness import NAME, witness_rows, witness_table
from rover_bus.events.errors import InputError
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.events.requests import FailureRequest
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.store import Parameters

LOOK_EVERY_S = 0.1  # between two looks at a stream that has nothing new
END = Assigned(-1, -1, -1, -1)


class Standalone:
    """A job of one. `spec`: what its job file says; `summary_file`: where the figures of the run are written, as JSON."""

    def __init__(self, spec: JobSpec | None = None, summary_file: str = "") -> None:
        self.spec = spec
        self.results: dict[str, Any] = {}
        self.draining = False
        self.committed = 0
        self.dead_lettered = 0
        self.values_missing = 0
        self._summary_file = summary_file
        self.known: Dataset | None = None  # no other process registers anything
        self._dataset: Dataset | None = None
        self._batches: Iterator[Assigned | None] = iter(())
        self._handed_out = 0  # samples of a stream: its total, once it has ended
        self._ended = False  # no batch is left
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._parameters: LocalParameters | None = None

    @property
    def retiring(self) -> bool:
        return False  # no other process waits for a step of this one

    @property
    def resting(self) -> bool:
        return self.draining

    def parameters(self) -> Parameters:
        seed = self.spec.data.seed if self.spec else 0
        self._parameters = self._parameters or LocalParameters(seed)
        return self._parameters

    def register(self, dataset: Dataset, _file: str, stream: Stream | None = None) -> None:
        self._dataset = dataset
        self._batches = grid(dataset) if stream is None else number_off(stream, dataset)

    def take(self, cancelled: Callable[[], bool]) -> Assigned | None:
        """Return the next batch; of a stream the next that is readable, waiting until all its partitions are sealed."""
        while not (self.draining or cancelled()):
            with self._lock:
                assigned = next(self._batches, END)
                if assigned is END:
                    self._ended = True
                    return None
                if assigned is not None:
                    self._handed_out += assigned.records.samples if assigned.records else 0
                    return assigned
            self._woken.wait(LOOK_EVERY_S)
        return None

    def holds(self, _assigned: Assigned) -> bool:
        return True

    def group_of(self, _assigned: Assigned) -> TrainingGroup:
        return ALONE

    def finish(self, assigned: Assigned, work: Work, _servers: tuple[int, ...] | None) -> None:
        assert self._dataset is not None
        records = assigned.records
        samples = records.samples if records else self._dataset.samples(assigned.number, assigned.number + 1)
        self.committed += samples - len(work.skipped)
        self.dead_lettered += len(work.skipped)
        self.values_missing += work.values_missing

    def wake(self) -> None:
        self._woken.set()

    def drain(self) -> None:
        self.draining = True
        self._woken.set()

    def elect(self, task: str) -> bool:
        return not self.draining and task not in self.results

    def conclude(self, task: str, values: dict[str, Any]) -> None:
        self.results[task] = values

    def leave(self, _reason: str) -> None:
        """Write the summary where one was asked for."""
        if not self._summary_file:
            return
        streaming = self._dataset is not None and self._dataset.streaming
        total = self._handed_out if streaming else self._dataset.samples_total if self._dataset else 0
        done = self.committed + self.dead_lettered == total and (self._ended or not streaming)
        summary = {
            "state": "completed" if done else "stopped",
            "epochs": self._dataset.epochs if self._dataset else 0,
            "samples_total": total,
            "samples_committed": self.committed,
            "samples_dead_lettered": self.dead_lettered,
            "samples_duplicated": self._duplicated(),
            "values_missing": self.values_missing,
            "result": {key: value for values in self.results.values() for key, value in values.items()},
        }
        Path(self._summary_file).write_bytes(msgspec.json.encode(summary))

    def _duplicated(self) -> int | None:
        """Return how often a sample was applied once more than it should have been, by the witness; None without one."""
        if (
            self._dataset is None
            or self._parameters is None
            or self.spec is None
            or not self.spec.data.witness
            or not witness_table(self._dataset)
        ):
            return None
        counts = self._parameters.read(NAME, witness_rows(self._dataset))
        return int(np.maximum(counts - 1, 0).sum())

    def fail(self, describe: Callable[[Any], FailureRequest]) -> None:
        """No report is needed: the exception itself goes on."""

    def reason_to_stop(self) -> None:
        """None: there is no master to send us away."""

    def publish(self, make: Callable[[str, Any], Any]) -> None:
        """Nothing listens."""

    def close(self) -> None:
        """Nothing to release."""


def grid(dataset: Dataset) -> Iterator[Assigned]:
    """Yield every batch of every epoch (protocol P1); endlessly when the epochs are."""
    epoch = 0
    while not dataset.epochs or epoch < dataset.epochs:
        for number in range(dataset.batches):
            yield Assigned(0, 0, epoch, number)
        epoch += 1


def number_off(stream: Stream, dataset: Dataset) -> Iterator[Assigned | None]:
    """Yield every batch of a stream as it becomes readable, None while nothing is; ends with its last partition."""
    number = 0
    for records in flow(stream.high_water, dataset.batch_size):
        yield Assigned(0, 0, 0, number, records) if records else None
        number += records is not None


def read_spec(path: Path) -> JobSpec:
    """Read a JobSpec from a JSON file. Raises InputError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JobSpec)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{path} is no job specification: {error}") from None
