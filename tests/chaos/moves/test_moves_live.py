"""Real processes: slots move back to back while workers and masters are killed, and no update is lost; judged by the witness.

ROVER_CHAOS_MOVES chooses how many moves (100 on demand), ROVER_CHAOS_SEED whom the dice kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from outside import Hand, living, make_clicks, name_of, rover

from rover_bus.cli.connection import connect, find_stack
from rover_bus.cli.rollouts import follow_wish
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.submission import publish
from rover_bus.events.errors import Refused
from rover_bus.events.facts import SlotsMoveRequested

pytestmark = pytest.mark.chaos
MOVES = int(os.environ.get("ROVER_CHAOS_MOVES", "8"))
SEED = int(os.environ.get("ROVER_CHAOS_SEED", "1"))
ROWS = 1500 * MOVES
JOB = """
name = "{name}"
program = "dlrm"
[data]
train = "train.tsv"
batch_size = 32
epochs = 2
seed = {seed}
read_latency = "25ms"
[data.schema]
format = "criteo"
[model]
width = 4
[workers]
count = 2
[servers]
count = 2
[leases]
target = "1s"
heartbeat = "500ms"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("stack") / "state", orphan_s=5.0) as running:
        yield running


@pytest.fixture
def job(stack: RunningStack, tmp_path: Path) -> str:
    """A job that trains on made-up clicks: its name."""
    make_clicks(tmp_path, ROWS)
    name = f"moves-{secrets.token_hex(3)}"
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(name=name, seed=SEED))
    submitted = rover("submit", str(path), home=stack.home.root)
    assert submitted.returncode == 0, submitted.stderr
    return name


def come_true(true, within_s=60.0):
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.2)


class Killer(Hand):
    """Kills a worker or a master every second or two."""

    pauses_s = (1.0, 3.0)

    def strike(self) -> None:
        if rows := self.living("worker", "master"):
            row = self.chance.choice(rows)
            self.send(row["pid"], name_of(row))


async def move_back_and_forth(stack: RunningStack, job: str, count: int) -> tuple[int, list[str]]:
    """Ask for moves, one after another, until `count` are done or the job ends; return how many, and why some were not."""
    bus = await connect(find_stack(str(stack.home.root), "", ""))
    chance, done, reasons = random.Random(SEED), 0, []
    try:
        for number in range(3 * count):
            source = number % 2
            wish = SlotsMoveRequested(
                job=job, source=f"ps-{source}", target=f"ps-{1 - source}", share=chance.uniform(0.2, 1.0)
            )
            sequence = await publish(bus, wish, f"move.{secrets.token_hex(8)}")
            try:
                done += (await asyncio.wait_for(follow_wish(bus, job, sequence, lambda _: None), 60)).moves
            except Refused as refused:
                reasons.append(str(refused))
                if refused.code == "ended" or "asked to stop" in str(refused):
                    break
            if done >= count:
                break
    finally:
        await bus.close()
    return done, reasons


def witness_of(stack: RunningStack, job: str, folder: Path) -> np.ndarray:
    written = rover("witness", job, "--out", str(folder / "w.npy"), home=stack.home.root)
    assert written.returncode == 0, written.stderr
    return np.load(folder / "w.npy")


def ended(stack: RunningStack, job: str) -> bool:
    rows = rover("jobs", "-o", "json", home=stack.home.root)
    return any(row["job"] == job and row["state"] == "completed" for row in json.loads(rows.stdout or "[]"))


@pytest.mark.timeout(600)
def test_moves_back_to_back_with_kills_lose_no_update(stack: RunningStack, job: str, tmp_path: Path) -> None:
    come_true(lambda: rover("events", job, "-k", "epoch.opened", home=stack.home.root).stdout)
    with Killer(stack.home.root, job, SEED) as killer:
        done, reasons = asyncio.run(move_back_and_forth(stack, job, MOVES))
    come_true(lambda: ended(stack, job), 300.0)
    witness = witness_of(stack, job, tmp_path)
    assert witness.size == 2 * ROWS
    assert np.array_equal(witness, np.ones_like(witness)), (SEED, killer.done, reasons)
    assert done >= MOVES // 2, (done, reasons, killer.done)
    print(SEED, done, killer.done, reasons)


@pytest.mark.timeout(300)
def test_servers_come_and_go_by_hand_and_one_that_holds_nothing_may_be_killed(
    stack: RunningStack, job: str, tmp_path: Path
) -> None:
    home = stack.home.root
    come_true(lambda: rover("events", job, "-k", "epoch.opened", home=stack.home.root).stdout)
    grown = rover("scale", job, "--servers", "3", home=home)
    assert grown.returncode == 0, grown.stderr
    assert len(living(home, job, "ps")) == 3
    moved = rover("move", job, "--from", "ps-2", home=home)
    assert moved.returncode == 0, moved.stderr
    [idle] = [row for row in living(home, job, "ps") if row["index"] == 2]
    os.kill(idle["pid"], signal.SIGKILL)
    come_true(lambda: any(r["index"] == 2 and r["incarnation"] == 2 for r in living(home, job, "ps")))
    shrunk = rover("scale", job, "--servers", "1", home=home)
    assert shrunk.returncode == 0, shrunk.stderr
    come_true(lambda: len(living(home, job, "ps")) == 1)
    refused = rover("move", job, "--from", "ps-0", home=home)
    assert refused.returncode == 3
    assert "another server" in refused.stderr
    come_true(lambda: ended(stack, job), 200.0)
    witness = witness_of(stack, job, tmp_path)
    assert np.array_equal(witness, np.ones_like(witness)), np.unique(witness, return_counts=True)
