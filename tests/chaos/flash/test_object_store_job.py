"""A job whose checkpoints go to an object store (a real S3 server on loopback): its server and its memory are lost, it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rover_bus.cli.stack import RunningStack
from rover_bus.flash.places import host_root

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(300)]
ROWS, EPOCHS, PATIENCE_S = 6_000, 3, 120.0
JOB = f"""
name = "ads"
[data]
train = "t.csv"
batch_size = 32
epochs = {EPOCHS}
read_latency = "20ms"
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = 1
[servers]
count = 1
[leases]
target = "500ms"
[checkpoint]
every = "2s"
path = "s3://checkpoints/team"
"""


@pytest.fixture
def server() -> Any:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: _listens(port), "the store listens")
            url = f"http://127.0.0.1:{port}"
            with urllib.request.urlopen(urllib.request.Request(f"{url}/checkpoints", method="PUT")):
                yield url
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.2)


def test_a_job_comes_back_from_an_object_store(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "ROVER_HOME": str(tmp_path / "a"),
    }.items():
        monkeypatch.setenv(name, value)

    def rover(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rover_bus.cli.entry", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            timeout=120,
        )

    def facts(kind: str) -> list[dict[str, Any]]:
        done = rover("events", "ads", "-k", kind, "--json")
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    rows = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(ROWS))
    (tmp_path / "t.csv").write_text("label,user,item\n" + rows)
    (tmp_path / "job.toml").write_text(JOB)
    with RunningStack(tmp_path / "a", host="a", disposable=True) as stack:
        submitted = rover("submit", "job.toml")
        assert submitted.returncode == 0, submitted.stderr
        until(lambda: facts("checkpoint.ready"), "a checkpoint in the store")
        listed: list[dict[str, Any]] = json.loads(rover("members", "ads", "-o", "json").stdout)
        [pid] = [row["pid"] for row in listed if row["role"] == "ps"]
        memory = host_root(stack.home.node)
        for slots in memory.iterdir():
            shutil.rmtree(slots)
        os.kill(pid, signal.SIGKILL)
        until(lambda: facts("job.ended"), "the end")
        assert facts("job.ended")[0]["state"] == "completed"
        assert {each["source"] for each in facts("server.restored")} == {"storage"}
        counted = json.loads(rover("witness", "ads", "--json").stdout)
        assert (counted["applied"], counted["missing"], counted["duplicated"]) == (ROWS * EPOCHS, 0, 0)
    kept = json.loads(rover("checkpoint", "list", "--storage", "s3://checkpoints/team", "-o", "json").stdout)
    assert 1 <= len(kept) <= 4
    assert rover("checkpoint", "verify", "ads", "--storage", "s3://checkpoints/team").returncode == 0
