"""Histories of chance in which the broker's machine loses power, once to three times: each ends, and exactly (P21).

What is lost is the tail of every stream since its last sync, each at a place of its own. Each history is lived twice, with the
checkpoints that its seed draws and without any. More on demand: ROVER_POWER_CUTS=COUNT, from seed ROVER_POWER_CUTS_FIRST on.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from rover_bus.events.errors import RoverError
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan, draw

ONCE_WRONG = (3, 4, 11, 14, 17, 26, 27, 38, 39, 103, 1018, 1026, 1029, 1155, 1195)
FIRST = int(os.environ.get("ROVER_POWER_CUTS_FIRST", "100"))
SEEDS = (*ONCE_WRONG, *range(FIRST, FIRST + int(os.environ.get("ROVER_POWER_CUTS", "4"))))


def with_power_cuts(seed: int) -> Plan:
    """The history of a seed, and cuts of the power drawn apart from it."""
    plan, chance = draw(seed), random.Random(f"{seed}/power")
    expected_s = 3.0 + plan.epochs * plan.records / plan.batch_size * plan.batch_s / plan.workers
    cuts = [
        Blow(chance.uniform(0.3, expected_s), "power_cut", 0.0, chance.uniform(0.2, 6.0))
        for _ in range(chance.randint(1, 3))
    ]
    return replace(plan, blows=tuple(sorted((*plan.blows, *cuts), key=lambda blow: blow.at_s)))


@pytest.mark.parametrize("checkpoints", [True, False], ids=["as drawn", "no checkpoints"])
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_in_any_history_end_in_a_verdict(seed: int, checkpoints: bool) -> None:
    print(f"seed {seed}")
    plan = with_power_cuts(seed)
    try:
        verdict = live(plan if checkpoints else replace(plan, cut_every_s=0.0))
    except RoverError as error:
        pytest.fail(f"seed {seed}: {error}")
    assert verdict.good or verdict.state == "failed", f"seed {seed}: {verdict.wrong}"
    worse = [wrong for wrong in verdict.wrong if "applied twice" in wrong or "out of range" in wrong]
    assert not worse, f"seed {seed}: not even a job that failed may do that: {worse}"
