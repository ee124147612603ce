"""Three hosts keep parity of each other's parts; one is lost with its memory: its part is rebuilt, samples count once (P13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rover_bus.cli.stack import RunningStack

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(300)]
ROWS, EPOCHS, PATIENCE_S = 12_000, 3, 120.0
JOB = f"""
name = "ads"
[data]
train = "t.csv"
batch_size = 32
epochs = {EPOCHS}
read_latency = "20ms"
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = 2
[servers]
count = 3
[leases]
target = "500ms"
heartbeat = "400ms"
[checkpoint]
every = "2s"
parity = 1
persist = false  # nothing but parity can help
"""


class Cluster:
    """Three hosts: each a daemon with memory of its own; the first one also has the broker and the Brain."""

    def __init__(self, directory: Path, ends: ExitStack) -> None:
        self.directory = directory
        first = ends.enter_context(RunningStack(directory / "a", host="a", disposable=True))
        self.hosts = {"a": first}
        for host in ("b", "c"):
            stack = RunningStack(
                directory / host,
                url=first.url,
                secret_file=first.secret_file,
                host=host,
                disposable=True,
                brain=False,
            )
            self.hosts[host] = ends.enter_context(stack)

    def rover(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        return subprocess.run(
            [sys.executable, "-m", "rover_bus.cli.entry", *arguments],
            capture_output=True,
            text=True,
            cwd=self.directory,
            check=False,
            timeout=120,
            env=environment | {"ROVER_HOME": str(self.directory / "a")},
        )

    def facts(self, kind: str) -> list[dict[str, Any]]:
        done = self.rover("events", "ads", "-k", kind, "--json")
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    def until(self, condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, (
                f"never came: {what}; {self.rover('events', 'ads', '-n', '25').stdout}"
            )
            time.sleep(0.3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as ends:
        yield Cluster(tmp_path, ends)


def test_a_lost_host_s_part_is_rebuilt_from_the_others_while_they_serve(cluster: Cluster) -> None:
    rows = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(ROWS))
    (cluster.directory / "t.csv").write_text("label,user,item\n" + rows)
    (cluster.directory / "job.toml").write_text(JOB)
    submitted = cluster.rover("submit", "job.toml")
    assert submitted.returncode == 0, submitted.stderr
    cluster.until(lambda: cluster.facts("checkpoint.redundant"), "a redundant cut")
    lost = cluster.hosts["b"]
    lost.lose_host()
    cluster.until(lambda: cluster.facts("server.restored"), "a server is restored")
    restored = cluster.facts("server.restored")
    assert {each["source"] for each in restored} == {"parity"}, restored
    assert {each["member"]["index"] for each in restored} == {1}
    assert [each["host"] for each in cluster.facts("members.displaced")] == ["b"]
    cluster.until(lambda: cluster.facts("job.ended"), "the end")
    assert cluster.facts("job.ended")[0]["state"] == "completed"
    counted = json.loads(cluster.rover("witness", "ads", "--json").stdout)
    assert (counted["applied"], counted["missing"], counted["duplicated"]) == (ROWS * EPOCHS, 0, 0)
