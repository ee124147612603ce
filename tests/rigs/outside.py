"""What somebody outside has: the command line, the pids that it lists, and a hand to break things.

Used by the rings that run real processes (broker, chaos): jobs are submitted and judged with `rover`, victims are the pids that
`rover members -o json` lists, and nothing is asked of the program that a user could not ask.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from commands import ROVER, run_command

__all__ = ["ROVER", "Hand", "living", "make_clicks", "name_of", "rover", "seeds"]


def rover(
    *arguments: str, home: Path | None = None, cwd: Path | None = None, timeout_s: float = 200.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `rover`, in a stack's `home` or a directory; `more`: variables of its environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")} | more
    environment |= {"ROVER_HOME": str(home)} if home else {}
    return run_command(list(arguments), cwd, environment, timeout_s)


def make_clicks(folder: Path, rows: int, eval_rows: int = 10, seed: int = 0) -> Path:
    """Write train.tsv and eval.tsv, clicks in Criteo's shape; return the folder."""
    generator = Path(__file__).parents[2] / "examples" / "clicks.py"
    sizes = ["--rows", str(rows), "--eval-rows", str(eval_rows), "--seed", str(seed)]
    command = [sys.executable, str(generator), "train.tsv", "eval.tsv", *sizes]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def living(home: Path, job: str, *roles: str) -> list[dict[str, Any]]:
    """Return the members of a job that have a process, as listed: of these roles, or all."""
    listed = rover("members", job, "-o", "json", home=home)
    rows = json.loads(listed.stdout) if listed.returncode == 0 else []
    return [row for row in rows if row["pid"] and (not roles or row["role"] in roles)]


def name_of(row: dict[str, Any]) -> str:
    """Return the life that a row of `living` is."""
    return f"{row['role']}-{row['index']}.{row['incarnation']}"


def seeds(first: int, count: int, soon: int) -> list[Any]:
    """Return the seeds of a test's histories; those beyond the first `soon` are marked long (.ci/run leaves them out)."""
    return [
        pytest.param(seed, marks=[pytest.mark.long] if seed >= first + soon else [])
        for seed in range(first, first + count)
    ]


class Hand(threading.Thread):
    """Breaks a job at moments and in ways that a seed draws, from when it is known until the `with` ends. `done`: what it did."""

    pauses_s = (0.3, 2.5)

    def __init__(self, home: Path, job: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.home, self.job, self.chance = home, job, random.Random(seed)
        self.over = threading.Event()
        self.done: list[str] = []

    def strike(self) -> None:
        """Break something, or nothing."""
        raise NotImplementedError

    def run(self) -> None:
        # A submission that finds no broker is refused at once, and rightly: begin when the job is known.
        while not self.over.wait(0.1) and rover("members", self.job, home=self.home).returncode:
            pass
        while not self.over.wait(self.chance.uniform(*self.pauses_s)):
            self.strike()

    def living(self, *roles: str) -> list[dict[str, Any]]:
        """Return whom it could strike."""
        return living(self.home, self.job, *roles)

    def send(self, pid: int, name: str, number: signal.Signals = signal.SIGKILL) -> bool:
        """Signal a process; False when it was gone already."""
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:
            return False
        self.done += [name] if pid else []
        return bool(pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self.join()
