"""A state directory whose broker's store is gone names the jobs that ran there; one that has a store, or never ran any, none."""

from __future__ import annotations

from pathlib import Path

from rover_bus.cli.home import Home
from rover_bus.cli.lost_store import MOST_NAMED, lost_jobs, tell_lost


def held(root: Path, *runs: str) -> Home:
    for run in runs:
        (root / "node" / "logs" / run).mkdir(parents=True)
    return Home(root)


def test_jobs_without_a_store_are_named_once_each(tmp_path: Path) -> None:
    home = held(tmp_path, "clicks.0a1b", "clicks.0a1c", "team@ads.v2.0a1d")
    (tmp_path / "node" / "members" / "clicks.0a1b").mkdir(parents=True)
    assert lost_jobs(home) == ["clicks", "team/ads.v2"]
    said = "\n".join(tell_lost(home))
    assert "clicks, team/ads.v2" in said
    assert f"rover restore BACKUP --dir {tmp_path}" in said
    assert str(home.checkpoints) in said


def test_an_empty_store_is_none(tmp_path: Path) -> None:
    home = held(tmp_path, "clicks.0a1b")
    (tmp_path / "broker" / "store" / "jetstream" / "ACCOUNT" / "streams").mkdir(parents=True)
    assert lost_jobs(home) == ["clicks"]
    (tmp_path / "broker" / "store" / "jetstream" / "ACCOUNT" / "streams" / "ROVER_LOG").mkdir()
    assert tell_lost(home) == []


def test_a_new_directory_has_lost_nothing(tmp_path: Path) -> None:
    assert tell_lost(Home(tmp_path / "new")) == []


def test_many_are_counted(tmp_path: Path) -> None:
    home = held(tmp_path, *(f"job-{number:02}.0a" for number in range(MOST_NAMED + 3)))
    assert "job-07 and 3 more" in tell_lost(home)[0]
