"""Shared memory is too small for the cuts of a job, as it often is in a container: said at once, tried ever less often."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job import checkpointed_job

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root"),
]
SMALL, LARGE = "size=3m", "size=64m"


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmpfs of 3 MiB, which is what services that start from here on use."""
    path = tmp_path / "shm"
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", SMALL, "tmpfs", str(path)], capture_output=True, check=False
    ).returncode:
        pytest.skip("nothing can be mounted here")
    monkeypatch.setenv("ROVER_SHM", str(path))
    yield path
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


@pytest.fixture
def stack(shared_memory: Path, tmp_path: Path) -> Iterator[RunningStack]:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as running:
        yield running


def test_cuts_without_room_back_off_are_said_with_the_size_that_would_do_and_come_when_there_is_room(
    stack: RunningStack, shared_memory: Path, tmp_path: Path
) -> None:
    job = checkpointed_job(stack.home.root, tmp_path, 2, 'every = "1s"')
    job.submit()
    job.until(lambda: len(job.facts("checkpoint.failed")) >= 4, "four cuts that found no room")
    said = job.facts("checkpoint.failed")
    assert all(fact["wanted_bytes"] > 3 << 20 for fact in said), said
    assert all("of shared memory on h1 for its 2 servers" in fact["reason"] for fact in said), said
    reason = json.loads(job.rover("jobs", "-o", "json").stdout)[0]["reason"]
    assert "of shared memory on h1" in reason, reason
    assert "of shared memory on h1" in job.rover("doctor").stdout
    opened = [event["time_ms"] for event in events(job, "checkpoint.opened")]
    assert opened[3] - opened[0] >= 7000, "2, 4 and 8 s; the interval of the job would have made it three"
    subprocess.run(["mount", "-o", f"remount,{LARGE}", str(shared_memory)], check=True)
    job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint, once there is room")
    assert "shared memory" not in json.loads(job.rover("jobs", "-o", "json").stdout)[0]["reason"]
    job.complete()


def test_a_job_whose_witness_alone_is_too_large_is_refused_before_it_begins(
    stack: RunningStack, tmp_path: Path
) -> None:
    job = checkpointed_job(stack.home.root, tmp_path, 200, 'every = "1s"')
    job.write()
    refused = job.rover("submit", "job.toml")
    assert refused.returncode == 6, refused.stderr
    assert "of shared memory at the least, h1 has 3 MiB" in refused.stderr


def events(job, kind):
    done = job.rover("events", job.name, "-k", kind, "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]
