"""Real processes: slots move back to back while workers and masters are killed, and no update is lost; judged by the witness.

ROVER_CHAOS_MOVES chooses how many moves (100 on demand), ROVER_CHAOS_SEED whom the dice kill.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gated import Gate
from outside import Hand, living, make_clicks, name_of, rover
from patience import PATIENCE_S, until

from rover_bus.cli.connection import connect, find_stack
from rover_bus.cli.rollouts import follow_rollout
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.submission import publish
from rover_bus.events.errors import Refused
from rover_bus.events.facts import SlotsMoveRequested

pytestmark = pytest.mark.chaos
KILLS = 4
MOVES = int(os.environ.get("ROVER_CHAOS_MOVES", "8"))
LOOK_S = 0.2
SEED = int(os.environ.get("ROVER_CHAOS_SEED", "1"))
ROWS = 6000
JOB = """
name = "{name}"
program = {program}
[data]
train = "train.tsv"
batch_size = 32
epochs = 2
seed = {seed}
[data.schema]
format = "criteo"
[model]
width = 4
[workers]
count = 2
[servers]
count = 2
[moves]
first_begins = false
[leases]
target = "1s"
heartbeat = "500ms"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(
        tmp_path_factory.mktemp("stack") / "state", settings=["hosts.orphan_after=5s"]
    ) as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def job(stack: RunningStack, gate: Gate, tmp_path: Path) -> str:
    """A job that trains on made-up clicks until the gate opens: its name."""
    make_clicks(tmp_path, ROWS)
    name = f"moves-{secrets.token_hex(3)}"
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(name=name, program=gate.program(), seed=SEED))
    submitted = rover("submit", str(path), home=stack.home.root)
    assert submitted.returncode == 0, submitted.stderr
    return name


def trains(stack: RunningStack, job: str) -> None:
    until(lambda: rover("events", job, "-k", "epoch.opened", home=stack.home.root).stdout, "an epoch", LOOK_S)


class Killer(Hand):
    """Kills a worker or a master every second or two."""

    pauses_s = (1.0, 3.0)

    def strike(self) -> None:
        if rows := self.living("worker", "master"):
            row = self.chance.choice(rows)
            self.send(row["pid"], name_of(row))


async def move_back_and_forth(stack: RunningStack, job: str, kills: list[str]) -> tuple[int, list[str]]:
    """Ask for moves, one after another, until enough are done amid enough kills; return how many, and why some were not."""
    bus = await connect(find_stack(str(stack.home.root), "", ""))
    chance, done, reasons = random.Random(SEED), 0, []
    try:
        for number in itertools.count():
            source = number % 2
            wish = SlotsMoveRequested(
                job=job, source=f"ps-{source}", target=f"ps-{1 - source}", share=chance.uniform(0.2, 1.0)
            )
            sequence = await publish(bus, wish, f"move.{secrets.token_hex(8)}")
            try:
                done += (
                    await asyncio.wait_for(follow_rollout(bus, job, sequence, lambda _: None), PATIENCE_S)
                ).moves
            except Refused as refused:
                reasons.append(str(refused))
            if done >= MOVES and len(kills) >= KILLS:
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


def test_moves_back_to_back_with_kills_lose_no_update(
    stack: RunningStack, job: str, gate: Gate, tmp_path: Path
) -> None:
    trains(stack, job)
    with Killer(stack.home.root, job, SEED) as killer:
        done, reasons = asyncio.run(move_back_and_forth(stack, job, killer.done))
    gate.open()
    until(lambda: ended(stack, job), "the end", LOOK_S)
    witness = witness_of(stack, job, tmp_path)
    assert witness.size == 2 * ROWS
    assert np.array_equal(witness, np.ones_like(witness)), (SEED, killer.done, reasons)
    print(SEED, done, killer.done, reasons)


def test_servers_come_and_go_by_hand_and_one_that_holds_nothing_may_be_killed(
    stack: RunningStack, job: str, gate: Gate, tmp_path: Path
) -> None:
    home = stack.home.root
    trains(stack, job)
    grown = rover("scale", job, "--servers", "3", home=home)
    assert grown.returncode == 0, grown.stderr
    assert len(living(home, job, "ps")) == 3
    moved = rover("move", job, "--from", "ps-2", home=home)
    assert moved.returncode == 0, moved.stderr
    [idle] = [row for row in living(home, job, "ps") if row["index"] == 2]
    os.kill(idle["pid"], signal.SIGKILL)
    until(
        lambda: any((row["index"], row["incarnation"]) == (2, 2) for row in living(home, job, "ps")),
        "its successor",
        LOOK_S,
    )
    shrunk = rover("scale", job, "--servers", "1", home=home)
    assert shrunk.returncode == 0, shrunk.stderr
    until(lambda: len(living(home, job, "ps")) == 1, "one server", LOOK_S)
    refused = rover("move", job, "--from", "ps-0", home=home)
    assert refused.returncode == 3
    assert "another server" in refused.stderr
    gate.open()
    until(lambda: ended(stack, job), "the end", LOOK_S)
    witness = witness_of(stack, job, tmp_path)
    assert np.array_equal(witness, np.ones_like(witness)), np.unique(witness, return_counts=True)
