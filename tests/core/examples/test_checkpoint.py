"""The plain library's example, killed and started again: it ends with the bytes of a run that nobody disturbed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rover_bus.flash.alone import load_cut
from rover_bus.flash.errors import NoCheckpoint
from rover_bus.flash.places import job_directory

STAGE_EVERY = 10  # of the example
ENDLESS = 1_000_000  # steps: who is to be killed is not done before
PROGRAM = Path(__file__).parents[3] / "examples" / "checkpoint.py"


@pytest.fixture
def job() -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    shutil.rmtree(job_directory(None, name), ignore_errors=True)


def run(job: str, folder: Path, steps: int, until: int = 0) -> list[str]:
    """Run the example; kill it with SIGKILL when it stores a step from `until` on, if any. Return its lines."""
    options = ["--job", job, "--steps", str(steps), "--storage", "store", "--out", "out.npz"]
    lines = []
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), *options], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if until and line.startswith("storing step") and int(line.split()[2]) >= until:
                process.kill()
    assert process.returncode == (-9 if until else 0)
    return lines


def test_a_program_of_its_own_goes_on_from_memory_from_storage_or_from_nothing(
    job: str, tmp_path: Path
) -> None:
    broken, calm = tmp_path / "broken", tmp_path / "calm"
    broken.mkdir()
    calm.mkdir()
    first, *_, last = run(job, broken, ENDLESS, until=400)
    assert first == "from step 0, found in nothing"
    found, *_ = run(job, broken, ENDLESS, until=400)
    assert found.endswith("found in shared memory")
    assert int(found.split()[2].rstrip(",")) >= int(last.split()[2]) - STAGE_EVERY, (
        "it was killed before the last cut had digests: the one before it is gone back to"
    )
    shutil.rmtree(job_directory(None, job))  # as another host would find it
    cut, _ = load_cut(broken / "store")
    assert run(job, broken, cut + 300)[0] == f"from step {cut}, found in storage"
    assert not job_directory(None, job).exists(), "a program that ends well leaves nothing in memory"
    run(job, calm, cut + 300)
    one, other = np.load(broken / "out.npz"), np.load(calm / "out.npz")
    assert all(np.array_equal(one[name], other[name]) for name in ("table", "bias"))


def test_a_storage_with_nothing_in_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="no checkpoint is stored here"):
        load_cut(tmp_path)
