"""What the deciders write is what schemas/ says: up to 1,000 messages of each kind from histories under chance."""

from __future__ import annotations

from typing import Any

from schemas_of_events import A_KIND, Judge

from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.simulation.history import live
from rover_bus.simulation.rules import Rules

HISTORIES = 60


def test_what_histories_write_fits_the_schemas() -> None:
    judge = Judge()

    class Tapped(MemoryBroker):
        def store(self, stream: Any, subject: str, body: bytes, *rest: Any) -> int:
            judge.take(body)
            return super().store(stream, subject, body, *rest)

        def request(self, asker: Any, answer: Any, subject: str, body: bytes, headers: Any) -> None:
            judge.take(body)
            super().request(asker, answer, subject, body, headers)

    for seed in range(HISTORIES):
        live(seed, rules=Rules(broker=Tapped))
    assert judge.complaints == []
    for often in ("log.batch.v1", "lease.v1", "heartbeat.v1"):
        assert judge.seen[often] == A_KIND
    assert len(judge.seen) >= 45, sorted(judge.seen)
