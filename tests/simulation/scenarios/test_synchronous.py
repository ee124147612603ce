"""Synchronous jobs under chance: a barrier in each step, and whatever falls on their processes; the witness judges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rover_bus.simulation.history import live
from rover_bus.simulation.plan import draw

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sample_is_applied_once_and_no_worker_waits_for_ever(seed: int) -> None:
    plan = replace(draw(seed), synchronous=True)
    said: list[str] = []
    verdict = live(plan, say=lambda at_s, what: said.append(f"{at_s:7.2f} {what}"))
    assert verdict.good, [*verdict.wrong, *said[-40:]]
