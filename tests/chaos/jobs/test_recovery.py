"""Real processes, real kills, cuts and restores: the final tables equal, to the bit, one application of every sample.

A job of additive integers (counting.py) trains while somebody kills workers, servers, masters, the daemon, or all at once, at
moments drawn from a seed. 10 histories here; ROVER_CHAOS_HISTORIES and ROVER_CHAOS_SEED choose how many, and from which seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rover_bus.cli.stack import RunningStack

sys.path.insert(0, str(Path(__file__).parent))
from counting import expected

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]
HISTORIES = int(os.environ.get("ROVER_CHAOS_HISTORIES", "10"))
FIRST_SEED = int(os.environ.get("ROVER_CHAOS_SEED", "1"))
ROWS, EPOCHS, BATCH = 16_000, 2, 64
MOST_BLOWS = 12
JOB = """
name = "{name}"
program = ["{python}", "{program}"]
[data]
train = "train.tsv"
batch_size = {batch}
epochs = {epochs}
seed = {seed}
read_latency = "15ms"
[data.schema]
format = "criteo"
[workers]
count = {workers}
[servers]
count = {servers}
[leases]
target = "500ms"
heartbeat = "500ms"
[checkpoint]
every = "{every}"
persist = {persist}
"""


def rover(home: Path, *arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
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
        [sys.executable, str(generator), "train.tsv", "eval.tsv", "--rows", str(ROWS), "--eval-rows", "10"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("stack") / "state", orphan_s=20.0) as running:
        yield running


class Hand(threading.Thread):
    """Somebody who kills what a seed says until he is told to stop."""

    def __init__(self, stack: RunningStack, job: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.stack, self.job, self.chance = stack, job, random.Random(seed)
        self.over = threading.Event()
        self.done: list[str] = []

    def run(self) -> None:
        while not self.over.wait(self.chance.uniform(0.3, 3.0)) and len(self.done) < MOST_BLOWS:
            what = self.chance.choice(["worker", "ps", "ps", "ps", "master", "daemon", "all"])
            if what == "daemon":
                self._kill(self.stack.pids().get("daemon", 0), "daemon")
            else:
                self._strike(what)

    def _strike(self, what: str) -> None:
        listed = rover(self.stack.home.root, "members", self.job, "-o", "json")
        rows = (
            [row for row in json.loads(listed.stdout or "[]") if row["pid"]] if not listed.returncode else []
        )
        if what != "all":
            rows = [row for row in rows if row["role"] == what]
            rows = [self.chance.choice(rows)] if rows else []
        for row in rows:
            self._kill(row["pid"], f"{row['role']}-{row['index']}.{row['incarnation']}")

    def _kill(self, pid: int, name: str) -> None:
        try:
            if pid:
                os.kill(pid, signal.SIGKILL)
                self.done.append(name)
        except ProcessLookupError:
            return


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES))
def test_the_tables_hold_every_sample_once_whatever_is_killed(
    seed: int, stack: RunningStack, clicks: Path, tmp_path: Path
) -> None:
    chance = random.Random(f"{seed}/job")
    name = f"history-{seed}"
    job = clicks / f"{name}.toml"
    job.write_text(
        JOB.format(
            name=name,
            python=sys.executable,
            program=Path(__file__).with_name("counting.py"),
            batch=BATCH,
            epochs=EPOCHS,
            seed=seed,
            workers=chance.randint(2, 3),
            servers=chance.randint(1, 3),
            every=chance.choice(["300ms", "1s"]),
            persist="false",
        )
    )
    hand = Hand(stack, name, seed)
    hand.start()
    try:
        ran = rover(stack.home.root, "submit", str(job), "--wait", "--json", timeout_s=300)
    finally:
        hand.over.set()
        hand.join()
    assert ran.returncode == 0, f"{hand.done}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["samples_committed"] == ROWS * EPOCHS
    exported = rover(stack.home.root, "export", name, str(tmp_path / "model.npz"))
    assert exported.returncode == 0, exported.stderr
    with np.load(tmp_path / "model.npz") as model:
        for table, wanted in expected(ROWS, EPOCHS).items():
            held = np.zeros_like(wanted)
            held[model[f"{table}.ids"]] = model[table]
            assert np.array_equal(held, wanted), (
                table,
                hand.done,
                np.flatnonzero((held != wanted).any(1))[:9],
            )
    print(seed, hand.done, {k: result[k] for k in ("servers_lost", "samples_retrained", "updates_ignored")})
