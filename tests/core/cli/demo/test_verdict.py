"""The end of the demo: both columns, where the off one comes from, and records that count only for the very same job."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rover_bus.cli.demo import unmanaged_runs, verdict
from rover_bus.cli.demo.chaos import STORY, draw_strikes, story_strikes
from rover_bus.events.job import DataSpec, JobSpec

SPEC = JobSpec(name="demo", program=["python", "train.py"], data=DataSpec(train="t.tsv", seed=1))
OFF: dict[str, Any] = {
    "workers": 1,
    "servers": 1,
    "wall_seconds": 301.5,
    "samples_lost": 0,
    "samples_duplicated": 12512,
    "auc": 0.7,
    "logloss": 0.5,
    "workers_lost": 2,
}
ON: dict[str, Any] = {
    "samples_total": 1000,
    "samples_committed": 990,
    "samples_dead_lettered": 3,
    "samples_duplicated": 0,
    "wall_seconds": 51.3,
    "auc": None,
    "workers_lost": 2,
}


def lines_of(off: dict[str, Any] | None) -> list[list[str]]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(verdict.compare(ON, off))
    return [line.split() for line in console.export_text().splitlines()]


def test_the_verdict_sets_both_runs_side_by_side_and_counts_what_was_lost() -> None:
    told = lines_of(OFF)
    assert ["time", "301.5", "s", "51.3", "s"] in told
    assert ["samples", "lost", "0", "7"] in told
    assert ["samples", "twice", "12,512", "0"] in told
    assert ["AUC", "0.7000", "-"] in told


def test_a_run_that_was_not_made_is_not_made_up() -> None:
    assert ["samples", "twice", "-", "0"] in lines_of(None)
    assert "not run for this seed" in verdict.source(None)
    assert "recorded on 2 cores" in verdict.source(OFF | {"machine": "2 cores"})
    assert "run just now" in verdict.source(OFF)


def test_a_record_is_found_for_the_very_same_job_and_kills_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmanaged_runs, "FILE", tmp_path / "runs.json")
    strikes = story_strikes(1)
    key = unmanaged_runs.key_of(SPEC, strikes, 100)
    assert unmanaged_runs.recall(key) is None
    unmanaged_runs.record(key, OFF, "2 cores")
    assert unmanaged_runs.recall(key) == OFF | {"machine": "2 cores"}
    slower = SPEC.replace(data=SPEC.data.replace(read_latency_s=0.03))
    others = [
        unmanaged_runs.key_of(slower, strikes, 100),
        unmanaged_runs.key_of(SPEC, strikes, 101),
        unmanaged_runs.key_of(SPEC, draw_strikes(1, "all"), 100),
        unmanaged_runs.key_of(SPEC.replace(data=SPEC.data.replace(seed=2)), strikes, 100),
    ]
    assert [unmanaged_runs.recall(other) for other in others] == [None] * 4


def test_the_story_strikes_as_many_as_the_seed_does_and_in_its_own_order() -> None:
    story = story_strikes(7)
    assert [strike.target for strike in story] == [target for _, target in STORY]
    assert sorted(strike.target for strike in story) == sorted(s.target for s in draw_strikes(7, "all"))
    assert story == sorted(story)
