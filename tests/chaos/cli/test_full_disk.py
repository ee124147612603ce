"""A job whose broker's disk fills up: one clear line, commits wait, and when there is room it goes on and loses nothing (P21)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated import Gate
from outside import rover
from patience import PATIENCE_S, until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root"),
]
ROVER = [sys.executable, "-m", "rover_bus.cli.entry"]
JOB = """
name = "tight"
program = {program}
[data]
train = "t.csv"
batch_size = 16
epochs = 1
schema = {{ label = "label", categorical = ["user"] }}
[workers]
count = 2
[servers]
count = 1
[leases]
target = "200ms"
heartbeat = "200ms"
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def wait_for(text: str, file: Path) -> None:
    until(lambda: file.exists() and text in file.read_text(), f"{text!r} in {file}")


def test_a_full_disk_is_named_and_costs_nothing(small_disk: Path, tmp_path: Path) -> None:
    rows = "".join(f"{n % 2},u{n % 97}\n" for n in range(30_000))
    (tmp_path / "t.csv").write_text("label,user\n" + rows)
    gate = Gate(tmp_path / "gate")
    (tmp_path / "job.toml").write_text(JOB.format(program=gate.program()))
    said = tmp_path / "up.log"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    environment["ROVER_HOME"] = str(small_disk / "state")
    with open(said, "w") as log:
        stack = subprocess.Popen([*ROVER, "up"], env=environment, stdout=log, stderr=log)
    try:
        wait_for("next", said)
        job = subprocess.Popen(
            [*ROVER, "submit", str(tmp_path / "job.toml"), "--wait", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        home = small_disk / "state"
        until(lambda: rover("events", "tight", "-k", "epoch.opened", home=home).stdout, "an epoch")
        broker = home / "broker" / "nats-server.log"
        broker.unlink()  # a rotation: what the server says from here on is found all the same
        wait_for("re-opened", broker)
        filler = small_disk / "fill"
        with open(filler, "wb") as file:
            try:
                while True:
                    os.write(file.fileno(), bytes(1 << 16))
            except OSError:
                pass
        wait_for("is full", said)
        filler.unlink()
        wait_for("room again", said)
        gate.open()
        printed, _ = job.communicate(timeout=PATIENCE_S)
        result = json.loads(printed.splitlines()[-1])
    finally:
        stack.send_signal(signal.SIGTERM)
        stack.wait(timeout=PATIENCE_S)
    assert result["state"] == "completed", result
    assert result["samples_committed"] == result["samples_total"] == 30_000
    assert result["samples_duplicated"] == 0
