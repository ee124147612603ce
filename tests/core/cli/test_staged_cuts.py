"""What a stack that went down leaves in shared memory: freed where its job has ended, else named with its size and its reason."""

from __future__ import annotations

import os
from pathlib import Path

from rover_bus.cli.staged_cuts import Runs, free_staged
from rover_bus.flash.sweep import hold_job


def stage(root: Path, name: str, size_bytes: int = 1 << 20) -> Path:
    """Leave what a process that is gone has left of a run."""
    os.close(hold_job(root / name))
    (root / name / "ps-0.0.slot").write_bytes(b"\1" * size_bytes)
    return root / name


def test_each_kind_of_what_goes_on_is_named_with_its_size(tmp_path: Path) -> None:
    root = tmp_path / "shm"
    for name in ("a1", "a1-copies", "a1-parity", "b2", "b2-copies"):
        stage(root, name)
    lines = free_staged(root, Runs({"a1": "ads"}))
    assert lines == [
        f"kept: staged cuts of ads, 1.0 MiB of shared memory in {root}/a1: it goes on with `rover up`",
        f"kept: copies for other hosts of ads, 1.0 MiB of shared memory in {root}/a1-copies: it goes on with `rover up`",
        f"kept: parity for other hosts of ads, 1.0 MiB of shared memory in {root}/a1-parity: it goes on with `rover up`",
    ]
    assert sorted(path.name for path in root.iterdir()) == ["a1", "a1-copies", "a1-parity"]


def test_without_the_log_nothing_is_freed(tmp_path: Path) -> None:
    staged = stage(tmp_path / "shm", "a1")
    (line,) = free_staged(tmp_path / "shm", Runs({}, known=False))
    assert line.endswith(f"{staged}: the log could not be read")
    assert staged.exists()


def test_what_a_process_holds_is_named_and_stays(tmp_path: Path) -> None:
    staged = stage(tmp_path / "shm", "a1")
    lock = hold_job(staged)
    try:
        (line,) = free_staged(tmp_path / "shm", Runs({}))
        assert line.endswith(f"{staged}: a process still holds them")
        assert staged.exists()
    finally:
        os.close(lock)
    assert free_staged(tmp_path / "shm", Runs({})) == []
    assert not staged.exists()


def test_a_host_that_staged_nothing_has_nothing_to_say(tmp_path: Path) -> None:
    assert free_staged(tmp_path / "none", Runs({"a1": "ads"})) == []
