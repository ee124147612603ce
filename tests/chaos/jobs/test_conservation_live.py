"""Real processes under random SIGKILL, SIGSTOP and broker restarts: every sample is applied exactly once, judged by the witness.

Everything is done from outside, as somebody else would: jobs are submitted and judged with `rover`, victims are the pids that
`rover members -o json` lists. ROVER_CHAOS_RUNS and ROVER_CHAOS_SEED choose how many runs and from which seed; a failing seed is
in the name of its test.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.chaos
RUNS = int(os.environ.get("ROVER_CHAOS_RUNS", "20"))
FIRST_SEED = int(os.environ.get("ROVER_CHAOS_SEED", "1"))
ROWS, EPOCHS, BATCH = 12_000, 2, 64
JOB = """
name = "{name}"
program = "dlrm"
[data]
train = "train.tsv"
evaluate = "eval.tsv"
batch_size = {batch}
epochs = {epochs}
seed = {seed}
read_latency = "15ms"
[data.schema]
format = "criteo"
[model]
width = 4
[workers]
count = {workers}
[servers]
count = {servers}
[leases]
target = "1s"
heartbeat = "500ms"
"""


def rover(home: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    return subprocess.run(
        [sys.executable, "-m", "rover_bus.cli.entry", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**environment, "ROVER_HOME": str(home)},
    )


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    generator = Path(__file__).parents[3] / "examples" / "clicks.py"
    subprocess.run(
        [sys.executable, str(generator), "train.tsv", "eval.tsv", "--rows", str(ROWS), "--eval-rows", "500"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("stack") / "state", orphan_s=5.0) as running:
        yield running


class Hand(threading.Thread):
    """Somebody who breaks things at random moments until he is told to stop."""

    def __init__(self, stack: RunningStack, job: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.stack, self.job, self.chance = stack, job, random.Random(seed)
        self.over = threading.Event()
        self.done: list[str] = []

    def run(self) -> None:
        # A submission that finds no broker is refused at once, and rightly: begin when the job is known.
        while not self.over.wait(0.1) and rover(self.stack.home.root, "members", self.job).returncode:
            pass
        while not self.over.wait(self.chance.uniform(0.3, 2.5)):
            what = self.chance.choice(["kill", "kill", "kill", "pause", "pause", "broker"])
            if what == "broker" and self.done.count("broker") < 2:
                self.stack.restart_broker()
                self.done.append("broker")
            elif what != "broker":
                self._strike(what)

    def _strike(self, what: str) -> None:
        listed = rover(self.stack.home.root, "members", self.job, "-o", "json")
        if listed.returncode:
            return
        rows = [
            row for row in json.loads(listed.stdout) if row["pid"] and row["role"] in ("worker", "master")
        ]
        if not rows or len(self.done) > 12:
            return
        row = self.chance.choice(rows)
        try:
            os.kill(row["pid"], signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            self.done.append(f"{what} {row['role']}-{row['index']}.{row['incarnation']}")
            if what == "pause":
                time.sleep(self.chance.uniform(0.2, 4.0))
                os.kill(row["pid"], signal.SIGCONT)
        except ProcessLookupError:
            return


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
def test_every_sample_is_applied_once_whatever_is_killed(
    seed: int, stack: RunningStack, clicks: Path, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    name = f"run-{seed}"
    job = clicks / f"{name}.toml"
    job.write_text(
        JOB.format(
            name=name,
            batch=BATCH,
            epochs=EPOCHS,
            seed=seed,
            workers=chance.randint(2, 3),
            servers=chance.randint(1, 2),
        )
    )
    hand = Hand(stack, name, seed)
    hand.start()
    try:
        ran = rover(stack.home.root, "submit", str(job), "--wait", "--json", timeout_s=150)
    finally:
        hand.over.set()
        hand.join()
    assert ran.returncode == 0, f"{hand.done}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert result["state"] == "completed", (hand.done, result)
    assert result["samples_total"] == ROWS * EPOCHS
    assert result["samples_committed"] == ROWS * EPOCHS
    assert result["samples_dead_lettered"] == 0
    written = rover(stack.home.root, "witness", name, "--out", str(tmp_path / "w.npy"))
    assert written.returncode == 0, written.stderr
    witness = np.load(tmp_path / "w.npy")
    assert witness.size == ROWS * EPOCHS
    assert np.array_equal(witness, np.ones_like(witness)), (hand.done, np.unique(witness, return_counts=True))
    print(seed, hand.done, {k: result[k] for k in ("samples_retrained", "updates_ignored", "workers_lost")})
