"""S29 with real processes: a daemon gets SIGTERM while its host trains.

Its worker part-commits, a last cut is taken and stored, its server leaves after it and goes on elsewhere from that cut.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rover_bus.cli.stack import RunningStack

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(300)]
ROWS, EPOCHS, PATIENCE_S = 8_000, 3, 120.0
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
count = 2
[leases]
target = "500ms"
heartbeat = "1s"
[checkpoint]
every = "10m"  # but for the first one there is no cut in time
path = "store"
"""


def test_a_host_that_is_told_to_go_leaves_a_cut_behind(tmp_path: Path) -> None:
    def rover(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        return subprocess.run(
            [sys.executable, "-m", "rover_bus.cli.entry", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            timeout=120,
            env=environment | {"ROVER_HOME": str(tmp_path / "a")},
        )

    def facts(kind: str) -> list[dict[str, Any]]:
        done = rover("events", "ads", "-k", kind, "--json")
        return [json.loads(line)["body"] for line in done.stdout.splitlines()]

    def until(condition: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, (
                f"never came: {what}; {rover('events', 'ads', '-n', '25').stdout}"
            )
            time.sleep(0.3)

    rows = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(ROWS))
    (tmp_path / "t.csv").write_text("label,user,item\n" + rows)
    (tmp_path / "job.toml").write_text(JOB)
    with ExitStack() as ends:
        first = ends.enter_context(RunningStack(tmp_path / "a", host="a", disposable=True))
        second = RunningStack(
            tmp_path / "b",
            url=first.url,
            secret_file=first.secret_file,
            host="b",
            disposable=True,
            brain=False,
        )
        ends.enter_context(second)
        assert rover("submit", "job.toml").returncode == 0
        until(lambda: facts("checkpoint.ready"), "the first cut in storage")
        until(lambda: len(facts("job.reported")) > 0, "some progress")
        os.kill(second.pids()["daemon"], signal.SIGTERM)
        second.services.pop("daemon").stop(60.0)
        until(lambda: facts("server.restored"), "its server serves elsewhere")
        assert [each["cut"] for each in facts("checkpoint.ready")][:2] == [1, 2]
        assert {(each["member"]["index"], each["cut"]) for each in facts("server.restored")} == {(1, 2)}
        until(lambda: facts("job.ended"), "the end")
        [ended] = facts("job.ended")
        assert ended["state"] == "completed"
        rewound = facts("ledger.rewound")[-1]
        assert rewound["cut"] == 2
        assert rewound["samples_again"] < ROWS * EPOCHS / 4
        assert {each["reason"] for each in facts("members.displaced")} >= {"leaving"}
        counted = json.loads(rover("witness", "ads", "--json").stdout)
        assert (counted["applied"], counted["missing"], counted["duplicated"]) == (ROWS * EPOCHS, 0, 0)
