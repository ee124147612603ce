"""S9 on the real things: files that grow, a nats-server, a master, a server on sockets; only the processes are threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

import rover_bus.client as rover
from rover_bus.events.codec import decode
from rover_bus.events.data_facts import RowsSkipped
from rover_bus.events.errors import Refused
from rover_bus.ps.parts import read_parts
from rover_bus.ps.spec import Add, Growing

pytestmark = pytest.mark.broker
SEEN = Growing(name="row", width=1, optimizer=Add(), dtype="int32")
SCHEMA = rover.Schema(dense=("age",), categorical=("row",))
Stack = Any


class Writer:
    """Appends rows, each with an id of its own, until it is told to seal."""

    def __init__(self, directory: Path, names: str) -> None:
        self.directory = directory
        self.rows: Counter[str] = Counter()
        directory.mkdir()
        for name in names:
            (directory / name).write_text("label,age,row\n")

    def add(self, name: str, count: int, label: str = "1") -> None:
        first = self.rows[name]
        text = "".join(f"{label},{row},{name}{row}\n" for row in range(first, first + count))
        with (self.directory / name).open("a") as file:
            for piece in (text[: len(text) // 2], text[len(text) // 2 :]):  # a line is cut in the middle
                file.write(piece)
                file.flush()
        self.rows[name] += count

    def seal(self) -> None:
        for name in self.rows:
            (self.directory / f"{name}.sealed").touch()


def train(
    job: rover.Job, log: rover.PartitionLog, meet: Callable[[Any], None] = lambda batch: None
) -> set[str]:
    partitions = set()
    with job:
        job.parameters.declare(SEEN)
        for batch in job.batches(log):
            partitions.add(Path(batch.file).name)
            ids = batch.categorical[:, 0]
            pulled = job.parameters.pull({"row": ids})
            meet(batch)
            key = rover.BatchKey(batch.epoch, batch.number)
            job.parameters.push(key, {}, add={"row": (ids, np.ones((len(ids), 1), np.int32))}, pulled=pulled)
            job.report(loss=0.5)
    return partitions


def counts(stack: Stack, end: Any) -> np.ndarray[Any, Any]:
    return read_parts([Path(part) for part in end.summary["parts"]])["row"].values[:, 0]


def test_s9_two_workers_train_every_row_of_files_that_grow_until_they_are_sealed(
    stack: Stack, join: Callable[..., rover.Job], tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "stream", "abc")
    writer.add("a", 700)
    stack.begin(workers=2, epochs=1)
    logs = [rover.PartitionLog(writer.directory, SCHEMA) for _ in range(2)]
    jobs = [join(index) for index in range(2)]
    visited: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda pair=pair: visited.append(train(*pair)), name=f"worker-{n}")
        for n, pair in enumerate(zip(jobs, logs, strict=True))
    ]
    for thread in threads:
        thread.start()
    for step in range(12):
        time.sleep(0.1)
        writer.add("abc"[step % 3], 37 + 11 * step)
        if step == 4:
            stack.start("master-1", stack.lead("master-1"))
        if step == 7:
            stack.tasks["master-0"].cancel()
    writer.add("b", 3, label="broken")
    writer.seal()
    for thread in threads:
        thread.join(PATIENCE_S)
    end = stack.call(stack.ended())
    assert end.state == "completed", end
    total = sum(writer.rows.values())
    assert (end.summary["samples_total"], end.summary["samples_dead_lettered"]) == (total, 3)
    assert end.summary["samples_committed"] == total - 3
    applied = counts(stack, end)
    assert len(applied) == total - 3
    assert (applied == 1).all(), "a row was applied more than once"
    assert set().union(*visited) == {"a", "b", "c"}
    assert any(len(partitions) > 1 for partitions in visited), "a dry partition kept its worker"
    skipped = [decode(body, RowsSkipped) for body in stack.call(stack.facts("rows.skipped"))]
    named = [(fact.file, row.line) for fact in skipped for row in fact.rows]
    last = writer.rows["b"] + 1
    assert sorted(named) == [(str(writer.directory / "b"), line) for line in range(last - 2, last + 1)]


def test_s9_another_life_trains_the_rest_of_a_stream_and_ignores_files_that_came_later(
    stack: Stack, join: Callable[..., rover.Job], tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "stream", "ab")
    writer.add("a", 400)
    writer.add("b", 130)
    stack.begin(epochs=1)

    def fail(batch: Any) -> None:
        if batch.number == 4:
            raise LookupError("no such row")

    with pytest.raises(LookupError):
        train(join(), rover.PartitionLog(writer.directory, SCHEMA), fail)
    (writer.directory / "late").write_text("label,age,row\n1,1,late\n")
    writer.add("b", 41)
    writer.seal()
    assert train(join(incarnation=2), rover.PartitionLog(writer.directory, SCHEMA)) == {"a", "b"}
    end = stack.call(stack.ended())
    assert end.summary["samples_committed"] == 400 + 171
    assert (counts(stack, end) == 1).all()
    assert len(counts(stack, end)) == 571


def test_a_stream_under_a_job_of_other_data_is_refused_with_the_difference(
    stack: Stack, join: Callable[..., rover.Job], tmp_path: Path
) -> None:
    stack.begin(workers=2, epochs=1)
    path = tmp_path / "clicks.csv"
    path.write_text("label,age,row\n" + "".join(f"1,{row},r{row}\n" for row in range(500)))
    writer = Writer(tmp_path / "stream", "a")

    def meet(batch: Any) -> None:
        if batch.number == 1:
            with pytest.raises(Refused, match=r"records is 500, not 0.*partitions is \[\], not \['a'\]"):
                train(join(index=1), rover.PartitionLog(writer.directory, SCHEMA))

    train(join(), rover.ClickLog(path, SCHEMA), meet)
