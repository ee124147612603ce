"""`rover down` throws no model away: jobs go on from a last checkpoint at the next `rover up`, also those without [checkpoint].

What cannot have one is named, and then nothing ends unless somebody says so.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from outside import ROVER, living
from small_job import SmallJob

from rover_bus.cli.home import Home

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(300)]
PATIENCE_S = 90.0
FILE = """
name = "ads"
program = {program}
[data]
train = "t.csv"
batch_size = 32
epochs = 3
schema = {{ label = "label", categorical = ["user", "item"] }}
[workers]
count = 2
[servers]
count = 2
[leases]
target = "500ms"
{tables}
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SmallJob]:
    """A job that is not submitted yet, on a stack that the test starts; what it leaves is ended."""
    home = Home(tmp_path / "state")
    found = SmallJob(
        folder=tmp_path, home=home.root, rows=8_000, epochs=3, workers=2, servers=2, checkpoint=""
    )
    yield found
    found.rover("down", "--discard")
    assert not home.is_held()


def submit(job: SmallJob, tables: str = "") -> str:
    """Submit it, with further tables of its job file; return what was said."""
    clicks = "".join(f"{n % 2},u{n % 97},i{n % 1013}\n" for n in range(job.rows))
    (job.folder / "t.csv").write_text("label,user,item\n" + clicks)
    (job.folder / "job.toml").write_text(FILE.format(program=job.gate.program(), tables=tables))
    done = job.rover("submit", "job.toml")
    assert done.returncode == 0, done.stderr
    return done.stderr


def trained(job: SmallJob) -> int:
    reports = job.facts("job.reported")
    return int(reports[-1]["committed"]) if reports else 0


def up(job: SmallJob) -> None:
    done = job.rover("up", "--detach")
    assert done.returncode == 0, done.stderr


@contextmanager
def foreground(job: SmallJob, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    said = (job.folder / "up.log").open("ab")
    with (
        said,
        subprocess.Popen(
            [*ROVER, "up"],
            env=environment | {"ROVER_HOME": str(job.home)},
            stdin=stdin,
            stdout=said,
            stderr=said,
        ) as process,
    ):
        try:
            job.until(lambda: "next " in (job.folder / "up.log").read_text(), "a stack")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def goes_on(job: SmallJob, before: int) -> None:
    """See that it goes on from where it was, to its end, every sample applied once."""
    job.complete()
    back = [each for each in job.facts("ledger.rewound") if each["cut"]]
    assert back, job.facts("ledger.rewound")
    kept = job.facts("checkpoint.opened")[-1]["samples_committed"]
    assert kept >= before
    assert not [each for each in job.facts("ledger.rewound") if not each["cut"]]


@pytest.mark.parametrize(
    "tables", ["", '[checkpoint]\nevery = "10m"\npersist = false\n'], ids=["none", "memory"]
)
def test_down_and_up_lose_nothing(job: SmallJob, tables: str) -> None:
    up(job)
    said = submit(job, tables)
    assert ("takes no checkpoints" in said) == (not tables)
    job.until(lambda: trained(job) > 3_000, "some progress")
    before = trained(job)
    done = job.rover("down")
    assert done.returncode == 0, done.stderr
    assert "last checkpoints of ads" in done.stderr
    assert list((Home(job.home).checkpoints).rglob("*.manifest")), "it lies in the stack's own directory"
    up(job)
    goes_on(job, before)


def test_ctrl_c_is_a_down(job: SmallJob) -> None:
    with foreground(job) as stack:
        submit(job)
        job.until(lambda: trained(job) > 3_000, "some progress")
        before = trained(job)
        stack.send_signal(signal.SIGINT)
        assert stack.wait(PATIENCE_S) == 130
    up(job)
    goes_on(job, before)


def no_room_for_checkpoints(job: SmallJob) -> None:
    """Their place is a file: nothing can be stored there."""
    Home(job.home).checkpoints.write_text("in the way\n")


def test_what_cannot_be_kept_is_named_and_nothing_ends(job: SmallJob) -> None:
    up(job)
    no_room_for_checkpoints(job)
    job.rows = 100_000  # it trains all along
    submit(job)
    job.until(lambda: trained(job) > 1_000, "some progress")
    refused = job.rover("down")
    assert refused.returncode == 3, refused.stderr
    assert "ads cannot have a last checkpoint: " in refused.stderr
    assert "rover down --discard" in refused.stderr
    before = trained(job)
    job.until(lambda: trained(job) > before, "progress of a stack that has not ended")
    master, slave = pty.openpty()
    try:
        asked = subprocess.Popen(
            [*ROVER, "down"],
            env=os.environ | {"ROVER_HOME": str(job.home)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.write(master, b"n\n")
        assert asked.wait(PATIENCE_S) == 3
        assert b"lose what they have trained?" in os.read(master, 1 << 16)
    finally:
        os.close(slave)
        os.close(master)
    assert living(job.home, "ads", "worker")
    ended = job.rover("down", "--discard")
    assert ended.returncode == 0, ended.stderr


def test_a_second_ctrl_c_waits_for_nothing(job: SmallJob) -> None:
    with foreground(job) as stack:
        no_room_for_checkpoints(job)
        submit(job)
        job.until(lambda: trained(job) > 1_000, "some progress")
        stack.send_signal(signal.SIGINT)
        job.until(lambda: "once more Ctrl-C" in (job.folder / "up.log").read_text(), "the last checkpoints")
        stack.send_signal(signal.SIGINT)
        assert stack.wait(PATIENCE_S) == 3
    assert "ads cannot have a last checkpoint" in (job.folder / "up.log").read_text()
