"""The training loop without a bus: the same calls, one process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rover_bus.client as rover
from rover_bus.client.witness import read_witness
from rover_bus.events.errors import InputError
from rover_bus.events.job import Dataset
from rover_bus.ps.spec import Growing, Sgd

TABLE = Growing(name="user", width=2, optimizer=Sgd(rate=0.1))


def train(job: rover.Job, clicks: rover.ClickLog, **how: int) -> list[tuple[int, int]]:
    job.parameters.declare(TABLE)
    seen = []
    for batch in job.batches(clicks, **how):
        pulled = job.parameters.pull({"user": batch.categorical[:, 0]})
        job.parameters.push(rover.BatchKey(batch.epoch, batch.number), {"user": np.ones_like(pulled["user"])})
        job.report(loss=0.5, accuracy=0.9)
        seen.append((batch.epoch, batch.number))
    return seen


def test_every_batch_of_every_epoch_comes_once_and_in_order(clicks: rover.ClickLog) -> None:
    with rover.join() as job:
        seen = train(job, clicks, batch_size=64, epochs=2, seed=3)
    assert seen == [(epoch, number) for epoch in range(2) for number in range(16)]
    assert (job.figures.samples, job.figures.batches) == (2 * 999, 32)


def test_the_witness_counts_every_used_sample_once_an_epoch_and_leaves_out_the_skipped_row(
    clicks: rover.ClickLog, spec_file: Path, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    with rover.join(ROVER_SPEC_FILE=str(spec_file), ROVER_SUMMARY_FILE=str(summary)) as job:
        train(job, clicks)
        dataset = Dataset(records=1000, batch_size=32, epochs=2)
        witness = read_witness(job.parameters.export()["witness"], dataset)
        assert job.model == {"width": 4}
        assert job.elected("evaluate")
        job.result("evaluate", auc=np.float32(0.5))
        assert not job.elected("evaluate")
    assert witness.shape == (2, 1000)
    assert witness.max() == 1
    assert [int((row == 0).sum()) for row in witness] == [1, 1]
    said = msgspec.json.decode(summary.read_bytes())
    assert said["state"] == "completed"
    assert (said["samples_total"], said["samples_committed"], said["samples_dead_lettered"]) == (
        2000,
        1998,
        2,
    )
    assert (said["values_missing"], said["samples_duplicated"]) == (20, 0)
    assert said["result"] == {"auc": 0.5}


def test_a_program_that_pushes_nothing_still_has_its_batches_done_and_witnessed(
    clicks: rover.ClickLog, spec_file: Path
) -> None:
    with rover.join(ROVER_SPEC_FILE=str(spec_file)) as job:
        batches = sum(1 for _ in job.batches(clicks))
        exported = job.parameters.export()
    assert batches == 64
    assert int(exported["witness"].values.sum()) == 1998


def test_sigterm_ends_the_batches_after_the_one_in_hand(clicks: rover.ClickLog) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = 0
    with rover.join() as job:
        for _ in job.batches(clicks, batch_size=10):
            seen += 1
            if seen == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        assert job.drained
        assert not job.elected("evaluate")
    assert seen == 3
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_exception_of_the_loop_goes_on_to_the_user_and_leaves_no_thread(clicks: rover.ClickLog) -> None:
    job = rover.join()
    with pytest.raises(ZeroDivisionError), job:
        [1 / 0 for _ in job.batches(clicks)]
    assert job.figures.batches == 0
    assert "rover-reader" not in {thread.name for thread in threading.enumerate()}


def test_an_error_of_the_source_is_raised_in_the_loop(clicks: rover.ClickLog) -> None:
    class Broken:
        def dataset(self, batch_size: int, epochs: int = 1, seed: int = 0) -> Dataset:
            return clicks.dataset(batch_size, epochs, seed)

        def batch(self, epoch: int, number: int, dataset: Dataset) -> Any:
            if number == 2:
                raise OSError("the disk is gone")
            return clicks.batch(epoch, number, dataset)

    job = rover.join()
    with pytest.raises(OSError, match="disk"), job:
        list(job.batches(Broken()))
    assert job.figures.batches == 2


def test_a_batch_without_a_usable_row_is_never_handed_out_but_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("label,user\n" + "".join(f"{'?' if row < 4 else 1},u{row}\n" for row in range(8)))
    source = rover.ClickLog(path, rover.Schema(categorical=("user",)))
    with rover.join() as job:
        sizes = [len(batch) for batch in job.batches(source, batch_size=1)]
        place: Any = job._place
    assert sizes == [1, 1, 1, 1]
    assert (place.committed, place.dead_lettered) == (4, 4)


def test_a_program_without_a_job_file_is_told_so(clicks: rover.ClickLog) -> None:
    with rover.join() as job, pytest.raises(InputError, match="job file"):
        _ = job.config


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"ROVER_JOB": "a.b", "ROVER_URL": "nats://x"}, "a-b"),
        ({"ROVER_JOB": "a"}, "ROVER_URL"),
        ({"ROVER_JOB": "a", "ROVER_URL": "nats://x", "ROVER_ROLE": "ps"}, "worker"),
        ({"ROVER_JOB": "a", "ROVER_URL": "nats://x", "ROVER_INCARNATION": "one"}, "integers"),
        ({"ROVER_SPEC_FILE": "/nothing/here.json"}, "No such file"),
    ],
)
def test_a_wrong_environment_is_one_line_that_says_what_to_do(variables: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        rover.join(**variables)
