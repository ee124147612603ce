"""The broker's disk is erased under a running job, and restored from the last backup: it goes on in a new timeline."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from outside import ROVER, living, rover
from patience import until
from small_job import SmallJob

pytestmark = pytest.mark.chaos


@contextmanager
def stack(home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    with log.open("a") as said:
        process = subprocess.Popen(
            [*ROVER, "up", "--dir", str(home)],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        until(lambda: rover("jobs", home=home).returncode == 0, "the stack", 0.2, log.read_text)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def checkpointed(home: Path, folder: Path) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=home,
        rows=4_000,
        epochs=2,
        workers=2,
        servers=2,
        checkpoint=f'every = "1s"\nkeep = 50\npath = "{folder / "stored"}"',
    )


def test_a_job_goes_on_from_a_backup_and_nothing_of_the_erased_past_counts(tmp_path: Path) -> None:
    home, log, saved = tmp_path / "state", tmp_path / "up.log", tmp_path / "saved"
    job = checkpointed(home, tmp_path)
    with stack(home, log) as process:
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.ready")) > 1, "two checkpoints")
        taken = rover("backup", str(saved), home=home)
        assert taken.returncode == 0, taken.stderr
        assert "MiB" in taken.stdout
        assert rover("backup", str(saved), home=home).returncode == 2, "a backup is never written over"
        known = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > known + 2, "checkpoints after the backup")
        refused = rover("restore", str(saved), home=home)
        assert refused.returncode == 3, refused.stderr
        erased = max(each["cut"] for each in job.facts("checkpoint.ready"))
        term = max(each["term"] for each in job.facts("master.elected"))
        process.kill()
        process.wait()
        until(lambda: rover("jobs", "--dir", str(home)).returncode == 4, "its end")
    shutil.rmtree(home / "broker" / "store")
    restored = rover("restore", str(saved), home=home)
    assert restored.returncode == 0, restored.stderr
    assert "goes on with ads" in restored.stdout
    with stack(home, log):
        job.until(lambda: job.facts("ledger.rewound"), "the way back")
        [said] = job.facts("job.restored")
        assert said["backup"] == str(saved)
        [back] = job.facts("ledger.rewound")
        assert "restored from a backup" in back["reason"]
        assert back["cut"] <= erased
        assert back["samples_again"] >= 0
        job.until(
            lambda: [
                each for each in job.facts("checkpoint.ready") if each["generation"] >= back["generation"]
            ],
            "a checkpoint of the new timeline",
        )
        assert max(each["term"] for each in job.facts("master.elected")) >= term
        job.complete()
        assert "its log was restored from" in rover("events", job.name, home=home).stdout
    assert not living(home, job.name)
    assert json.loads((saved / "backup.json").read_text())["tenants"] == []


def test_without_a_backup_a_job_begins_with_the_checkpoint_alone(tmp_path: Path) -> None:
    home, log = tmp_path / "state", tmp_path / "up.log"
    job = checkpointed(home, tmp_path)
    with stack(home, log) as process:
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.ready")) > 1, "two checkpoints")
        process.kill()
        process.wait()
        until(lambda: rover("jobs", "--dir", str(home)).returncode == 4, "its end")
    newest = max((tmp_path / "stored").glob("ads.*/manifests/*"), key=lambda path: path.stat().st_mtime)
    cut = int(newest.name.partition(".")[0].split("-")[2])
    shutil.rmtree(home / "broker" / "store")
    with stack(home, log):
        assert "with it logs, facts and plans of ads\n" in log.read_text()
        job.finish()
        named = ("--name", "again", "--from-checkpoint", "ads")
        done = job.rover("submit", "job.toml", *named, "--wait", "--json")
        assert done.returncode == 0, done.stderr
        told = job.rover("events", "again", "-k", "member.admitted", "--json").stdout.splitlines()
        starts = [start for line in told if (start := json.loads(line)["body"]["start"]) is not None]
        assert {(start["kind"], start["job"], start["cut"]) for start in starts} == {("cut", "ads", cut)}
        refused = job.rover("submit", "job.toml", "--name", "other", "--from-checkpoint", "absent")
        assert refused.returncode == 2
        assert "there is no job 'absent'" in refused.stderr
