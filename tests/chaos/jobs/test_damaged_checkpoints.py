"""All servers die with their memory, and checkpoints on storage are damaged: the newest whole one is taken, or a person is asked.

While the daemon is stopped nothing new is stored, so that a test knows which checkpoints there are; then bits are flipped, the
servers are killed, and their shared memory is taken.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from outside import living
from small_job import NAME, SmallJob, checkpointed_job

from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.flash.places import host_root

pytestmark = pytest.mark.chaos
FLIPPED = 64  # the first byte of the first array


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RunningStack]:
    with RunningStack(Home(tmp_path / "home"), here=Here("h1"), disposable=True) as running:
        yield running


@pytest.fixture
def start(stack: RunningStack, tmp_path: Path) -> Callable[..., SmallJob]:
    """Start a job that stores a checkpoint a second, and see the first five become ready."""

    def run(checkpoint: str, top: str = "", epochs: int = 20) -> SmallJob:
        job = checkpointed_job(stack.home.root, tmp_path, epochs, f'every = "1s"\n{checkpoint}')
        job.top = top
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.ready")) >= 5, "five checkpoints")
        return job

    return run


def manifests(job: SmallJob) -> list[Path]:
    """The manifests on storage, newest first."""
    return sorted(job.folder.glob("store/*/manifests/*.manifest"), reverse=True)


def cut_of(path: Path) -> int:
    return int(path.name.partition(".")[0].split("-")[2])


def damage(job: SmallJob, cut: int) -> None:
    """Flip a bit in each part file of a checkpoint; the same once more mends it."""
    for path in job.folder.glob(f"store/*/parts/*/*-{cut:012d}-*.part"):
        raw = bytearray(path.read_bytes())
        raw[FLIPPED] ^= 4
        path.write_bytes(raw)


def stopped_between_checkpoints(daemon: int, job: SmallJob) -> bool:
    """Stop the daemon, unless it is storing a checkpoint or pruning: that would go on after the harm, and push out a whole one."""
    os.kill(daemon, signal.SIGSTOP)
    stored = {cut_of(path) for path in manifests(job)}
    begun = {cut_of(path) for path in job.folder.glob("store/*/parts/*/*")}
    kept = re.findall(r"^keep = (\d+)$", job.checkpoint, re.MULTILINE)
    is_pruned = "keep_every" in job.checkpoint or len(stored) <= int(kept[0])
    if begun and max(begun) <= max(stored, default=0) and is_pruned:
        return True
    os.kill(daemon, signal.SIGCONT)
    return False


def lose_the_model(stack: RunningStack, job: SmallJob, harm: Callable[[list[Path]], None]) -> list[int]:
    """Stop the daemon, do `harm` to the storage, take the servers and their memory; return the cuts on storage, newest first."""
    daemon = stack.pids()["daemon"]
    try:
        job.until(lambda: stopped_between_checkpoints(daemon, job), "a moment at which none is being stored")
        found = manifests(job)
        harm(found)
        servers = living(stack.home.root, NAME, "ps")
        for slot in host_root(stack.home.node).rglob("*.slot"):
            slot.unlink(missing_ok=True)
        for row in servers:
            os.kill(row["pid"], signal.SIGKILL)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert len(servers) == 2
    return [cut_of(path) for path in found]


@pytest.mark.parametrize(
    ("keep", "damaged"),
    [("keep = 3", 2), ("keep = 2\nkeep_every = 1", 4)],
    ids=["two of the three that are kept", "more than the master remembers"],
)
def test_the_newest_whole_checkpoint_is_restored_and_no_whole_one_is_pruned(
    start: Callable[..., SmallJob], stack: RunningStack, keep: str, damaged: int
) -> None:
    job = start(keep)
    cuts = lose_the_model(stack, job, lambda found: [damage(job, cut_of(path)) for path in found[:damaged]])
    whole = cuts[damaged]
    job.until(lambda: job.facts("server.restored"), "a restore")
    assert {fact["cut"] for fact in job.facts("server.restored")[:2]} == {whole}
    failed = {fact["cut"]: fact["reason"] for fact in job.facts("checkpoint.failed") if fact["restoring"]}
    for cut in cuts[:damaged]:
        assert "is damaged at bytes" in failed[cut], (cut, failed)
    assert not job.facts("checkpoint.none_usable")
    job.until(
        lambda: len(job.facts("checkpoint.ready")[-1:]) and newest_ready(job) > max(cuts) + 2, "new ones"
    )
    job.until(lambda: len(job.facts("host.checkpoint_damaged")) >= damaged, "the damaged ones set aside")
    assert {fact["cut"] for fact in job.facts("host.checkpoint_damaged")} == set(cuts[:damaged])
    listed = json.loads(job.rover("checkpoint", "list", NAME, "-o", "json").stdout)
    assert {row["cut"] for row in listed if row["state"] == "damaged"} == set(cuts[:damaged])
    job.complete()


def newest_ready(job: SmallJob) -> int:
    return max((fact["cut"] for fact in job.facts("checkpoint.ready")), default=0)


def all_damaged(job: SmallJob) -> Callable[[list[Path]], None]:
    """The newest has two manifests that cannot be read, the others damaged parts."""

    def harm(found: list[Path]) -> None:
        for path in (found[0], found[0].with_suffix(".copy")):
            path.write_bytes(b"")
        for path in found[1:]:
            damage(job, cut_of(path))

    return harm


def test_a_job_whose_checkpoints_are_all_damaged_waits_for_a_person(
    start: Callable[..., SmallJob], stack: RunningStack
) -> None:
    job = start("keep = 3")
    cuts = lose_the_model(stack, job, all_damaged(job))
    job.until(lambda: job.facts("checkpoint.none_usable"), "the question")
    (asked,) = job.facts("checkpoint.none_usable")
    assert asked["choice"] == "ask"
    said = " ".join(asked["problems"])
    assert all(f"cut {cut}: " in said for cut in cuts[1:]), said
    assert "has 0 bytes" in said
    job.until(lambda: not living(stack.home.root, NAME, "ps", "worker"), "members released")
    row = json.loads(job.rover("jobs", "-o", "json").stdout)[0]
    assert (row["state"], "none of its checkpoints can be restored" in row["reason"]) == ("paused", True), row
    assert manifests(job), "nothing is deleted"
    assert job.rover("resume", NAME, "--from-nothing", "--checkpoint", "1").returncode == 2
    assert job.rover("resume", NAME, "--checkpoint", str(cuts[1])).returncode == 0, "still damaged"
    job.until(lambda: len(job.facts("checkpoint.none_usable")) == 2, "the question again")
    for cut in cuts[1:]:  # its parts may be differences to those of the others
        damage(job, cut)
    job.until(lambda: job.rover("resume", NAME, "--checkpoint", str(cuts[1])).returncode == 0, "an answer")
    job.until(lambda: len(job.facts("server.restored")) == 2, "the model")
    assert {fact["cut"] for fact in job.facts("server.restored")} == {cuts[1]}
    assert job.rover("resume", NAME, "--from-nothing").returncode != 0, "it has its model again"
    job.complete()


def test_a_person_may_let_it_begin_from_nothing(start: Callable[..., SmallJob], stack: RunningStack) -> None:
    job = start("keep = 2", epochs=10)
    lose_the_model(stack, job, all_damaged(job))
    job.until(lambda: job.facts("checkpoint.none_usable"), "the question")
    assert job.rover("resume", NAME, "--from-nothing").returncode == 0
    job.complete()
    assert not job.facts("server.restored")


@pytest.mark.timeout(900)  # storage is looked at once a minute, and two jobs train to their ends
def test_a_job_whose_storage_is_away_gives_its_room_to_another_and_goes_on_once_it_is_back(
    stack: RunningStack, tmp_path: Path
) -> None:
    cores = (os.cpu_count() or 1) * 0.15  # four of them fit, eight do not
    job = replace(checkpointed_job(stack.home.root, tmp_path, 8, 'every = "1s"\nkeep = 2'), cores=cores)
    other = replace(
        checkpointed_job(stack.home.root, tmp_path, 1, 'every = "1h"'), name="other", cores=cores, workers=3
    )
    job.submit()
    job.until(lambda: len(job.facts("checkpoint.ready")) >= 2, "two checkpoints")
    (store,) = {path.parent.parent for path in manifests(job)}
    away = tmp_path / "away"
    cuts = lose_the_model(stack, job, lambda _: os.rename(store, away))
    job.until(lambda: job.facts("checkpoint.none_usable"), "the question")
    assert [(each["release"], each.get("by", "")) for each in job.facts("job.paused")] == [(True, "")]
    other.submit()
    other.until(lambda: other.facts("job.reported"), "progress in its room")
    explained = job.rover("explain", NAME).stdout
    assert "waits for one on storage" in explained
    assert "holds no room" in explained
    os.rename(away, store)
    job.until(lambda: job.facts("job.resumed"), "the checkpoint found without a person")
    other.complete()
    job.until(lambda: len(job.facts("server.restored")) == 2, "the model")
    assert {fact["cut"] for fact in job.facts("server.restored")} == {cuts[0]}
    assert {fact["source"] for fact in job.facts("server.restored")} == {"storage"}
    job.complete()


@pytest.mark.parametrize("setting", ["fail", "restart"])
def test_the_job_file_says_what_becomes_of_a_job_without_a_usable_checkpoint(
    start: Callable[..., SmallJob], stack: RunningStack, setting: str
) -> None:
    job = start("keep = 2", f'on_no_usable_checkpoint = "{setting}"', epochs=10)
    cuts = lose_the_model(stack, job, all_damaged(job))
    job.until(lambda: job.facts("checkpoint.none_usable"), "the word of the job file")
    assert job.facts("checkpoint.none_usable")[0]["choice"] == setting
    if setting == "restart":
        job.complete()
        return
    job.until(lambda: job.facts("job.ended"), "the end")
    (ended,) = job.facts("job.ended")
    assert (ended["state"], ended["reason"]) == ("failed", "no_usable_checkpoint")
    assert f"cut {cuts[1]}: " in ended["detail"]
