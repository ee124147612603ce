"""P14 in the whole system: checkpoints on storage are damaged, then every process and all memory is lost; the witness is the judge.

The product takes the newest checkpoint that is whole, whatever it has to pass over; a weaker rule loses samples. More histories on
demand: `make simulate`, or ROVER_DAMAGED=COUNT or COUNT@FIRST.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from seeds import seeds

from rover_bus.events.errors import RoverError
from rover_bus.events.memory_links import CALM
from rover_bus.master import recovery
from rover_bus.ps.simulated_memory import SimulatedMemory
from rover_bus.ps.staging import PartMissing
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan, draw
from rover_bus.simulation.rules import Rules

STORED = Plan(
    seed=5,
    records=600,
    batch_size=5,
    epochs=2,
    workers=3,
    servers=2,
    batch_s=0.05,
    target_s=0.5,
    faults=CALM,
    drop=0.05,
    double=0.2,
    delay_s=0.03,
    in_flight=3,
    cut_every_s=0.5,
    stored=True,
    blows=(Blow(5.0, "damage_storage", 0.3, 2), Blow(5.1, "lose_all_memory")),
)
SEEDS = seeds("ROVER_DAMAGED", few=30, many=60)
BLOCKS = 2


class Watched(SimulatedMemory):
    """Remembers which cuts were looked for, and which were found."""

    looked: list[tuple[int, bool]] = []

    def find(self, order, wanted):
        try:
            found = super().find(order, wanted)
        except (PartMissing, RoverError):
            self.looked.append((order.cut, False))
            raise
        self.looked.append((order.cut, True))
        return found


def lived(plan):
    Watched.looked.clear()
    verdict = live(plan, rules=Rules(memory=Watched))
    assert verdict.good, verdict.wrong
    return Watched.looked


@pytest.mark.parametrize("seed", [5, 7, 10])
def test_two_damaged_checkpoints_discard_no_other(seed):
    looked = lived(replace(STORED, seed=seed))
    tried = list(dict.fromkeys(cut for cut, _ in looked))
    assert sum(not whole for _, whole in looked) >= 2
    assert looked[-1][1]
    assert tried == sorted(tried, reverse=True), "newest first"


@pytest.mark.parametrize("seed", [5, 7])
def test_where_none_is_whole_the_job_does_what_its_file_says(seed):
    plan = replace(
        STORED, seed=seed, blows=(Blow(5.0, "damage_storage", 0.3, 9), Blow(5.1, "lose_all_memory"))
    )
    assert not any(whole for _, whole in lived(plan))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_any_history_with_damaged_storage_ends_in_a_good_verdict(block):
    failed = []
    for seed in SEEDS[block::BLOCKS]:
        plan = replace(draw(seed), stored=True, cut_every_s=draw(seed).cut_every_s or 0.5)
        if not any(blow.act == "damage_storage" for blow in plan.blows):
            at_s = 2.0 + seed % 5 / 2
            more = (
                Blow(at_s, "damage_storage", seed / 1000, 1 + seed % 4),
                Blow(at_s + 0.2, "lose_all_memory"),
            )
            plan = replace(plan, blows=tuple(sorted((*plan.blows, *more), key=lambda blow: blow.at_s)))
        try:
            wrong = live(plan).wrong
        except RoverError as error:
            wrong = (str(error),)
        failed += [f"seed {seed}: {'; '.join(wrong)}"] if wrong else []
    assert not failed, "\n".join(failed)


# -- each rule switched off ------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_found_and_restored_on_one_server_alone_loses_samples(monkeypatch):
    """All servers go back to it: the survivors' past is another one, and lacks what its ledger calls committed."""
    monkeypatch.setattr(recovery, "_who_goes", lambda state, lost: {0})
    verdicts = [live(replace(STORED, seed=seed)) for seed in (5, 6, 7)]
    assert any(not verdict.good for verdict in verdicts)
