"""A small job on hosts that are all this machine, as somebody outside follows it: submitted, listened to, judged by the witness.

Used by the rings that run real processes, on top of outside.py. The hosts share the first one's broker and Brain; each has a state
directory and memory of its own, so that one can be taken away.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facts_read import records_of
from gated import PACE_S, Gate
from outside import rover
from patience import until

from rover_bus.cli.stack import Here, OtherBroker, RunningStack

NAME = "ads"
LOOK_S = 0.3
FILE = """
name = "{name}"
priority = {priority}
program = {program}
{top}
[data]
train = "t.csv"
batch_size = 32
epochs = {epochs}
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = {workers}
cores = {cores}
training = "{training}"
max_count = {most}
start = {start}
spares = {spares}
{worker_lines}
[servers]
count = {servers}
max_count = {most_servers}
cores = {cores}
{server_lines}
[moves]
first_begins = {begins}
{moves}
[leases]
target = "500ms"
{leases}
[checkpoint]
{checkpoint}
"""


@dataclass(kw_only=True)
class SmallJob:
    """One job: its file and clicks lie in `folder`, the stack that it is submitted to has its state in `home`.

    It lasts until `finish` (gated.py), whatever its rows and epochs are. pace_s: what a batch takes meanwhile.
    top, leases, moves, checkpoint, worker_lines, server_lines: further lines of the job file, above and in these tables.
    cores: of each member, 0 no limit.
    most, most_servers: so many the Brain may choose; start: workers to begin with where no similar job is known.
    inner: the program, the example's unless told otherwise.
    by_command: its facts are always read by `rover events`.
    first_begins: before all of its servers are there; without, each that a test names has slots once the job trains.
    """

    folder: Path
    home: Path
    rows: int
    epochs: int
    workers: int
    servers: int
    checkpoint: str
    leases: str = ""
    moves: str = ""
    top: str = ""
    worker_lines: str = ""
    server_lines: str = ""
    pace_s: float = PACE_S
    name: str = NAME
    priority: int = 0
    cores: float = 0.0
    training: str = "asynchronous"
    most: int = 64
    most_servers: int = 64
    start: int = 0
    spares: int = 2
    inner: Path | None = None
    by_command: bool = False
    first_begins: bool = False

    @property
    def gate(self) -> Gate:
        return Gate(self.folder / f"{self.name}.gate", self.pace_s)

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `rover` in the folder, on the stack."""
        return rover(*words, home=self.home, cwd=self.folder, timeout_s=120.0)

    def write(self) -> None:
        """Write clicks, unless another job of the folder reads them, and the job file."""
        if not (train := self.folder / "t.csv").exists():
            clicks = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(self.rows))
            train.write_text("label,user,item\n" + clicks)
        (self.folder / "job.toml").write_text(
            FILE.format(
                program=self.gate.program(self.inner or ""),
                begins=str(self.first_begins).lower(),
                **vars(self),
            )
        )

    def submit(self) -> None:
        """Write clicks and job file, and submit it."""
        self.write()
        submitted = self.rover("submit", "job.toml")
        assert submitted.returncode == 0, submitted.stderr

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Return the bodies of the job's facts of a kind, in order, without those that no reader believes."""
        said = None if self.by_command else records_of(self.home, self.name, kind)
        if said is None:
            done = self.rover("events", self.name, "-k", kind, "--json")
            said = [json.loads(line) for line in done.stdout.splitlines()]
        return [each["body"] for each in said if "passed_over" not in each]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition` holds; fail saying what never came, and what did."""
        until(condition, what, LOOK_S, lambda: self.rover("events", self.name, "-n", "60").stdout)

    def finish(self) -> None:
        """Let it come to its end."""
        self.gate.open()

    def complete(self) -> None:
        """Let it end and see it end, every sample applied once."""
        self.finish()
        self.until(lambda: self.facts("job.ended"), "the end")
        (ended,) = self.facts("job.ended")
        assert ended["state"] == "completed", ended
        done = self.rover("witness", self.name, "--json")
        assert done.returncode == 0, done.stderr
        counted = json.loads(done.stdout)
        assert (counted["applied"], counted["missing"], counted["duplicated"]) == (
            self.rows * self.epochs,
            0,
            0,
        )


def checkpointed_job(home: Path, folder: Path, epochs: int, checkpoint: str) -> SmallJob:
    """Return a job that stores its cuts below `folder`."""
    return SmallJob(
        folder=folder,
        home=home,
        rows=4_000,
        epochs=epochs,
        workers=2,
        servers=2,
        checkpoint=f'path = "store"\n{checkpoint}',
    )


@contextmanager
def hosts_up(
    directory: Path, first: str, *others: str, settings: Sequence[str] = ()
) -> Iterator[dict[str, RunningStack]]:
    """Run hosts, each in the subdirectory of its name, until the `with` ends; the first has the broker and the Brain."""
    with ExitStack() as ends:
        leading = ends.enter_context(
            RunningStack(directory / first, here=Here(first), disposable=True, settings=settings)
        )
        hosts = {first: leading}
        for host in others:
            stack = RunningStack(
                directory / host,
                broker=OtherBroker(leading.url, leading.secret_file),
                brain=None,
                here=Here(host),
                disposable=True,
            )
            hosts[host] = ends.enter_context(stack)
        yield hosts
