"""A launcher that is the first process of a container: nothing kills it but what it does itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rover_bus.node.local.launching import LOADED, launch_command

PROGRAM = """
import os, time
print("member", os.environ["ROVER_INDEX"], flush=True)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child", flush=True)
time.sleep(600)
"""
PATIENCE_S = 30.0


class First:
    """A launcher that waits, as number 1 of its own PID namespace; what it talks to."""

    def __init__(self, process: subprocess.Popen[bytes], daemon: socket.socket) -> None:
        self.process, self.daemon = process, daemon
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        [self.pid] = map(int, children.read_text().split())


@pytest.fixture
def first(tmp_path: Path) -> Iterator[First]:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and unshare")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / LOADED).write_text(json.dumps({"start_s": 1.0, "path": [], "modules": []}))
    ours, theirs = socket.socketpair()
    command = ["unshare", "--pid", "--fork", *launch_command([sys.executable, str(program)], tmp_path)]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
    theirs.close()
    ours.settimeout(PATIENCE_S)
    try:
        assert ours.recv(1) == b"r"
        yield First(process, ours)
    finally:
        for child in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for pid in child.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        ours.close()


def test_it_ends_when_what_it_waits_for_ends_without_a_word(first: First) -> None:
    first.daemon.close()
    assert first.process.wait(PATIENCE_S) == 137


def test_it_leaves_at_once_when_it_is_asked_to_while_it_waits(first: First) -> None:
    os.kill(first.pid, signal.SIGTERM)
    assert first.process.wait(PATIENCE_S) == 143


def test_a_program_that_it_became_hears_what_it_handles_and_has_no_child(first: First) -> None:
    assert first.process.stdout is not None
    first.daemon.sendall(b'{"ROVER_INDEX": "7"}\n')
    first.daemon.close()
    assert first.process.stdout.readline() == b"member 7\n"
    assert first.process.stdout.readline() == b"no child\n"
    os.kill(first.pid, signal.SIGTERM)  # it handles none: the first process of a container goes on
    time.sleep(0.3)
    assert first.process.poll() is None
