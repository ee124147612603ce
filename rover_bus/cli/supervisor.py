"""Keeps services alive: each a process of its own, started again when it ends, ended with us however we end.

Fed by stack.py with command lines. A service's standard input is a pipe that we hold: when we die, even by SIGKILL, it ends,
and the service leaves by itself (serve.py, `--with-parent`). It runs in a session of its own, because Ctrl-C is for us: we end
services in order. One thread looks after all of them five times a second, which costs less than can be measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rover_bus.events.errors import PermanentError
from rover_bus.events.identity import Exit
from rover_bus.events.last_words import read_tail, said_last
from rover_bus.node.exits import classify

LOOK_S = 0.2
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 5.0
HEALTHY_S = 10.0


def service_command(role: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line that runs a service (serve.py) as a process of its own."""
    return [python, "-m", "rover_bus.cli.serve", role, *arguments]


class ServiceFailed(PermanentError):
    """A service did not start; the message ends with what it said. `exit_code`: the one that it ended with, where it said why."""

    code = "service_failed"
    exit_code = 4

    def __init__(self, message: str, exit_code: int = exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Tended(Protocol):
    """What a supervisor looks after."""

    def mend(self) -> None:
        """Start it again if it has ended and its time has come."""


@dataclass(frozen=True, slots=True)
class ServiceOrder:
    """A service to run. `ready_file` is written by it when it serves; beside it stands why it cannot (`Refusal`)."""

    name: str
    command: list[str]
    log_file: Path
    ready_file: Path
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()  # of sockets that it goes on with


@dataclass(frozen=True, slots=True)
class StartRefusal:
    """Why a service ended by itself, as it says to the supervisor that started it: the error's one line and its exit code."""

    message: str
    exit_code: int

    @staticmethod
    def path(ready_file: Path) -> Path:
        """Return where it stands for a service with this ready file."""
        return ready_file.with_suffix(".refused")

    @classmethod
    def read(cls, ready_file: Path) -> StartRefusal | None:
        """Return what the service said; None where it ended without a word."""
        try:
            return cls(**json.loads(cls.path(ready_file).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, ready_file: Path) -> None:
        """Say it."""
        self.path(ready_file).write_text(json.dumps(asdict(self)) + "\n")


def describe_exit(code: int, said: str) -> Exit:
    """Return how a process ended by itself: `code` as subprocess has it, `said` the last lines that it wrote."""
    reason, status, signal, detail = classify(code)
    return Exit(reason=reason, status=status, signal=signal, detail=detail, stderr=said)  # type: ignore[arg-type]


Note = Callable[[str, int, Exit, float], None]  # service, process id, how it ended, how long it had run


class SupervisedService:
    """One service's present process."""

    def __init__(
        self,
        order: ServiceOrder,
        say: Callable[[str], None] = lambda _: None,
        note: Note = lambda *_: None,
    ) -> None:
        """`say` and `note` are told how it ended whenever it is started again: a person, and the bus."""
        self.order, self._say, self._note = order, say, note
        self._began_s = self._ended_s = 0.0
        self.restarts = 0
        self.refusal: StartRefusal | None = None  # what its last process ended with, where it said so
        self._process: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff()
        self._log_began = 0  # where its present process began to write

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        order = self.order
        self._backoff.begin()
        order.ready_file.unlink(missing_ok=True)
        StartRefusal.path(order.ready_file).unlink(missing_ok=True)
        self._began_s, self._ended_s = time.monotonic(), 0.0
        with order.log_file.open("ab") as log:
            self._log_began = log.tell()
            self._process = subprocess.Popen(
                [*order.command, "--with-parent", "--ready-file", str(order.ready_file)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(order.environment),
                start_new_session=True,
                pass_fds=order.descriptors,
            )

    def mend(self) -> None:
        if self._process is None or (code := self._process.poll()) is None:
            return
        if not self._ended_s:
            self._ended_s = time.monotonic()
            self.refusal = StartRefusal.read(self.order.ready_file)
        if self._backoff.is_due():
            exit = describe_exit(code, read_tail(self.order.log_file, begin=self._log_began))
            self._say(f"{self.order.name} ended ({exit.describe() or exit.reason}) and is started again")
            self._note(self.order.name, self._process.pid, exit, self._ended_s - self._began_s)
            self.ask_to_stop()
            self.restarts += 1
            self.start()

    def wait_until_ready(self, deadline_s: float) -> None:
        """Return when it serves. Raises ServiceFailed when it ended, or `deadline_s` (monotonic) has come."""
        while not self.order.ready_file.exists():
            ended = self.pid is None
            if ended and (refusal := StartRefusal.read(self.order.ready_file)):
                raise ServiceFailed(f"{self.order.name} cannot start: {refusal.message}", refusal.exit_code)
            if ended or time.monotonic() > deadline_s:
                what = "ended at its start" if ended else "is not ready in time"
                raise ServiceFailed(f"{self.order.name} {what}: {self.last_words()}")
            time.sleep(0.01)

    def ask_to_stop(self) -> None:
        """End its standard input: it leaves in its own time."""
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def stop(self, timeout_s: float) -> None:
        """Ask it to stop and wait; after `timeout_s` end it by force."""
        self.ask_to_stop()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it by SIGKILL, as a machine that loses its power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Return what it said last since it was started, in one line."""
        return (
            said_last(read_tail(self.order.log_file, begin=self._log_began))
            or f"its log {self.order.log_file} is empty"
        )


class Supervisor:
    """A thread that mends what it is given until it is stopped.

    Nothing that it does may end what it watches, or itself: an error of one look is told to `on_error`, once as long as it stays
    the same, and the next look comes all the same.
    """

    def __init__(self, tended: list[Tended], on_error: Callable[[Exception], None]) -> None:
        self._tended = tended
        self._on_error = on_error
        self._said: dict[int, str] = {}  # what each of them could not do at its last look
        self._stop = threading.Event()
        self.pause = threading.Lock()  # held while a service is restarted on purpose
        self._thread = threading.Thread(target=self._look, name="rover-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_S):
            with self.pause:
                for number, each in enumerate(self._tended):
                    self._mend(number, each)

    def _mend(self, number: int, each: Tended) -> None:
        try:
            each.mend()
        except Exception as error:  # noqa: BLE001 - a watch that ends watches nothing
            if self._said.get(number) != str(error):
                self._said[number] = str(error)
                with suppress(OSError, ValueError):  # the terminal has gone
                    self._on_error(error)
        else:
            self._said.pop(number, None)


class Backoff:
    """When to try again what fails at once: doubling from 0.1 to 5 s, from the beginning after ten seconds in health."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._began_s = self._not_before_s = 0.0

    def begin(self) -> None:
        """It starts now."""
        self._began_s, self._not_before_s = time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Say whether it may start again; asked again and again while it does not run."""
        now = time.monotonic()
        if not self._not_before_s:
            healthy = now - self._began_s > HEALTHY_S
            self._delay_s = (
                BACKOFF_FIRST_S if healthy or not self._delay_s else min(self._delay_s * 2, BACKOFF_MAX_S)
            )
            self._not_before_s = now + self._delay_s
        return now >= self._not_before_s
