"""The processes of a running stack, by what they are, and what they cost: what overhead.py and idle.py read.

Fed by `rover up` (started here as a user would), the daemon's records and /proc. A process that has ended keeps its last
figures, so that at most one sampling interval of its cost is lost with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rover_bus.cli.home import Home, NoStack
from rover_bus.node.local.layout import StartRecord, StateDirectory

START_TIMEOUT_S = 60.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running_stack(directory: Path) -> Iterator[Home]:
    """Run `rover up` in a process of its own until the block ends; its host is registered when the block begins.

    Byte code is cached, as on a user's machine: else every service would compile itself.
    """
    home = Home(directory)
    command = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--quiet", "--dir", str(directory)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        _wait_for(home, process)
        yield home
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _wait_for(home: Home, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            home.read_record()
            return
        except NoStack:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def find_processes(home: Home) -> dict[int, str]:
    """Return what runs by pid: `up`, `broker`, `brain`, `daemon`, `shim`, and members by role: `master`, `ps`, `worker`."""
    up = home.read_record().pid
    found = {up: "up"}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(up).children():
            found[child.pid] = _role_of_child(child)
    for life, order in StateDirectory(home.node).incarnations():
        started = life.read("started", StartRecord)
        if started is not None and life.ended() is None:
            found[started.shim] = "shim"
            found[started.pid] = order.desired.member.role
    return found


def _role_of_child(child: psutil.Process) -> str:
    try:
        words = child.cmdline()
    except psutil.NoSuchProcess:
        return "other"
    return next((word for word in ("brain", "daemon") if word in words), "broker")


def cpu_seconds(path: str) -> float | None:
    """Return the CPU seconds so far of a process or thread, `/proc/PID` or `/proc/PID/task/TID`; None when it is gone."""
    try:
        fields = Path(path, "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process: its own pages, and its share of those that others map too. 0 when gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


@dataclass
class Meter:
    """CPU seconds of every process of a stack since `begin`, and of the main threads of its servers."""

    home: Home
    roles: dict[int, str] = field(default_factory=dict)
    _first_s: dict[str, float] = field(default_factory=dict)
    _last_s: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Take what runs now as the beginning; what starts later is counted from its birth."""
        self.look()
        self._first_s = dict(self._last_s)

    def look(self) -> None:
        """Read everything that runs; to be called every half second or so."""
        for pid, role in find_processes(self.home).items():
            self.roles[pid] = role
            self._read(f"/proc/{pid}")
            if role == "ps":
                self._read(f"/proc/{pid}/task/{pid}")

    def _read(self, path: str) -> None:
        seconds = cpu_seconds(path)
        if seconds is not None:
            self._last_s[path] = seconds

    def spent_s(self, role: str) -> float:
        """Return what all processes of a role have used."""
        return sum(self._spent_s(f"/proc/{pid}") for pid, each in self.roles.items() if each == role)

    def main_threads_s(self, role: str) -> float:
        """Return what the main threads of a role have used; servers only."""
        return sum(
            self._spent_s(f"/proc/{pid}/task/{pid}") for pid, each in self.roles.items() if each == role
        )

    def _spent_s(self, path: str) -> float:
        return self._last_s.get(path, 0.0) - self._first_s.get(path, 0.0)

    def count(self, role: str) -> int:
        return sum(each == role for each in self.roles.values())
