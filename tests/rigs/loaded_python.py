"""A Python that has loaded what others wrote, and forks into each command that a test starts: half the cost of a new one.

    python loaded_python.py SOCKET_FD

Fed by commands.py, which holds the other end of the socket. The libraries alone are loaded here: a command imports all modules of
ours afresh, in a process of its own, with its own directory, environment, output and end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress

LIBRARIES = (
    "asyncio",
    "click",
    "cryptography.x509",
    "msgspec.json",
    "msgspec.msgpack",
    "msgspec.toml",
    "nacl.public",
    "nacl.signing",
    "nkeys",
    "numpy",
    "ssl",
    "subprocess",
    "tempfile",
    "xxhash",
)
MODULE = "rover_bus.cli.entry"
MOST_BYTES = 1 << 17  # of a request
FDS = 3  # that come with each: where the command writes, its errors, and where its end is told


class Request:
    """What is to be started: words, directory and environment."""

    def __init__(self, body: bytes, fds: list[int]) -> None:
        asked = json.loads(body)
        self.words, self.directory, self.environment = (
            asked["words"],
            asked["directory"],
            asked["environment"],
        )
        self.out, self.err, self.told = fds

    def become(self) -> None:
        """Be the process of the command, as a new Python is at its start."""
        os.dup2(self.out, 1)
        os.dup2(self.err, 2)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.directory)
        sys.argv[:] = [MODULE, *self.words]
        sys.path[0] = self.directory


def load() -> None:
    """Load the libraries, of nats-py what `events/nats_py.py` loads: all in one thread, which is what a fork takes along."""
    for name in LIBRARIES:
        importlib.import_module(name)
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    importlib.import_module("nats.aio.client")
    del sys.modules["aiohttp"]
    gc.collect()
    gc.freeze()


def serve(asking: socket.socket) -> Request:
    """Fork at each request, tell how each child ended; return in a child. Ends with the other end of the socket."""
    running: dict[
        int, tuple[int, int]
    ] = {}  # by the fd of a process that ends: its id, and where that is told
    poll = select.poll()
    poll.register(asking, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != asking.fileno():
                pid, told = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(told)
                continue
            body, fds, _, _ = socket.recv_fds(asking, MOST_BYTES, FDS)
            if not body:
                sys.exit()
            request = Request(body, fds)
            if not (pid := os.fork()):
                return request
            tell(request.told, pid)
            ends = os.pidfd_open(pid)
            running[ends] = pid, request.told
            poll.register(ends, select.POLLIN)
            os.close(request.out)
            os.close(request.err)


def tell(fd: int, number: int) -> None:
    with suppress(BrokenPipeError):  # it is not waited for any more
        os.write(fd, b"%d\n" % number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this
    load()
    serve(socket.socket(fileno=int(sys.argv[1]))).become()
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
