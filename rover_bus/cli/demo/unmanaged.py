"""The same job without a control plane: what the demo's verdict is compared with ("off").

Fed by the demo with a job, the points of its kills, and a directory; gives figures with the keys of OFF_KEYS. It is the usual
way to run a training script: parameter servers, a number of workers that a person chose, each with a fixed share of the data,
and a supervisor that starts a worker again when it ends badly. It begins its share again, for no record says how far it was, and
servers apply what they are sent. There is neither master nor broker: kills of these find nothing to strike, which is in
its favour. The witness is the same table, read from the same kind of servers.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rover_bus.cli.demo.chaos import Strike
from rover_bus.cli.demo.unmanaged_member import ROUTING, SECRET, SPEC, write_whole
from rover_bus.cli.views.results import count_witness
from rover_bus.client.witness import NAME, WIDTH, read_witness, witness_rows, witness_table
from rover_bus.events.errors import PermanentError
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.events.requests import ServerAddress
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.store import Exported

LOOK_S = 0.02
START_TIMEOUT_S = 30.0
MOST_INCARNATIONS = 50
OFF_KEYS = (
    "workers",
    "servers",
    "wall_seconds",
    "samples_lost",
    "samples_duplicated",
    "auc",
    "logloss",
    "workers_lost",
)

Say = Callable[[str], None]


class UnmanagedFailed(PermanentError):
    """The comparison itself did not work; the message ends with what its process wrote."""

    code = "unmanaged_failed"
    exit_code = 10


@dataclass(slots=True)
class UnmanagedWorker:
    """One worker: its present process, how many incarnations it had, and whether its share is done."""

    index: int
    process: subprocess.Popen[bytes]
    incarnation: int = 0
    done: bool = False


@dataclass(slots=True)
class Unmanaged:
    """One run. `strikes`: points of the training, as the managed run had them; those at workers are carried out."""

    spec: JobSpec
    strikes: Sequence[Strike]
    directory: Path
    say: Say
    workers_lost: int = 0
    _workers: list[UnmanagedWorker] = field(default_factory=list)
    _batches: int = 0

    def run(self) -> dict[str, Any]:
        """Train to the end; return the figures of OFF_KEYS. Raises UnmanagedFailed."""
        workers, servers = max(self.spec.workers.count, 1), max(self.spec.servers.count, 1)
        self._prepare()
        began_s = time.monotonic()
        with ExitStack() as ends:
            self._start_servers(servers, ends)
            self._workers = [
                UnmanagedWorker(index, self._start_worker(index, workers, 0)) for index in range(workers)
            ]
            ends.callback(self._kill_all)
            self._train(workers)
            self._evaluate(workers, ends)
            wall_s = time.monotonic() - began_s
            lost, duplicated = self._judge()
        result = msgspec.json.decode((self.directory / "summary.json").read_bytes())["result"]
        figures = (
            workers,
            servers,
            round(wall_s, 1),
            lost,
            duplicated,
            result.get("auc"),
            result.get("logloss"),
        )
        return dict(zip(OFF_KEYS, (*figures, self.workers_lost), strict=True))

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / SPEC).write_bytes(msgspec.json.encode(self.spec))
        secret = os.open(self.directory / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(secret, "wb") as file:
            file.write(secrets.token_hex(16).encode())

    # -- processes -----------------------------------------------------------------------------------------------------

    def _start(self, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rover_bus.cli.demo.unmanaged_member", *map(str, arguments)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _start_worker(self, index: int, of: int, incarnation: int) -> subprocess.Popen[bytes]:
        return self._start("worker", self.directory, index, of, incarnation)

    def _start_servers(self, count: int, ends: ExitStack) -> None:
        processes = [self._start("ps", self.directory, index) for index in range(count)]
        for process in processes:
            ends.callback(_end, process)
        paths = [self.directory / f"ps-{index}.json" for index in range(count)]
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline_s or any(process.poll() is not None for process in processes):
                raise self._failed("a server did not start")
            time.sleep(LOOK_S)
        addresses = [msgspec.json.decode(path.read_bytes(), type=ServerAddress) for path in paths]
        write_whole(self.directory / ROUTING, msgspec.json.encode(divide_slots(addresses)))

    def _kill_all(self) -> None:
        for worker in self._workers:
            _end(worker.process)

    # -- training ------------------------------------------------------------------------------------------------------

    def _train(self, workers: int) -> None:
        coming = [strike for strike in self.strikes if strike.target == "worker"]
        while not all(worker.done for worker in self._workers):
            if coming and self.fraction >= coming[0].at and self._strike(coming[0]):
                coming.pop(0)
            for worker in self._workers:
                self._mend(worker, workers)
            time.sleep(LOOK_S)

    def _strike(self, strike: Strike) -> bool:
        alive = [worker for worker in self._workers if worker.process.poll() is None]
        if not alive:
            return False
        worker = alive[int(strike.draw * len(alive))]
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        self.workers_lost += 1
        self.say(f"off: worker {worker.index} killed at {strike.at:.0%}: it begins its share again")
        return True

    def _mend(self, worker: UnmanagedWorker, workers: int) -> None:
        """Do what a supervisor does: start a worker again that ended badly."""
        status = worker.process.poll()
        if worker.done or status is None:
            return
        worker.done = status == 0
        if status == 0:
            return
        worker.incarnation += 1
        if worker.incarnation >= MOST_INCARNATIONS or status > 0:
            raise self._failed(f"worker {worker.index} ended with status {status}")
        _end(worker.process)
        (self.directory / f"worker-{worker.index}.progress").unlink(missing_ok=True)
        worker.process = self._start_worker(worker.index, workers, worker.incarnation)

    @property
    def fraction(self) -> float:
        """How far the present incarnations are, in [0, 1]: a killed worker is at its beginning again."""
        if not self._batches:
            path = self.directory / "dataset.json"
            if not path.exists():
                return 0.0
            dataset = msgspec.json.decode(path.read_bytes(), type=Dataset)
            self._batches = dataset.batches * dataset.epochs
        return sum(map(self._done_by, self._workers)) / self._batches

    def _done_by(self, worker: UnmanagedWorker) -> int:
        try:
            return int((self.directory / f"worker-{worker.index}.progress").read_bytes() or b"0")
        except FileNotFoundError:
            return 0

    # -- the end -------------------------------------------------------------------------------------------------------

    def _evaluate(self, workers: int, ends: ExitStack) -> None:
        """One more process, without a share, evaluates what the servers hold."""
        judge = self._start_worker(workers, workers, MOST_INCARNATIONS)
        ends.callback(_end, judge)
        if judge.wait() != 0:
            raise self._failed("the evaluation failed")

    def _judge(self) -> tuple[int, int]:
        """Return samples lost and samples applied once more than they should have been, by the servers' witness."""
        dataset = msgspec.json.decode((self.directory / "dataset.json").read_bytes(), type=Dataset)
        table = witness_table(dataset)
        if table is None:
            raise UnmanagedFailed("this job keeps no witness: set data.witness = true")
        with self._parameters() as parameters:
            parameters.declare(table)
            values = parameters.read(NAME, witness_rows(dataset)).reshape(-1, WIDTH)
        counted = count_witness(read_witness(Exported(values), dataset))
        return counted.missing, counted.duplicated

    @contextmanager
    def _parameters(self) -> Iterator[RemoteParameters]:
        from rover_bus.cli.demo.unmanaged_member import read_routing

        secret = (self.directory / SECRET).read_bytes()
        with RemoteParameters(read_routing(self.directory), secret) as parameters:
            yield parameters

    def _failed(self, what: str) -> UnmanagedFailed:
        lines = (self.directory / "log").read_text(errors="replace").strip().splitlines()
        return UnmanagedFailed(f"the run without a control plane: {what}{f': {lines[-1]}' if lines else ''}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()
