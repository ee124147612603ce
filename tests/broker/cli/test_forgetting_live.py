"""A store that is full on a real stack: what fails names the way out, `rover forget` is the way out, and files go with the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from all_rights import connect
from outside import rover
from patience import until
from told import told

from rover_bus.cli.own_broker import OwnBroker
from rover_bus.cli.stack import RunningStack
from rover_bus.events import facts, subjects
from rover_bus.events.errors import StreamFull
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec, StartFrom
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS, LOG

pytestmark = pytest.mark.broker
UID, NEXT = "0000000000a1", "0000000000b2"
T = TypeVar("T")


class Scene:
    """A stack with a small store, and jobs that are only told of."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "state"

    def on_bus(self, work: Callable[[NatsBus], Awaitable[T]]) -> T:
        async def run() -> T:
            bus = await connect(self.home)
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(run())

    def publish(self, *said: facts.JobFact) -> None:
        async def publish(bus: NatsBus) -> None:
            for number, fact in enumerate(said, start=1):
                body, headers = told(fact, number)
                await bus.append(FACTS, subjects.job_fact(fact.job, fact.kind()), body, headers=headers)

        self.on_bus(publish)

    def fill(self, job: str) -> None:
        async def append(bus: NatsBus) -> None:
            while True:
                await bus.append(LOG, subjects.job_log(job), bytes(100_000))

        with pytest.raises(StreamFull, match="rover forget JOB"):
            self.on_bus(append)

    def rover(self, *words: str) -> tuple[int, str]:
        done = rover(*words, home=self.home, cwd=self.home.parent)
        return done.returncode, done.stdout + done.stderr


def spec(name: str, store: Path, start_from: StartFrom | None = None) -> JobSpec:
    return JobSpec(
        name=name,
        program=["x"],
        data=DataSpec(train="t"),
        checkpoint=CheckpointSpec(path=str(store)),
        start_from=start_from,
    )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    # Without a Brain nothing runs: a job that is told of neither begins nor ends.
    with RunningStack(tmp_path / "state", broker=OwnBroker(max_file_store_bytes=6 << 20), brain=None):
        made = Scene(tmp_path)
        made.publish(
            facts.JobSubmitted(job="old", uid=UID, spec=spec("old", tmp_path / "store")),
            facts.JobEnded(job="old", state="completed"),
        )
        yield made


def keep_files(scene: Scene, tmp_path: Path) -> tuple[list[Path], Path]:
    """What a host keeps of the job, and a checkpoint on the user's storage."""
    node = scene.home / "node"
    kept = [node / "parts" / "old" / "part-0.1.npz", node / "logs" / f"old.{UID}" / "worker-0.1.log"]
    stored = tmp_path / "store" / f"old.{UID}" / "manifests" / "1"
    for path in (*kept, stored):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return kept, stored


def test_a_full_store_says_how_to_make_room_and_forgetting_a_job_does(scene: Scene, tmp_path: Path) -> None:
    kept, stored = keep_files(scene, tmp_path)
    assert "(0%)" in scene.rover("doctor")[1] or "(1%)" in scene.rover("doctor")[1]
    scene.fill("old")
    code, said = scene.rover("doctor")
    assert code == 1
    assert "rover forget JOB" in said
    assert "ended first: old" in said
    assert scene.rover("forget", "old") == (0, "old: forgotten\n")
    assert "rover forget JOB" not in scene.rover("doctor")[1]
    assert "old" not in scene.rover("jobs")[1]
    until(lambda: not any(path.exists() for path in kept), "the host's files are gone")
    assert stored.exists()
    scene.publish(facts.JobSubmitted(job="old", uid=NEXT, spec=spec("old", tmp_path / "store")))
    assert "old" in scene.rover("jobs")[1]


def test_checkpoints_go_when_asked_and_not_while_a_job_starts_from_them(scene: Scene, tmp_path: Path) -> None:
    _, stored = keep_files(scene, tmp_path)
    origin = StartFrom(job="old", uid=UID, timeline=1, generation=0, cut=1, path="p")
    scene.publish(facts.JobSubmitted(job="next", uid=NEXT, spec=spec("next", tmp_path / "store", origin)))
    code, said = scene.rover("forget", "old", "--checkpoints")
    assert (code, "'next' starts from a checkpoint" in said) == (3, True)
    scene.publish(facts.JobEnded(job="next", state="completed"))
    assert scene.rover("forget", "old", "--checkpoints") == (0, "old: forgotten, 1 files of checkpoints\n")
    assert not stored.exists()


def test_a_job_that_has_not_ended_is_not_forgotten(scene: Scene, tmp_path: Path) -> None:
    scene.publish(facts.JobSubmitted(job="next", uid=NEXT, spec=spec("next", tmp_path / "store")))
    code, said = scene.rover("forget", "next")
    assert (code, "rover cancel next" in said) == (3, True)
    assert scene.rover("forget", "nosuch")[0] == 2
