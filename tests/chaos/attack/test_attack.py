"""Random histories of real processes with damage among the faults, judged by the witness: `make attack SEEDS=A..B`.

What a seed means is in tests/rigs/attack/drawing.py; a failing seed is in the name of its test, what was done in its text.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attack.blows import describe
from attack.drawing import draw
from attack.play import play
from outside import seeds

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]
FIRST, _, LAST = os.environ.get("ROVER_ATTACK_SEEDS", "0..2").partition("..")


@pytest.mark.parametrize("seed", seeds(int(FIRST), int(LAST or FIRST) + 1 - int(FIRST), soon=2))
def test_every_job_ends_with_every_sample_once_or_by_a_name_that_explains_it(
    seed: int, tmp_path: Path
) -> None:
    history = draw(seed)
    print(f"seed {seed}: {history.hosts} hosts, memory {history.memory_mib} MiB, disk {history.disk_mib} MiB")
    print("\n".join(map(str, history.jobs)))
    outcome = play(history, tmp_path)
    print("\n".join([*outcome.done, str(outcome.ends)]))
    assert outcome.wrong == [], "\n".join([f"seed {seed}", *describe(history.blows), "done:", *outcome.done])
