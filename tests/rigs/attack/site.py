"""The hosts of a history, all on this machine: each a `rover up` of its own with its memory and its disk; and what is left of them.

Feeds blows.py with processes and directories. Small memories and disks are tmpfs mounts, where the user may mount; a history that
asks for them elsewhere has the machine's own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from outside import ROVER
from patience import PATIENCE_S, until

from attack.drawing import History
from rover_bus.flash.places import host_root
from rover_bus.node.local.layout import MemberStatus, list_members

SWEPT_S = 60.0
SERVICES = {"daemon": "serve daemon", "brain": "serve brain", "broker": "nats-server"}


class Host:
    """One host. `home`: its state directory, on its disk."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.name = site, f"h{number}"
        below = site.root / self.name
        self.disk, self.memory = below / "disk", below / "memory"
        self.home = self.disk / "home"
        self.log = below / "up.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.small: list[Path] = []
        for path, mib in ((self.disk, site.history.disk_mib), (self.memory, site.history.memory_mib)):
            path.mkdir(parents=True)
            if mib and _mount(path, mib):
                self.small.append(path)

    @property
    def staged(self) -> Path:
        """Where its servers stage."""
        name = host_root(self.home / "node").name
        return self.memory / name if self.memory in self.small else host_root(self.home / "node")

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def up(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start it unless it runs; return when it can be found. One that finds no broker, or a full disk, is called again, as a
        service manager would; `meanwhile` is done while it comes.
        """

        def found() -> bool:
            meanwhile()
            return self._found()

        if not self.runs:
            self._start()
            until(found, f"{self.name} is up", more=self.log.read_text)

    def _start(self) -> None:
        words = ["up", "--host", self.name, "--dir", str(self.home)]
        first = self.site.hosts[0] if self.site.hosts else self
        if first is not self:
            url = json.loads((first.home / "stack.json").read_text())["url"]
            words += ["--url", url, "--secret-file", str(first.home / "auth/creds/operator.creds")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        if self.memory in self.small:
            environment["ROVER_SHM"] = str(self.memory)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*ROVER, *words], cwd=self.site.root, env=environment, stdout=log, stderr=log
            )

    def _found(self) -> bool:
        assert self.process is not None
        if not self.runs:
            assert any(
                each in _tail(self.log) for each in ("no broker answers", "is full, nothing was started")
            ), _tail(self.log)
            self._start()
        with suppress(OSError, ValueError):
            record = json.loads((self.home / "stack.json").read_text())
            return bool(record["pid"] == self.process.pid)
        return False

    def service(self, kind: str) -> int:
        """Return the pid of a service, 0 while there is none."""
        if self.process is None or not self.runs:
            return 0
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if SERVICES[kind] in " ".join(child.cmdline()):
                    return child.pid
        return 0

    def members(self, job: str, *roles: str) -> list[MemberStatus]:
        """Return the members of a job that run here."""
        with suppress(OSError):
            return [
                each
                for each in list_members(self.home / "node", job)
                if each.pid and (not roles or each.member.role in roles)
            ]
        return []

    def lose(self) -> None:
        """Take everything that runs here away, and the memory."""
        lost = processes_below(self.disk)
        for process in lost:
            with suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait()
        psutil.wait_procs(lost, PATIENCE_S)  # one that is dying may still write
        shutil.rmtree(self.staged, ignore_errors=True)

    def end(self) -> int:
        """End it as its user does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


class Site:
    """All hosts of a history, from first to last; a context manager, which leaves nothing whatever happens."""

    def __init__(self, root: Path, history: History) -> None:
        self.root, self.history = root, history
        self.hosts: list[Host] = []
        self.undo: list[Callable[[], None]] = []

    @property
    def home(self) -> Path:
        return self.hosts[0].home

    def __enter__(self) -> Self:
        for number in range(self.history.hosts):
            host = Host(self, number)
            host.up()
            self.hosts.append(host)
        return self

    def members(self, job: str, *roles: str) -> list[MemberStatus]:
        return [each for host in self.hosts for each in host.members(job, *roles)]

    def end(self) -> list[str]:
        """End all hosts in order, once their memory is swept; return what was wrong with that, and what is left."""
        wrong = []
        end_s = time.monotonic() + SWEPT_S
        while any(_files(host.staged) for host in self.hosts) and time.monotonic() < end_s:
            time.sleep(0.5)
        for host in reversed(self.hosts):
            gone = host.process.poll() if host.process is not None else None
            if gone is not None:
                wrong.append(f"rover up of {host.name} had ended by itself with {gone}: {_tail(host.log)}")
            elif (code := host.end()) not in (0, 128 + signal.SIGTERM):
                wrong.append(f"rover up of {host.name} ended with {code}: {_tail(host.log)}")
        left = [" ".join(process.cmdline())[:200] for process in processes_below(self.root)]
        wrong += [f"a process is left: {words}" for words in left]
        for host in self.hosts:
            wrong += [f"{path} is left in memory" for path in _files(host.staged)]
        return wrong

    def __exit__(self, *_: object) -> None:
        for process in processes_below(self.root):
            with suppress(psutil.Error):
                process.kill()
        for host in self.hosts:
            shutil.rmtree(host.staged, ignore_errors=True)
            for path in host.small:
                subprocess.run(["umount", "-l", str(path)], check=True)


def processes_below(directory: Path) -> list[psutil.Process]:
    """Return the processes, other than this one, whose command line or environment names a directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [
                *process.cmdline(),
                *(f"{k}={v}" for k, v in process.environ().items() if k.startswith("ROVER")),
            ]
            if process.pid != os.getpid() and any(str(directory) in word for word in words):
                found.append(process)
    return found


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()] if root.exists() else []


def _mount(path: Path, mib: int) -> bool:
    if os.geteuid() or sys.platform != "linux":
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _tail(log: Path) -> str:
    return log.read_text()[-600:]
