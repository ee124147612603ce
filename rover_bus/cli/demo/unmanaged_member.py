"""One process of an unmanaged run (unmanaged.py): a parameter server, or a worker with a share of the data that is fixed.

    python -m rover_bus.cli.demo.unmanaged_member ps DIRECTORY INDEX
    python -m rover_bus.cli.demo.unmanaged_member worker DIRECTORY INDEX OF INCARNATION      (INDEX = OF: only evaluates)

The worker runs the job's own program, the same file as under the control plane; only what `rover_bus.client.join` returns differs.
Ends when its standard input does. Apart from unmanaged.py, which starts and kills it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy.typing as npt

import rover_bus.client
from rover_bus.client.job import Job
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.reader import Stream
from rover_bus.client.standalone import Standalone, read_spec
from rover_bus.events.job import Dataset
from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.events.starts import EMPTY
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.core import ServerCore
from rover_bus.ps.server import Server
from rover_bus.ps.store import Acknowledged, BatchKey, Parameters, PushOptions

ROUTING, SECRET, SPEC = "routing.json", "secret", "spec.json"
EPOCHS_AN_INCARNATION = 1_000_000  # more than any job has


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    role, directory, *numbers = sys.argv[1:]
    if role == "ps":
        serve(Path(directory), int(numbers[0]))
    else:
        work(Path(directory), *(int(number) for number in numbers))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def serve(directory: Path, index: int) -> None:
    """Say where this server listens, wait for the routing table, serve until the end."""
    core = ServerCore(index, 1)
    server = Server(core, (directory / SECRET).read_bytes())
    write_whole(
        directory / f"ps-{index}.json", msgspec.json.encode(ServerAddress(index, 1, server.addresses))
    )
    seed = msgspec.json.decode((directory / SPEC).read_bytes())["data"]["seed"]
    core.admit(timeline=0, generation=0, start=EMPTY, seed=seed)
    core.route(read_routing(directory))
    server.serve()


def work(directory: Path, index: int, of: int, incarnation: int) -> None:
    """Run the job's program on one share, as incarnation `incarnation`; `index == of` has no share and evaluates."""
    share = FixedShare(directory, index, of, incarnation)
    join: Callable[..., Job] = lambda **_: Job(share)  # noqa: E731 - it stands where the library's function stood
    rover_bus.client.join = join
    assert share.spec is not None
    program = share.spec.program[1]
    sys.argv, sys.path[0] = [program], str(Path(program).parent)
    os.chdir(share.spec.directory or ".")
    runpy.run_path(program, run_name="__main__")


class Unfenced(RemoteParameters):
    """Parameters whose servers cannot know a repeated batch from a new one: each incarnation pushes under epochs of its own."""

    def __init__(self, routing: RoutingTable, secret: bytes, incarnation: int) -> None:
        super().__init__(routing, secret)
        self._shift = incarnation * EPOCHS_AN_INCARNATION

    def push(
        self, batch: BatchKey, gradients: Mapping[str, npt.NDArray[Any]], **options: Unpack[PushOptions]
    ) -> None:
        own = BatchKey(batch.epoch + self._shift, batch.number)
        super().push(own, gradients, **options)

    def acknowledged(self) -> list[Acknowledged]:
        return [
            ack._replace(batch=BatchKey(ack.batch.epoch - self._shift, ack.batch.number))
            for ack in super().acknowledged()
        ]


class FixedShare(Standalone):
    """A worker's session without a master: batches [i/n, (i+1)/n) of every epoch, from the first one on in every incarnation."""

    def __init__(self, directory: Path, index: int, of: int, incarnation: int) -> None:
        super().__init__(read_spec(directory / SPEC), str(directory / "summary.json") if index == of else "")
        self._directory, self._index, self._of, self._incarnation = directory, index, of, incarnation
        self._done = 0
        self._progress = os.open(
            directory / f"worker-{index}.progress", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )

    def parameters(self) -> Parameters:
        return Unfenced(
            read_routing(self._directory), (self._directory / SECRET).read_bytes(), self._incarnation
        )

    def register(self, dataset: Dataset, _file: str, _stream: Stream | None = None) -> None:
        self._dataset = dataset
        write_whole(self._directory / "dataset.json", msgspec.json.encode(dataset))
        self._batches = iter(share(dataset, self._index, self._of))

    def finish(self, assigned: Assigned, work: Work, servers: tuple[int, ...] | None) -> None:
        super().finish(assigned, work, servers)
        self._done += 1
        os.pwrite(self._progress, str(self._done).encode(), 0)

    def elect(self, task: str) -> bool:
        return self._index == self._of and super().elect(task)


def share(dataset: Dataset, index: int, of: int) -> Iterator[Assigned]:
    """Yield the batches of one of `of` equal, consecutive shares, epoch after epoch; none for the share after the last."""
    if index >= of:
        return iter(())
    first, end = (dataset.batches * at // of for at in (index, index + 1))
    epochs = (
        (Assigned(0, 0, epoch, number) for number in range(first, end)) for epoch in range(dataset.epochs)
    )
    return chain.from_iterable(epochs)


def read_routing(directory: Path) -> RoutingTable:
    """Wait for the routing table and return it."""
    path = directory / ROUTING
    while not path.exists():
        time.sleep(0.01)
    return msgspec.json.decode(path.read_bytes(), type=RoutingTable)


def write_whole(path: Path, body: bytes) -> None:
    """Write a file and rename it into place."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(body)
    fresh.rename(path)


if __name__ == "__main__":
    main()
