"""`rover down` gives back the shared memory of jobs that have ended, and names what it keeps for those that go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import until
from small_job import SmallJob

pytestmark = pytest.mark.broker


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[tuple[SmallJob, SmallJob]]:
    """Two jobs whose cuts are staged, on one stack in the background."""
    made = [
        SmallJob(
            folder=tmp_path,
            home=tmp_path / "state",
            rows=640,
            epochs=50,
            workers=1,
            servers=1,
            checkpoint='every = "500ms"\npersist = false',
            name=name,
        )
        for name in ("ending", "going-on")
    ]
    up = made[0].rover("up", "--detach")
    assert up.returncode == 0, up.stderr
    for job in made:
        job.submit()
    for job in made:
        job.until(lambda job=job: job.facts("checkpoint.staged"), f"a staged cut of {job.name}")
    yield made[0], made[1]
    made[0].rover("down", "--discard")
    staging = Path(json.loads((tmp_path / "staging.json").read_text()))
    shutil.rmtree(staging, ignore_errors=True)


def test_cuts_of_ended_jobs_are_freed_and_those_that_are_kept_are_named(
    jobs: tuple[SmallJob, SmallJob], tmp_path: Path
) -> None:
    ending, going_on = jobs
    staging = Path(json.loads((tmp_path / "state" / "stack.json").read_text())["staging"])
    (tmp_path / "staging.json").write_text(json.dumps(str(staging)))
    staged = staging / ending.facts("job.submitted")[0]["uid"]
    kept = staging / going_on.facts("job.submitted")[0]["uid"]
    until(lambda: is_copied(staged, tmp_path / "image"), "an image of what is staged")
    assert ending.rover("cancel", ending.name).returncode == 0
    until(lambda: not staged.exists(), "shared memory that is free at the end of the job")
    shutil.copytree(tmp_path / "image", staged)  # a daemon that is killed in that moment leaves it
    down = going_on.rover("down")
    assert down.returncode == 0, down.stderr
    assert not staged.exists()
    assert kept.exists()
    lines = [line for line in down.stderr.splitlines() if line.startswith("kept: ")]
    assert len(lines) == 1, down.stderr
    assert lines[0].startswith("kept: staged cuts of going-on, ")
    assert "MiB of shared memory" in lines[0]
    assert str(kept) in lines[0]


def is_copied(staged: Path, image: Path) -> bool:
    """Copy a directory in which servers work; say whether none of its files went meanwhile."""
    shutil.rmtree(image, ignore_errors=True)
    try:
        shutil.copytree(staged, image)
    except shutil.Error:
        return False
    return True
