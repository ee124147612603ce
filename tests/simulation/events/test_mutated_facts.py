"""10,000 mutated facts of every kind into whole histories: each job is finished in the end, and the witness judges it.

50 histories of 200 facts here; ROVER_MUTANTS=COUNT or COUNT@FIRST lives others. A seed that fails is named, and lives again alike.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from mutants import mutant

from rover_bus.events.bus import Stored
from rover_bus.events.codec import type_of
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import CALM
from rover_bus.events.streams import FACTS
from rover_bus.simulation.cluster import HOST, JOB
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import draw
from rover_bus.simulation.rules import Rules

BLOCKS, A_HISTORY = 10, 200
COUNT, _, FIRST = os.environ.get("ROVER_MUTANTS", "50").partition("@")
SEEDS = range(int(FIRST or 0), int(FIRST or 0) + int(COUNT))
EVERY_S = 0.0375


class Hostile(MemoryBroker):
    """A broker at which somebody stores what nobody should, while the job runs."""

    def __init__(self, seed, faults):
        super().__init__(seed, faults)
        self._draw_mutants = random.Random(f"{seed}/mutants")
        self._seen: dict[str, Stored] = {}
        self.stored_mutants = 0
        self._begun = False

    def store(self, stream, subject, body, headers, expected_last):
        sequence = super().store(stream, subject, body, headers, expected_last)
        if stream.spec.name == FACTS and (tag := type_of(body)):
            self._seen[tag] = Stored(sequence, subject, body, dict(headers))
            if not self._begun and ".job.submitted" in subject:
                self._begun = True
                self.post(EVERY_S, self._strike)
        return sequence

    def _strike(self):
        if self.stored_mutants == A_HISTORY or "job.ended.v1" in self._seen:
            return
        self.stored_mutants += 1
        made = mutant(self._draw_mutants, dict(self._seen), JOB, HOST)
        MemoryBroker.store(self, self.streams[FACTS], made.subject, made.body, made.headers, None)
        self.post(EVERY_S, self._strike)


def plan_of(seed):
    """A calm history that is long enough for all of its mutants."""
    drawn = draw(seed)
    workers = 1 + seed % 3
    return replace(
        drawn, faults=CALM, drop=0.0, double=0.0, blows=(), poison=(), bad_rows=(), workers=workers, batch_size=4,
        records=240, epochs=2, batch_s=0.2, servers=1 + seed % 2, cut_every_s=(0.0, 0.5)[seed % 2],
    )  # fmt: skip


def live_with_mutants(seed):
    brokers = []

    def build(*args):
        brokers.append(Hostile(*args))
        return brokers[-1]

    verdict = live(plan_of(seed), rules=Rules(broker=build))
    return verdict, brokers[-1].stored_mutants


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_job_into_which_mutated_facts_are_stored_is_finished_in_the_end(block):
    stored = 0
    for seed in SEEDS[block::BLOCKS]:
        print(f"seed {seed}")
        verdict, mutants = live_with_mutants(seed)
        assert verdict.good, f"seed {seed}: {verdict.wrong}"
        stored += mutants
    assert stored >= 0.9 * A_HISTORY * len(SEEDS[block::BLOCKS])
