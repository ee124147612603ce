"""Histories that several tests look at, lived once: what each stored, and whether its messages fit the schemas.

24 here; ROVER_SIMULATIONS=COUNT lives so many, at most 300.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from schemas_of_events import Judge

from rover_bus.events.bus import Stored
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import FACTS
from rover_bus.simulation.history import live
from rover_bus.simulation.rules import Rules

HISTORIES = min(int(os.environ.get("ROVER_SIMULATIONS", "24").partition("@")[0]), 300)


@dataclass(frozen=True)
class Lived:
    """`facts`: those that each seed stored, in order. `judge` saw every body that was stored or asked."""

    facts: dict[int, list[Stored]]
    judge: Judge


@pytest.fixture(scope="session")
def histories() -> Lived:
    judge, facts = Judge(), {}

    class Tapped(MemoryBroker):
        def store(self, stream: Any, subject: str, body: bytes, *rest: Any) -> int:
            judge.take(body)
            return super().store(stream, subject, body, *rest)

        def request(self, asker: Any, answer: Any, subject: str, body: bytes, headers: Any) -> None:
            judge.take(body)
            super().request(asker, answer, subject, body, headers)

    for seed in range(HISTORIES):
        brokers: list[MemoryBroker] = []

        def build(*how: Any, kept: list[MemoryBroker] = brokers, **more: Any) -> MemoryBroker:
            kept.append(Tapped(*how, **more))
            return kept[-1]

        live(seed, rules=Rules(broker=build))
        facts[seed] = list(brokers[0].streams[FACTS].select(["rover.>"], 0))
    return Lived(facts, judge)
