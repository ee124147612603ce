"""What may be short or slow on a host that takes checkpoints, with real jobs: one clear line each, and training goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_job import checkpointed_job

from rover_bus.cli.stack import Here, RunningStack

pytestmark = pytest.mark.chaos
SLOW_SYNC_S = 0.3
SLOW_SYNC = f"""
import os, time
fsync = os.fsync
def slow(fd):
    time.sleep({SLOW_SYNC_S})
    fsync(fd)
os.fsync = slow
"""


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of its own, for a host to stage in."""
    memory = tmp_path / "memory"
    memory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(memory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield memory
    subprocess.run(["umount", "-l", str(memory)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root")
def test_shared_memory_that_is_full_is_named_and_costs_cuts_but_no_sample(
    small_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROVER_SHM", str(small_memory))
    ballast = small_memory / "ballast"
    with suppress(OSError):
        ballast.write_bytes(bytes(16 << 20))
    with RunningStack(tmp_path / "home", here=Here("h1"), disposable=True) as stack:
        job = checkpointed_job(stack.home.root, tmp_path, 2, 'every = "1s"')
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.failed")) > 1, "cuts that fail")
        reason = job.facts("checkpoint.failed")[0]["reason"]
        assert "a slot needs" in reason, reason
        assert "choose another directory" in reason, reason
        assert "\n" not in reason
        assert not job.facts("checkpoint.ready")
        ballast.unlink()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint, once there is room")
        assert not job.facts("member.lost"), "nobody died of it"
        job.complete()
        assert job.rover("checkpoint", "verify", "ads").returncode == 0


def test_a_slow_disk_keeps_nobody_waiting_and_every_cut_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW_SYNC)
    monkeypatch.setenv("PYTHONPATH", str(slow))
    with RunningStack(tmp_path / "home", here=Here("h1"), disposable=True) as stack:
        monkeypatch.delenv("PYTHONPATH")
        job = checkpointed_job(stack.home.root, tmp_path, 2, 'every = "500ms"')
        job.submit()
        job.until(lambda: job.facts("checkpoint.superseded"), "a cut that came faster than this disk stores")
        job.until(lambda: len(job.facts("checkpoint.ready")) > 1, "two that it stored all the same")
        job.complete()

        def cuts(kind: str) -> set[int]:
            return {fact["cut"] for fact in job.facts(f"checkpoint.{kind}")}

        assert cuts("staged") <= cuts("opened")
        assert cuts("opened") == cuts("ready") | cuts("superseded") | cuts("failed")
        assert job.rover("checkpoint", "verify", "ads").returncode == 0
