"""A small job on hosts that are all this machine, as somebody outside follows it: submitted, listened to, judged by the witness.

Used by the rings that run real processes, on top of outside.py. The hosts share the first one's broker and Brain; each has a state
directory and memory of its own, so that one can be taken away.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outside import rover

from rover_bus.cli.stack import RunningStack

NAME = "ads"
LOOK_S = 0.3
FILE = """
name = "{name}"
priority = {priority}
[data]
train = "t.csv"
batch_size = 32
epochs = {epochs}
read_latency = "{read_latency}"
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = {workers}
cores = {cores}
[servers]
count = {servers}
cores = {cores}
[leases]
target = "500ms"
{leases}
[checkpoint]
{checkpoint}
"""


@dataclass(kw_only=True)
class SmallJob:
    """One job: its file and clicks lie in `folder`, the stack that it is submitted to has its state in `home`.

    leases, checkpoint: further lines of these tables of the job file. cores: of each member, 0 no limit.
    patience_s: how long `until` waits.
    """

    folder: Path
    home: Path
    rows: int
    epochs: int
    workers: int
    servers: int
    checkpoint: str
    leases: str = ""
    read_latency: str = "20ms"
    patience_s: float = 120.0
    name: str = NAME
    priority: int = 0
    cores: float = 0.0

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `rover` in the folder, on the stack."""
        return rover(*words, home=self.home, cwd=self.folder, timeout_s=120.0)

    def submit(self) -> None:
        """Write clicks and job file, and submit it."""
        clicks = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(self.rows))
        (self.folder / "t.csv").write_text("label,user,item\n" + clicks)
        (self.folder / "job.toml").write_text(FILE.format(**vars(self)))
        submitted = self.rover("submit", "job.toml")
        assert submitted.returncode == 0, submitted.stderr

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Return the bodies of the job's facts of a kind, in order."""
        done = self.rover("events", self.name, "-k", kind, "--json")
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition` holds; fail saying what never came, and what did."""
        end_s = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < end_s, (
                f"never came: {what}; {self.rover('events', self.name, '-n', '25').stdout}"
            )
            time.sleep(LOOK_S)

    def complete(self) -> None:
        """See it end, every sample applied once."""
        self.until(lambda: self.facts("job.ended"), "the end")
        (ended,) = self.facts("job.ended")
        assert ended["state"] == "completed", ended
        counted = json.loads(self.rover("witness", self.name, "--json").stdout)
        assert (counted["applied"], counted["missing"], counted["duplicated"]) == (
            self.rows * self.epochs,
            0,
            0,
        )


def checkpointed_job(home: Path, folder: Path, epochs: int, checkpoint: str) -> SmallJob:
    """Return a job of some seconds an epoch on any machine, bound by its input, that stores its cuts below `folder`."""
    return SmallJob(
        folder=folder,
        home=home,
        rows=4_000,
        epochs=epochs,
        read_latency="15ms",
        workers=2,
        servers=2,
        checkpoint=f'path = "store"\n{checkpoint}',
    )


@contextmanager
def hosts_up(directory: Path, first: str, *others: str) -> Iterator[dict[str, RunningStack]]:
    """Run hosts, each in the subdirectory of its name, until the `with` ends; the first has the broker and the Brain."""
    with ExitStack() as ends:
        leading = ends.enter_context(RunningStack(directory / first, host=first, disposable=True))
        hosts = {first: leading}
        for host in others:
            stack = RunningStack(
                directory / host,
                url=leading.url,
                secret_file=leading.secret_file,
                host=host,
                disposable=True,
                brain=False,
            )
            hosts[host] = ends.enter_context(stack)
        yield hosts
