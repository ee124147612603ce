"""A program whose workers take each step together, with a barrier of their own over TCP, as a program with an all-reduce has one.

Run by rover as the workers of a synchronous job; what it adds to its tables is counting.py's. When a worker is gone, the sockets to
it end, and the barrier breaks for all: each raises BrokenStep, as NCCL or Gloo would raise an error of theirs.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import numpy as np
from counting import additions, tables

import rover_bus.client as rover
from rover_bus.ps.store import BatchKey

LOOK_S = 0.02
PATIENCE_S = 60.0  # for the others of a group to come: processes start meanwhile


class BrokenStep(Exception):
    """Another worker did not come to the barrier, and never will."""


class Barrier:
    """All of a group, or none: rank 0 hears of all others, then lets them go. The port of rank 0 is in a file of the group."""

    def __init__(self, folder: Path, group: rover.TrainingGroup) -> None:
        self.number, self.group = group.number, group
        self.links: list[socket.socket] = []
        place = folder / f"group-{group.number}.port"
        if group.rank == 0:
            self._await_all(place)
        else:
            self.links = [self._call(place)]

    def wait(self) -> None:
        """Wait until all have come. Raises BrokenStep."""
        try:
            if self.group.rank == 0:
                for link in self.links:
                    self._hear(link)
                for link in self.links:
                    link.sendall(b".")
            else:
                self.links[0].sendall(b".")
                self._hear(self.links[0])
        except OSError as error:
            raise BrokenStep(f"a worker of group {self.number} is gone") from error

    def close(self) -> None:
        for link in self.links:
            link.close()

    def _hear(self, link: socket.socket) -> None:
        if not link.recv(1):
            raise BrokenStep(f"a worker of group {self.number} is gone")

    def _await_all(self, place: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(PATIENCE_S)
            written = place.with_suffix(".new")
            written.write_text(str(server.getsockname()[1]))
            written.rename(place)
            try:
                self.links = [server.accept()[0] for _ in range(self.group.size - 1)]
            except TimeoutError as error:
                raise BrokenStep(f"group {self.number} is not complete") from error

    def _call(self, place: Path) -> socket.socket:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if place.exists():
                try:
                    return socket.create_connection(("127.0.0.1", int(place.read_text())))
                except OSError as error:
                    raise BrokenStep(f"rank 0 of group {self.number} is gone") from error
            time.sleep(LOOK_S)
        raise BrokenStep(f"rank 0 of group {self.number} never came")


def main() -> None:
    barrier = None
    with rover.join() as job:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        job.parameters.declare(*tables())
        for batch in job.batches(log):
            if barrier is None or barrier.number != job.group.number:
                if barrier is not None:
                    barrier.close()
                barrier = Barrier(Path.cwd(), job.group)
            added = additions(batch.epoch, np.asarray(batch.positions))
            with job.waiting():
                barrier.wait()
            job.parameters.push(BatchKey(batch.epoch, batch.number), {}, add=added)


if __name__ == "__main__":
    sys.exit(main())
