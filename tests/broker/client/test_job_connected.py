"""A training script against the real things: nats-server, master, parameter server on sockets; only the processes are threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

import rover_bus.client as rover
from rover_bus.client.witness import NAME, WIDTH, witness_table
from rover_bus.events.codec import decode
from rover_bus.events.errors import BrokerUnreachable, Refused
from rover_bus.events.facts import WorkerFailed
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.parts import read_parts
from rover_bus.ps.spec import Growing, Sgd

pytestmark = pytest.mark.broker
JOB = "clicks"
Stack = Any
ROWS, BATCH, EPOCHS = 2000, 50, 2
TABLE = Growing(name="user", width=2, optimizer=Sgd(rate=0.1))


@pytest.fixture
def clicks(tmp_path: Path) -> rover.ClickLog:
    path = tmp_path / "clicks.csv"
    path.write_text("label,user\n" + "".join(f"{row % 2},user{row % 97}\n" for row in range(ROWS)))
    return rover.ClickLog(path, rover.Schema(categorical=("user",)))


Meet = Callable[[rover.Job, Any], None]


def assert_threads_end() -> None:
    """The library's threads end; on a busy machine a moment after what they were for."""
    for thread in threading.enumerate():
        if thread.name.startswith("rover-"):
            thread.join(30.0)
            assert not thread.is_alive(), thread.name


def train(job: rover.Job, clicks: rover.ClickLog, meet: Meet = lambda job, batch: None) -> None:
    with job:
        job.parameters.declare(TABLE)
        for batch in job.batches(clicks):
            pulled = job.parameters.pull({"user": batch.categorical[:, 0]})
            meet(job, batch)
            job.parameters.push(
                rover.BatchKey(batch.epoch, batch.number), {"user": np.ones_like(pulled["user"])}
            )
            job.report(loss=0.5)


def witness(stack: Stack) -> np.ndarray[Any, Any]:
    """What the servers wrote at the end, by (epoch, position)."""
    end = stack.call(stack.ended())
    assert end.state == "completed", end
    exported = read_parts([Path(part) for part in end.summary["parts"]])[NAME]
    return rover.read_witness(exported, rover.Dataset(records=ROWS, batch_size=BATCH, epochs=EPOCHS))


def test_a_script_trains_its_job_to_the_end_and_the_witness_is_all_ones(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()
    job = join()
    train(job, clicks)
    end = stack.call(stack.ended())
    assert end.state == "completed", end
    assert end.summary["samples_committed"] == ROWS * EPOCHS
    assert (witness(stack) == 1).all()
    assert job.figures.batches == ROWS * EPOCHS // BATCH
    assert_threads_end()


def test_a_member_that_is_wanted_no_more_before_it_has_joined_ends_in_order(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job], capfd: pytest.CaptureFixture[str]
) -> None:
    """It was replaced, or its plan taken back, while it started: a traceback and a failure would be no fault of its program."""
    stack.begin()
    train(join(), clicks, lambda job, _: job.drain())
    second = join(incarnation=2)
    with pytest.raises(SystemExit) as ended:
        join(incarnation=1)
    assert ended.value.code == 0
    assert "worker-0.1 was replaced or is not wanted" in capfd.readouterr().err
    train(second, clicks)
    assert (witness(stack) == 1).all()


def test_a_take_over_and_a_broker_restart_pass_unnoticed_by_the_loop(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        time.sleep(0.02)
        if (batch.epoch, batch.number) == (0, 10):
            stack.start("master-1", stack.lead("master-1"))
        if (batch.epoch, batch.number) == (0, 20):
            stack.tasks["master-0"].cancel()
        if (batch.epoch, batch.number) == (1, 10):
            threading.Thread(target=stack.broker.restart).start()

    train(join(), clicks, meet)
    assert (witness(stack) == 1).all()
    assert stack.call(stack.ended()).summary["masters_elected"] >= 2


def test_sigterm_drains_and_the_next_life_trains_only_the_rest(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 15:
            os.kill(os.getpid(), signal.SIGTERM)

    first = join()
    train(first, clicks, meet)
    assert first.drained
    assert first.figures.batches >= 1
    second = join(incarnation=2)
    train(second, clicks)
    assert (witness(stack) == 1).all()
    assert first.figures.batches + second.figures.batches == ROWS * EPOCHS // BATCH


def test_an_exception_is_charged_by_name_and_another_life_finishes_the_job(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 5:
            raise LookupError("no such user 0x7f")

    with pytest.raises(LookupError):
        train(join(), clicks, meet)
    failed = decode(stack.call(stack.facts("worker.failed"))[0], WorkerFailed)
    assert failed.exception == "LookupError"
    assert "no such user" in failed.message
    assert failed.charged_batch == 5
    train(join(incarnation=2), clicks)
    assert (witness(stack) == 1).all()


def test_other_data_under_the_same_job_is_refused_with_the_difference(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job], tmp_path: Path
) -> None:
    stack.begin(workers=2)
    path = tmp_path / "other.csv"
    path.write_text("label,user\n1,a\n")
    other = rover.ClickLog(path, rover.Schema(categorical=("user",)))

    def meet(job: rover.Job, batch: Any) -> None:
        if (batch.epoch, batch.number) == (0, 1):
            with pytest.raises(Refused, match="records is 2000, not 1"):
                train(join(index=1), other)

    train(join(), clicks, meet)
    assert witness_table(rover.Dataset(records=ROWS, batch_size=BATCH, epochs=EPOCHS)).width == WIDTH


def test_a_member_that_is_started_while_the_broker_is_away_waits_for_it(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job]
) -> None:
    stack.begin()
    while not stack.call(stack.facts("routing.changed")):
        time.sleep(0.05)
    stack.broker.kill()
    starter = threading.Timer(0.5, stack.broker.restart)
    starter.start()
    train(join(), clicks)
    starter.join()
    assert (witness(stack) == 1).all()


def test_a_drain_whose_servers_and_master_are_gone_ends_with_its_grace(
    stack: Stack, clicks: rover.ClickLog, join: Callable[..., rover.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = RemoteParameters.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience_s", 10 * PATIENCE_S)  # the servers' own would outlast this test
    stack.begin()

    def meet(job: rover.Job, batch: Any) -> None:
        if batch.number == 15:
            for name in ("master-0", "ps-0"):
                stack.tasks.pop(name).cancel()
            os.kill(os.getpid(), signal.SIGTERM)

    job = join(grace_s=0.5)
    train(job, clicks, meet)
    assert job.drained
    assert_threads_end()


def test_somebody_whose_broker_does_not_answer_is_told_at_once() -> None:
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        rover.join(ROVER_JOB=JOB, ROVER_URL="nats://127.0.0.1:1")
    assert_threads_end()
