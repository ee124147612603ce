"""Every fact of whole histories under chance names what led to it, and its story reaches the submission (design 2.4)."""

from __future__ import annotations

from typing import Any

from walked import offenders

from rover_bus.cli.views.history import read_happened
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import FACTS
from rover_bus.simulation.history import live
from rover_bus.simulation.rules import Rules

HISTORIES = 60


def test_the_story_of_every_fact_of_a_history_reaches_its_submission() -> None:
    kinds: set[str] = set()
    for seed in range(HISTORIES):
        brokers: list[MemoryBroker] = []

        class Kept(MemoryBroker):
            def __init__(self, *how: Any, **more: Any) -> None:
                super().__init__(*how, **more)
                brokers.append(self)  # noqa: B023 - used within this turn only

        live(seed, rules=Rules(broker=Kept))
        [broker] = brokers
        happened = [read_happened(stored) for stored in broker.streams[FACTS].select(["rover.>"], 0)]
        kinds |= {each.fact.kind() for each in happened if each.fact is not None}
        assert offenders(happened) == [], f"seed {seed}"
    assert {"member.lost", "ledger.rewound", "checkpoint.opened", "slots.moved"} <= kinds
