"""What may be wrong with a storage, with real jobs: one clear line each, training goes on, and nothing that was ready is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from small_job import NAME, SmallJob, checkpointed_job

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack

pytestmark = pytest.mark.chaos


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as running:
        yield running


def start_from(job: SmallJob, name: str, more: str = "") -> tuple[str, str]:
    """Submit a job of another length that starts from the first one's checkpoint, see its end; return state and detail.

    more: further lines of its file.
    """
    text = (job.folder / "job.toml").read_text().replace(f'name = "{NAME}"', f'name = "{name}"')
    text = text.replace(f"epochs = {job.epochs}", f"epochs = {job.epochs + 1}")
    (job.folder / f"{name}.toml").write_text(text + more)
    done = job.rover("submit", f"{name}.toml", "--from-checkpoint", NAME, "--wait", "--json")
    told = json.loads(job.rover("events", name, "-k", "job.ended", "--json").stdout.splitlines()[-1])["body"]
    assert (done.returncode == 0) == (told["state"] == "completed"), done.stderr
    return told["state"], told["detail"]


def damage_storage(job: SmallJob, kept: Path, what: str) -> None:
    """Put the checkpoints back as they were, then break every one of them."""
    store = job.folder / "store"
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    for path in store.glob("*/manifests/*" if what == "0 bytes" else "*/parts/*/*.part"):
        raw = bytearray(path.read_bytes())
        if what == "0 bytes":
            raw.clear()
        elif what == "flipped bits":
            raw[2000] ^= 4
        else:
            raw[-16:-12] = (2).to_bytes(4, "little")
        path.write_bytes(raw)


def test_a_job_starts_from_another_s_checkpoint_or_says_in_one_line_why_not(
    stack: RunningStack, tmp_path: Path
) -> None:
    job = checkpointed_job(stack.home.root, tmp_path, 1, 'keep = 2\nevery = "1s"')
    job.submit()
    job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint")
    job.complete()
    assert start_from(job, "longer")[0] == "completed"
    counted = json.loads(job.rover("witness", "longer", "--json").stdout)
    assert (counted["applied"], counted["missing"], counted["duplicated"]) == (job.rows * 2, 0, 0)
    state, detail = start_from(job, "wider", "[model]\nwidth = 24\n")
    assert (state, "those of a checkpoint that it starts from" in detail, "\n" in detail) == (
        "failed",
        True,
        False,
    ), detail
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "store", kept)
    for number, (what, says) in enumerate(
        [
            ("0 bytes", "has 0 bytes: it was never finished"),
            ("flipped bits", "is damaged at bytes"),
            ("newer", "restore with the newer one"),
        ]
    ):
        damage_storage(job, kept, what)
        state, detail = start_from(job, f"broken-{number}")
        assert (state, says in detail, "\n" in detail) == ("failed", True, False), (what, detail)
    assert job.rover("checkpoint", "verify", NAME, "--storage", str(kept)).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root")
def test_a_storage_that_is_full_or_gone_costs_no_sample_and_no_checkpoint(
    stack: RunningStack, tmp_path: Path
) -> None:
    store, disk = tmp_path / "store", tmp_path / "disk"
    for path, command in (
        (disk, ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]),
        (store, ["mount", "--bind", str(disk), str(store)]),
    ):
        path.mkdir()
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("nothing can be mounted here")
    try:
        job = checkpointed_job(stack.home.root, tmp_path, 20, 'keep = 2\nevery = "1s"')
        job.pace_s = 0.3  # there is something new to store for as long as the test takes
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint")
        with suppress(OSError):  # the daemon may have been faster
            (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        log = stack.home.services / "daemon.log"
        job.until(lambda: "No space left on device" in log.read_text(), "a line that names the full disk")
        reason = "no checkpoint can be stored from host h1"
        job.until(lambda: reason in job.rover("jobs").stdout, "`rover jobs` names the full storage at once")
        assert reason in job.rover("doctor").stdout
        assert job.rover("checkpoint", "verify", NAME).returncode == 0
        (disk / "ballast").unlink()
        before = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > before, "the next one, once there is room")
        job.until(lambda: reason not in job.rover("jobs").stdout, "`rover jobs` says nothing of it any more")
        subprocess.run(["umount", "-l", str(store)], check=True)
        job.until(lambda: "is it still mounted?" in log.read_text(), "a line that names the mount")
        assert list(store.iterdir()) == [], "nothing is written beside it in silence"
        subprocess.run(["mount", "--bind", str(disk), str(store)], check=True)
        before = len(job.facts("checkpoint.ready"))
        job.until(
            lambda: len(job.facts("checkpoint.ready")) > before, "the next one, once it is mounted again"
        )
        assert not job.facts("job.ended"), "training went on all the time"
        job.complete()
        assert job.rover("checkpoint", "verify", NAME).returncode == 0
    finally:
        for path in (store, disk):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
