"""`rover up` on a disk without room, as after a crash that filled it: one clear line, and a stack once there is room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root"),
]
UP = [sys.executable, "-m", "rover_bus.cli.entry", "up", "--dir"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    (disk / "state").mkdir()
    (disk / "state" / "services").mkdir()
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_stack_that_finds_no_room_says_so_and_starts_when_there_is_some(full_disk: Path) -> None:
    home = full_disk / "state"
    refused = subprocess.run(
        [*UP, str(home)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"the disk below {home} is full, nothing was started" in refused.stderr
    assert "a bug in rover" not in refused.stderr
    (full_disk / "fill").unlink()
    stack = subprocess.Popen([*UP, str(home)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until((home / "stack.json").exists, "the stack")
    finally:
        stack.send_signal(signal.SIGTERM)
        stack.communicate(timeout=PATIENCE_S)
    assert stack.returncode == 0
