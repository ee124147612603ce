"""The whole system in virtual time with a living Brain: nobody says how many workers; it finds out, while things break.

The witness judges as in every history: a change of size loses nothing and applies nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import BrainBatch
from rover_bus.events import facts
from rover_bus.events.codec import decode, decode_any
from rover_bus.events.log import SnapshotChunk
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import Faults
from rover_bus.events.streams import FACTS, LOG
from rover_bus.events.subjects import BRAIN_LOG
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan
from rover_bus.simulation.rules import Rules

QUIET = Faults(delay_s=(0.0, 0.002), ack_delay_s=(0.0, 0.002))


def lived(seed: int, *blows: Blow, most: int = 4, batches: int = 900) -> tuple[Any, MemoryBroker]:
    brokers: list[MemoryBroker] = []

    def broker(*args: Any) -> MemoryBroker:
        brokers.append(MemoryBroker(*args))
        return brokers[-1]

    plan = Plan(
        seed=seed,
        records=batches * 8,
        batch_size=8,
        epochs=1,
        workers=0,
        servers=1,
        batch_s=0.15,
        target_s=1.0,
        faults=QUIET,
        drop=0.01,
        double=0.01,
        delay_s=0.005,
        in_flight=1,
        blows=blows,
        sample_s=1.0,
        most_workers=most,
    )
    return live(plan, rules=Rules(broker=broker)), brokers[0]


def found(broker: MemoryBroker, kind: type[Any]) -> Iterator[Any]:
    for stored in broker.streams[FACTS].select(["rover.job.*.*.*"]):
        fact = decode_any(stored.body)
        if isinstance(fact, kind):
            yield fact


def test_a_job_that_nobody_sized_grows_from_one_worker_by_measuring() -> None:
    verdict, broker = lived(1)
    assert verdict.good, verdict.wrong
    assert [fact.workers for fact in found(broker, facts.PlanApplied)][:3] == [1, 2, 4]
    ends = {fact.plan: fact for fact in found(broker, facts.PlanKept)}
    assert ends[3].after > 1.2 * ends[3].before
    for plan in found(broker, facts.PlanProposed):
        assert plan.plan == 1 or plan.log_sequence > 0


@pytest.mark.parametrize("seed", range(3))
def test_sizes_change_while_workers_masters_and_the_brain_die_and_nothing_is_lost(seed: int) -> None:
    blows = (
        Blow(6.0 + seed, "kill_worker", 0.3),
        Blow(9.0 + seed, "kill_brain", 0.0, 5.0),
        Blow(17.0, "kill_leader"),
        Blow(22.0, "restart_broker", 0.0, 2.0),
        Blow(27.0, "kill_worker", 0.8),
    )
    verdict, broker = lived(seed, *blows)
    assert verdict.good, verdict.wrong
    assert max(fact.workers for fact in found(broker, facts.PlanApplied)) >= 3
    resumed = [fact.resumed_from for fact in found(broker, facts.PlanProposed)]
    assert resumed[0] == 0
    assert resumed[-1] > 0


def test_the_log_of_the_brain_gives_every_state_again_and_names_no_plan_twice() -> None:
    _, broker = lived(5, Blow(9.0, "kill_brain", 0.0, 3.0), batches=500)
    twins = [BrainDecider(7), BrainDecider(7)]
    for stored in broker.streams[LOG].select([BRAIN_LOG]):
        for record in decode(stored.body, BrainBatch).records:
            if not isinstance(record, SnapshotChunk):
                for twin in twins:
                    twin.evolve(record)
        assert twins[0].dump() == twins[1].dump()
        twins[1].restore(twins[0].dump())
    plans = [(fact.brain_term, fact.plan) for fact in found(broker, facts.PlanProposed)]
    assert len(set(plans)) == len(plans)
