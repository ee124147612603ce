"""How a test starts `rover`: as a fork of a Python that has loaded the libraries (loaded_python.py), once a process of tests.

A new Python takes 0.15 s of a processor until a short command has asked its broker, and two thirds of that for what others wrote.
Where the test has given a new Python something that a fork would not have (another PYTHONPATH, a namespace), a new one is started.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from loaded_python import MODULE

ROVER = [sys.executable, "-m", MODULE]
AT_A_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OPENBLAS_",
    "OMP_",
    "TZ",
)  # read by a new Python alone


def at_a_start(environment: dict[str, str]) -> dict[str, str]:
    """Return of an environment what counts when Python starts, or a library is loaded."""
    return {key: value for key, value in environment.items() if key.startswith(AT_A_START)}


def network() -> str:
    """Return the network namespace of this thread."""
    return os.readlink("/proc/thread-self/ns/net")


class LoadedPython:
    """One that forks, and our end of its socket. It ends with this process."""

    def __init__(self) -> None:
        self.begins_with, self.network = at_a_start(dict(os.environ)), network()
        self.socket, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            words = [sys.executable, str(Path(__file__).with_name("loaded_python.py")), str(its_end.fileno())]
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(self.end)

    def end(self) -> None:
        self.socket.close()
        self.process.wait()

    def run(
        self, words: list[str], directory: str, environment: dict[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does. Raises TimeoutExpired."""
        asked = json.dumps({"words": words, "directory": directory, "environment": environment}).encode()
        reading, writing = zip(*(os.pipe() for _ in range(3)), strict=True)
        try:
            socket.send_fds(self.socket, [asked], writing)
        finally:
            for fd in writing:
                os.close(fd)
        try:
            out, err, told = self._read_all(reading, time.monotonic() + timeout_s, [*ROVER, *words])
        finally:
            for fd in reading:
                os.close(fd)
        _, code = told.split()
        texts = (each.decode().replace("\r\n", "\n") for each in (out, err))
        return subprocess.CompletedProcess([*ROVER, *words], int(code), *texts)

    def _read_all(self, fds: tuple[int, ...], end_s: float, words: list[str]) -> list[bytes]:
        read = dict.fromkeys(fds, b"")
        with selectors.DefaultSelector() as open_ones:
            for fd in fds:
                open_ones.register(fd, selectors.EVENT_READ)
            while open_ones.get_map():
                if (left_s := end_s - time.monotonic()) <= 0:
                    with suppress(ProcessLookupError):
                        os.kill(int(read[fds[2]].split()[0]), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(words, end_s, *(read[fd] for fd in fds[:2]))
                for key, _ in open_ones.select(left_s):
                    if more := os.read(key.fd, 1 << 16):
                        read[key.fd] += more
                    else:
                        open_ones.unregister(key.fd)
        return [read[fd] for fd in fds]


_loaded: list[LoadedPython] = []
_one = threading.Lock()


def loaded_python() -> LoadedPython:
    """Return the one of this process, which its first command starts."""
    with _one:
        if not _loaded:
            _loaded.append(LoadedPython())
    return _loaded[0]


def run_command(
    words: list[str], directory: Path | None, environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `rover` with these words to its end. Raises TimeoutExpired."""
    loaded = loaded_python()
    if (at_a_start(environment), network()) == (loaded.begins_with, loaded.network):
        return loaded.run(words, str((directory or Path()).resolve()), environment, timeout_s)
    return run_new(words, directory, environment, timeout_s)


def run_new(
    words: list[str], directory: Path | None, environment: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run it in a new Python."""
    return subprocess.run(
        [*ROVER, *words],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
        timeout=timeout_s,
        env=environment,
    )
