"""Real processes: training begins with the servers that are there, the others take slots over as they arrive."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from late import Late
from outside import living
from small_job import SmallJob, hosts_up

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with hosts_up(tmp_path_factory.mktemp("stack"), "h1") as hosts:
        yield hosts["h1"]


def begun(stack: RunningStack, folder: Path, name: str, late: str, top: str = "") -> SmallJob:
    """A job some of whose three servers are late, once it commits batches."""
    job = SmallJob(
        folder=folder,
        home=stack.home.root,
        first_begins=True,
        rows=4_000,
        epochs=2,
        workers=2,
        servers=3,
        checkpoint="",
        name=name,
        top=f"{late}\n{top}",
    )
    job.submit()
    job.until(lambda: job.facts("rollout.opened"), "the first servers begin")
    job.until(lambda: committed(job) > 0, "a commit on the first servers")
    return job


def committed(job: SmallJob) -> int:
    rows = json.loads(job.rover("jobs", "-o", "json").stdout or "[]")
    return sum(int(row["committed"]) for row in rows if row["job"] == job.name)


def routed(job: SmallJob) -> list[list[int]]:
    """The servers of each routing, in order."""
    return [[each["index"] for each in fact["servers"]] for fact in job.facts("routing.changed")]


def test_training_begins_with_the_first_server_and_slots_move_to_the_others_as_they_arrive(
    stack: RunningStack, tmp_path: Path
) -> None:
    late = Late(tmp_path / "late")
    job = begun(stack, tmp_path, "firsts", late.environment(1, 2))
    assert routed(job) == [[0]]
    late.let(2)
    job.until(lambda: routed(job)[-1] == [0, 2], "the second one's slots")
    assert not job.facts("plan.settled")
    late.let(1)
    job.until(lambda: job.facts("plan.settled"), "the last one's slots")
    assert [fact["outcome"] for fact in job.facts("rollout.closed")] == ["done"]
    shares = {0: 0, 1: 0, 2: 0}
    for index, first, end in job.facts("routing.changed")[-1]["owners"]:
        shares[index] += end - first
    assert set(shares.values()) == {1365, 1366}
    job.complete()


def test_the_first_server_is_killed_while_it_holds_all_slots(stack: RunningStack, tmp_path: Path) -> None:
    late = Late(tmp_path / "late")
    job = begun(stack, tmp_path, "lost", late.environment(1, 2), 'on_server_lost = "restart"')
    (first,) = [row for row in living(job.home, job.name, "ps") if row["index"] == 0]
    os.kill(first["pid"], signal.SIGKILL)
    job.until(lambda: job.facts("ledger.rewound"), "the way back to nothing")
    late.let(1)
    late.let(2)
    job.until(lambda: job.facts("plan.settled"), "all servers")
    assert routed(job) == [[0], [0, 1, 2]], "it waited for all of them"
    job.complete()


def test_the_first_server_is_killed_after_a_checkpoint_of_all_slots(
    stack: RunningStack, tmp_path: Path
) -> None:
    late = Late(tmp_path / "late")
    job = SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        first_begins=True,
        rows=4_000,
        epochs=2,
        workers=2,
        servers=2,
        checkpoint='path = "store"\nevery = "1s"',
        name="kept",
        top=f'{late.environment(1)}\non_server_lost = "restore"',
    )
    job.submit()
    job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint of the first server")
    (first,) = [row for row in living(job.home, job.name, "ps") if row["index"] == 0]
    os.kill(first["pid"], signal.SIGKILL)
    job.until(lambda: job.facts("ledger.rewound"), "the way back to it")
    late.let(1)
    job.until(lambda: job.facts("plan.settled"), "all servers, and their slots")
    assert job.facts("ledger.rewound")[-1]["cut"] > 0
    assert routed(job)[-1] == [0, 1]
    job.complete()


def test_tables_that_do_not_fit_the_first_server_wait_for_the_others(
    stack: RunningStack, tmp_path: Path
) -> None:
    """Its limit is 600 MB and the table has 192 MB: a fifth of the limit is for rows, and holds a half of them, not all."""
    late = Late(tmp_path / "late")
    (tmp_path / "wide.py").write_text(WIDE)
    job = SmallJob(
        folder=tmp_path,
        home=stack.home.root,
        first_begins=True,
        rows=2_000,
        epochs=1,
        workers=1,
        servers=2,
        checkpoint="",
        name="wide",
        top=late.environment(1),
        inner=tmp_path / "wide.py",
    )
    job.write()
    file = tmp_path / "job.toml"
    file.write_text(file.read_text().replace("[servers]\n", '[servers]\nmemory = "600MB"\n'))
    submitted = job.rover("submit", "job.toml")
    assert submitted.returncode == 0, submitted.stderr
    job.until(lambda: job.facts("rollout.opened"), "the first server begins")
    job.until(lambda: "declares" in job.rover("logs", "wide", "worker-0").stdout, "the declaration")
    assert committed(job) == 0
    late.let(1)
    job.until(lambda: committed(job) > 0, "training on both")
    lost = job.facts("member.lost")
    assert not lost, lost
    job.complete()


WIDE = """
import numpy as np
import rover_bus.client as rover
from rover_bus.client.data import Schema, open_log
from rover_bus.ps.spec import Hashed, Sgd
from rover_bus.ps.store import BatchKey

with rover.join() as job:
    log = open_log(job.data.train, Schema.parse(job.data.schema))
    print("declares", flush=True)
    job.parameters.declare(Hashed(name="wide", rows=750_000, width=64, optimizer=Sgd(0.1)))
    for batch in job.batches(log):
        ids = np.arange(32) + 32 * batch.number
        pulled = job.parameters.pull({"wide": ids})
        job.parameters.push(BatchKey(batch.epoch, batch.number), {"wide": np.ones((32, 64), np.float32)}, pulled=pulled)
"""
