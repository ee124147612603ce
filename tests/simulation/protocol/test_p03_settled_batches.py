"""P3: servers fold what is settled into their applied sets, so that holes do not stay for ever; and never fold too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rover_bus.events.memory_links import CALM
from rover_bus.ps.core import ServerCore
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan
from rover_bus.simulation.rules import Rules

POISON = tuple(range(4, 96, 6))  # each dead-lettered batch is a hole in every applied set
HOLES = Plan(
    seed=5,
    records=600,
    batch_size=5,
    epochs=1,
    workers=3,
    servers=2,
    batch_s=0.05,
    target_s=0.5,
    faults=CALM,
    drop=0.02,
    double=0.1,
    delay_s=0.01,
    in_flight=1,
    cut_every_s=0.6,
    poison=POISON,
)


def lengths(plan, settles=True):
    """Live a history; return its verdict and how many intervals each server's applied sets had after its last push."""
    found = {}

    class Counting(ServerCore):
        def _push(self, request, body):
            reply = super()._push(request, body)
            found[self.state.index] = max(len(g.applied.get(request.epoch, ())) for g in self.state.groups)
            return reply

        def settle(self, epoch, batches):
            if settles:
                super().settle(epoch, batches)

    verdict = live(plan, rules=Rules(core=Counting))
    assert verdict.good, verdict.wrong
    return found


@pytest.mark.parametrize("every_s", [0.0, 0.6], ids=["no cuts", "cuts"])
def test_holes_that_dead_batches_leave_are_folded_away(every_s):
    plan = replace(HOLES, cut_every_s=every_s)
    assert min(lengths(plan, settles=False).values()) > len(POISON) - 3
    assert max(lengths(plan).values()) < len(POISON) // 2


@pytest.mark.parametrize("seed", range(6))
def test_folding_loses_nothing_when_servers_go_back_to_cuts(seed):
    """Survivors have folded, the restored server has what its cut held: the witness sees each sample once."""
    blows = (Blow(4.0 + seed / 3, "kill_server", 0.9), Blow(8.0 + seed / 2, "kill_server", 0.1))
    lengths(replace(HOLES, seed=seed, blows=blows))
