"""Stacks, hosts and brokers on machines that are network namespaces (namespaces.py), and a job followed from one of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from namespaces import Machine
from outside import ROVER
from patience import PATIENCE_S, until
from small_job import SmallJob
from taken_away import take_away

from rover_bus.cli.home import Home


@dataclass(kw_only=True)
class JobOnMachines(SmallJob):
    """A small job that is submitted and followed from one of the machines."""

    machine: Machine = field(default_factory=lambda: Machine("", ""))

    def rover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_on(self.machine, self.home, *words, cwd=self.folder)


def run_on(machine: Machine, home: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*machine.within, *ROVER, *words, "--dir", str(home)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=PATIENCE_S,
    )


class Stacks:
    """What runs on the machines, each in a directory of its own; ended with the test, however it ends."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def home(self, name: str) -> Home:
        return Home(self._folder / name)

    def start(
        self,
        machine: Machine,
        name: str,
        *words: str,
        around: Sequence[str] = (),
        serves: Callable[[], bool] | None = None,
    ) -> None:
        """Start a stack or a host; `around`: a command that runs it in a world of its own; `serves`: whether it is there."""
        log = (self._folder / f"{name}.log").open("wb")
        self._ends.callback(log.close)
        former = self._noted(name)
        command = [*machine.within, *around, *ROVER, *words, "--dir", str(self.home(name).root)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self.processes[name] = process
        self._ends.callback(self._end, name)
        until(lambda: self._serves(name, serves, former), name, more=(self._folder / f"{name}.log").read_text)

    def lose(self, name: str) -> None:
        """Take it away as a power cut does."""
        process = self.processes[name]
        services: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):  # its services would see that it is gone, and end in order
            services = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for service in services:
            with suppress(psutil.NoSuchProcess):
                service.kill()
        process.wait()
        take_away(self.home(name))

    def _serves(self, name: str, serves: Callable[[], bool] | None, former: str) -> bool:
        assert self.processes[name].poll() is None, (self._folder / f"{name}.log").read_text()
        return serves() if serves else self._noted(name) not in ("", former)

    def _noted(self, name: str) -> str:
        """Return how to reach a stack as it noted it itself; one that was killed left its note."""
        record = self.home(name).root / "stack.json"
        return record.read_text() if record.exists() else ""

    def _end(self, name: str) -> None:
        process = self.processes[name]
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            self.lose(name)
