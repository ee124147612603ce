"""P21: a restored log gives numbers again that the erased past gave already. The timeline alone tells their tokens apart."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from rover_bus.events.facts import JobRestored
from rover_bus.master import evolution

UNTIL_A_CHECKPOINT = """
submit batch=10 checkpoint_s=1 on_server_lost=restore keep=1
plan workers=1 servers=1
join ps-0
join worker-0
register worker-0 records=400 batch=10
lease worker-0 wanted=1
beat worker-0 progress=1:1 held= servers=1
wait 1.25
stage ps-0 cut=1
digested ps-0 cut=1
stored ps-0 1
manifest h 1
"""
BACK_FROM_IT = """
join ps-0
restored ps-0 cut=1
join worker-0
lease worker-0 request=9 wanted=1
"""
TOKEN = (1 << 40) + 1  # the first of generation 1


def run(script: Any, lines: str) -> None:
    for line in lines.strip().splitlines():
        script.run(line)


def said_of_a_late_commit(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch, timeline: int | None) -> str:
    """Return what a master that leads from a restored log answers to a worker of the erased past: same generation, same token."""
    monkeypatch.setattr(evolution, "ERASED_GENERATIONS", 0)
    erased, restored = scripts.Script(), scripts.Script()
    for script in (erased, restored):
        run(script, UNTIL_A_CHECKPOINT)
    run(erased, f"exit ps-0\n{BACK_FROM_IT.strip()}")
    former = erased.decider.timeline
    record = JobRestored(timeline=former if timeline is None else timeline)
    restored.log.append(record)
    restored.decider.evolve(record)
    run(restored, f"takeover\nsearched found=1\n{BACK_FROM_IT.strip()}")
    assert restored.decider.state.generation == erased.decider.state.generation == 1
    said: str = restored.run(f"beat worker-0 timeline={former} progress={TOKEN}:2 held= servers=2")
    return said


def test_a_commit_of_the_erased_past_is_refused(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_of_a_late_commit(scripts, monkeypatch, timeline=77)
    assert "stale_timeline" in said
    assert "batches.committed" not in said


def test_without_a_new_timeline_it_would_count(scripts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "batches.committed" in said_of_a_late_commit(scripts, monkeypatch, timeline=None)
