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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outside import Hand, make_clicks, name_of, rover, seeds
from patience import PATIENCE_S

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


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clicks(tmp_path_factory.mktemp("clicks"), ROWS, 500)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(
        tmp_path_factory.mktemp("stack") / "state", settings=["hosts.orphan_after=5s"]
    ) as running:
        yield running


class Breaker(Hand):
    """Kills and pauses workers and masters, and restarts the broker."""

    def __init__(self, stack: RunningStack, job: str, seed: int) -> None:
        super().__init__(stack.home.root, job, seed)
        self.stack = stack

    def strike(self) -> None:
        what = self.chance.choice(["kill", "kill", "kill", "pause", "pause", "broker"])
        if what == "broker":
            if self.done.count("broker") < 2:
                self.stack.restart_broker()
                self.done.append("broker")
            return
        rows = self.living("worker", "master")
        if not rows or len(self.done) > 12:
            return
        row = self.chance.choice(rows)
        name = f"{what} {name_of(row)}"
        if what == "kill":
            self.send(row["pid"], name)
        elif self.send(row["pid"], name, signal.SIGSTOP):
            time.sleep(self.chance.uniform(0.2, 4.0))
            self.send(row["pid"], f"on {name_of(row)}", signal.SIGCONT)


@pytest.mark.parametrize("seed", seeds(FIRST_SEED, RUNS, soon=6))
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
    with Breaker(stack, name, seed) as hand:
        ran = rover("submit", str(job), "--wait", "--json", home=stack.home.root, timeout_s=PATIENCE_S)
    assert ran.returncode == 0, f"{hand.done}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert result["state"] == "completed", (hand.done, result)
    assert result["samples_total"] == ROWS * EPOCHS
    assert result["samples_committed"] == ROWS * EPOCHS
    assert result["samples_dead_lettered"] == 0
    written = rover("witness", name, "--out", str(tmp_path / "w.npy"), home=stack.home.root)
    assert written.returncode == 0, written.stderr
    witness = np.load(tmp_path / "w.npy")
    assert witness.size == ROWS * EPOCHS
    assert np.array_equal(witness, np.ones_like(witness)), (hand.done, np.unique(witness, return_counts=True))
    print(seed, hand.done, {k: result[k] for k in ("samples_retrained", "updates_ignored", "workers_lost")})
