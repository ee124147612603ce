"""Mutated facts, and a leadership key that stays for ever, on a real stack under a job that trains: it is finished in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from all_rights import connect
from mutants import mutant
from small_job import NAME, SmallJob

from rover_bus.cli.stack import Here, RunningStack
from rover_bus.events.bus import Stored
from rover_bus.events.codec import type_of
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS, LEADERS
from rover_bus.flash.places import host_root

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.broker,
    pytest.mark.foreign_facts,
    pytest.mark.timeout(600),
]
SEED, MUTANTS, EVERY_S = 13, 50, 0.1
HOST = "here"
LISTINGS = (
    ("jobs",),
    ("top", "--once"),
    ("events",),
    ("history",),
    ("members", NAME),
    ("plan", "list", NAME),
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SmallJob]:
    with RunningStack(tmp_path / "state", here=Here(HOST), disposable=True):
        job = SmallJob(
            folder=tmp_path,
            home=tmp_path / "state",
            rows=4_000,
            epochs=4,
            workers=2,
            servers=1,
            checkpoint='every = "2s"',
        )
        job.submit()
        yield job
    assert not host_root(tmp_path / "state" / "node").exists()


async def strike(bus: NatsBus) -> None:
    """Store mutants of what has been stored so far, as they come."""
    chance, seen = random.Random(SEED), dict[str, Stored]()
    for _ in range(MUTANTS):
        async for stored in bus.read(FACTS, "rover.>"):
            if tag := type_of(stored.body):
                seen[tag] = stored
        made = mutant(chance, seen, NAME, HOST)
        await bus.append(FACTS, made.subject, made.body, headers=made.headers)
        await asyncio.sleep(EVERY_S)


def test_a_job_into_whose_facts_mutants_are_stored_is_finished_and_listed_meanwhile(job: SmallJob) -> None:
    print(f"seed {SEED}")
    job.until(lambda: job.facts("epoch.opened"), "the first epoch")

    async def visit() -> None:
        bus = await connect(job.home)
        try:
            await strike(bus)
        finally:
            await bus.close()

    asyncio.run(visit())
    for words in LISTINGS:
        done = job.rover(*words)
        assert done.returncode == 0, (words, done.stderr)
    assert "passed over by every reader" in job.rover("doctor").stdout
    job.complete()


@pytest.mark.parametrize("value", [b"\x00junk", b'{"holder": "somebody", "term": 7, "timeline": 1}'])
def test_a_leadership_key_of_a_stranger_holds_a_job_up_for_seconds_only(job: SmallJob, value: bytes) -> None:
    job.until(lambda: job.facts("epoch.opened"), "the first epoch")

    async def visit() -> None:
        bus = await connect(job.home)
        try:
            await bus.put(LEADERS, NAME, value)
        finally:
            await bus.close()

    asyncio.run(visit())
    assert "somebody" not in job.rover("jobs").stdout
    job.complete()
