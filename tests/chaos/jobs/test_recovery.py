"""Real processes, real kills, cuts and restores: the final tables equal, to the bit, one application of every sample.

A job of additive integers (counting.py) trains while somebody kills workers, servers, masters, the daemon, or all at once, at
moments drawn from a seed. 10 histories here; ROVER_CHAOS_HISTORIES and ROVER_CHAOS_SEED choose how many, and from which seed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import counting
import numpy as np
import pytest
from outside import Hand, make_clicks, name_of, rover, seeds
from patience import PATIENCE_S

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.chaos
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


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clicks(tmp_path_factory.mktemp("clicks"), ROWS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(
        tmp_path_factory.mktemp("stack") / "state", settings=["hosts.orphan_after=20s"]
    ) as running:
        yield running


class Killer(Hand):
    """Kills one of a role, the daemon, or everybody at once."""

    pauses_s = (0.3, 3.0)

    def __init__(self, stack: RunningStack, job: str, seed: int) -> None:
        super().__init__(stack.home.root, job, seed)
        self.stack = stack

    def strike(self) -> None:
        if len(self.done) >= MOST_BLOWS:
            return
        what = self.chance.choice(["worker", "ps", "ps", "ps", "master", "daemon", "all"])
        if what == "daemon":
            self.send(self.stack.pids().get("daemon", 0), "daemon")
            return
        rows = self.living() if what == "all" else self.living(what)
        for row in rows if what == "all" else rows and [self.chance.choice(rows)]:
            self.send(row["pid"], name_of(row))


@pytest.mark.parametrize("seed", seeds(FIRST_SEED, HISTORIES, soon=4))
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
            program=counting.__file__,
            batch=BATCH,
            epochs=EPOCHS,
            seed=seed,
            workers=chance.randint(2, 3),
            servers=chance.randint(1, 3),
            every=chance.choice(["300ms", "1s"]),
            persist="false",
        )
    )
    with Killer(stack, name, seed) as hand:
        ran = rover("submit", str(job), "--wait", "--json", home=stack.home.root, timeout_s=PATIENCE_S)
    assert ran.returncode == 0, f"{hand.done}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["samples_committed"] == ROWS * EPOCHS
    exported = rover("export", name, str(tmp_path / "model.npz"), home=stack.home.root)
    assert exported.returncode == 0, exported.stderr
    with np.load(tmp_path / "model.npz") as model:
        for table, wanted in counting.expected(ROWS, EPOCHS).items():
            held = np.zeros_like(wanted)
            held[model[f"{table}.ids"]] = model[table]
            assert np.array_equal(held, wanted), (
                table,
                hand.done,
                np.flatnonzero((held != wanted).any(1))[:9],
            )
    print(seed, hand.done, {k: result[k] for k in ("servers_lost", "samples_retrained", "updates_ignored")})
