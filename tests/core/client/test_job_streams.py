"""A training loop on partitions that grow, without a bus; and what it tells of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rover_bus.client as rover
from rover_bus.client.environment import Environment
from rover_bus.client.figures import Figures
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.reader import Reader
from rover_bus.client.spans import Records
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import InputError
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.profiles import WorkerProfile

SCHEMA = rover.Schema(dense=("age",), categorical=("user",))


def lines(first: int, end: int) -> str:
    return "".join(f"{row % 2},{row},user{row}\n" for row in range(first, end))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "stream"
    made.mkdir()
    (made / "a").write_text("label,age,user\n" + lines(0, 25))
    (made / "b").write_text("label,age,user\n")
    return made


@pytest.fixture
def summary(tmp_path: Path) -> Path:
    return tmp_path / "summary.json"


def join(tmp_path: Path, summary: Path, **data: Any) -> rover.Job:
    spec = JobSpec(name="plain", program=["x"], data=DataSpec(train="stream", batch_size=10, **data))
    file = tmp_path / "spec.json"
    file.write_bytes(msgspec.json.encode(spec))
    return rover.join(ROVER_SPEC_FILE=str(file), ROVER_SUMMARY_FILE=str(summary))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_s9_alone_a_loop_reads_what_is_there_until_every_partition_is_sealed(
    directory: Path, tmp_path: Path, summary: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    with join(tmp_path, summary) as job:
        for batch in job.batches(rover.PartitionLog(directory, SCHEMA)):
            seen.append((Path(batch.file).name, int(batch.positions[0]), len(batch)))
            assert batch.number == len(seen) - 1
            if len(seen) == 3:  # a is dry: b goes on
                append(directory / "b", lines(0, 12) + "?,1,broken\n" + lines(13, 20))
                (directory / "b.sealed").touch()
            if len(seen) == 5:
                append(directory / "a", lines(25, 29))
                (directory / "a.sealed").touch()
    said = msgspec.json.decode(summary.read_bytes())
    assert sum(count for _, _, count in seen) == 29 + 19
    assert [first for name, first, _ in seen if name == "a"] == [0, 10, 20, 25]
    assert said["state"] == "completed"
    assert (said["samples_total"], said["samples_committed"], said["samples_dead_lettered"]) == (49, 48, 1)
    assert said["samples_duplicated"] is None, "there is no witness without a total"


def test_a_stream_that_is_left_before_its_seals_is_not_completed(
    directory: Path, tmp_path: Path, summary: Path
) -> None:
    with join(tmp_path, summary) as job:
        for batch in job.batches(rover.PartitionLog(directory, SCHEMA)):
            if batch.number == 2:
                threading.Timer(0.1, job.drain).start()  # while the loop waits for more
    said = msgspec.json.decode(summary.read_bytes())
    assert said["state"] == "stopped"
    assert said["samples_committed"] == 25


def test_a_partition_that_is_harmed_while_the_loop_waits_ends_it_by_name(
    directory: Path, tmp_path: Path, summary: Path
) -> None:
    with pytest.raises(InputError, match="stream/a"), join(tmp_path, summary) as job:  # noqa: PT012
        for batch in job.batches(rover.PartitionLog(directory, SCHEMA)):
            if batch.number == 2:
                (directory / "a").write_text("")
    assert "rover-reader" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_stops_early_leaves_no_thread_waiting_for_rows(directory: Path) -> None:
    with rover.join() as job:
        for batch in job.batches(rover.PartitionLog(directory, SCHEMA), batch_size=10):
            if batch.number == 1:
                break
    assert "rover-reader" not in {thread.name for thread in threading.enumerate()}


class Given:
    """Assignments that are known beforehand."""

    def __init__(self, *assigned: Assigned) -> None:
        self._assigned = list(assigned)

    def take(self, cancelled: Callable[[], bool]) -> Assigned | None:
        return self._assigned.pop(0) if self._assigned else None

    def holds(self, assigned: Assigned) -> bool:
        return True

    def finish(self, assigned: Assigned, work: Work, servers: tuple[int, ...] | None) -> None:
        raise AssertionError("a reader finishes nothing")

    def wake(self) -> None:
        """Nobody waits."""


def test_rows_that_another_worker_saw_first_are_waited_for(directory: Path) -> None:
    log = rover.PartitionLog(directory, SCHEMA)
    seen_elsewhere = Assigned(0, 1, 0, 0, Records("a", 20, 28))
    reader = Reader(Given(seen_elsewhere), log, log.dataset(10))
    threading.Timer(0.15, append, (directory / "a", lines(25, 28))).start()
    read = reader.get()
    assert read is not None
    assert read.error is None
    assert read.batch.positions.tolist() == list(range(20, 28))
    reader.stop()


def test_a_stream_has_no_epochs_to_repeat(directory: Path, tmp_path: Path, summary: Path) -> None:
    with pytest.raises(InputError, match="read once"), join(tmp_path, summary, epochs=3) as job:
        list(job.batches(rover.PartitionLog(directory, SCHEMA)))


def test_reported_metrics_go_with_a_workers_sample(directory: Path) -> None:
    with rover.join() as job:
        job.report(loss=0.4, accuracy=np.float32(0.5), recall=0.25)
        job.report(accuracy=np.float32(0.75))
    profile = job.figures.profile("j", Member("worker", 0, 1), 1.0)
    sent = decode(encode(profile), WorkerProfile)
    assert sent.metrics == {"accuracy": 0.75, "recall": 0.25}
    assert Figures().profile("j", Member("worker", 0, 1), 1.0).metrics == {}


@pytest.mark.parametrize(("text", "grace_s"), [("", 5.0), ("2.5", 2.5), ("0", 0.0)])
def test_the_grace_of_a_drain_is_what_the_platform_says(text: str, grace_s: float) -> None:
    variables = {"ROVER_JOB": "j", "ROVER_URL": "nats://x", "ROVER_GRACE_S": text}
    assert Environment.read(variables).grace_s == grace_s


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_a_grace_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="ROVER_GRACE_S"):
        Environment.read({"ROVER_JOB": "j", "ROVER_URL": "nats://x", "ROVER_GRACE_S": text})
