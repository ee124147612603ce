"""What the library does around every push: batches and generations (protocol P8)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rover_bus.client.figures import Figures
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.parameters import HandedOut, TrainingParameters
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.spec import Hashed, Sgd
from rover_bus.ps.store import BatchKey


class Served(LocalParameters):
    """Parameters of one process that say of which generation they are, as servers do."""

    def __init__(self, generation: int, coming: int) -> None:
        super().__init__()
        self.routing = SimpleNamespace(generation=generation)
        self.coming = coming

    def follow(self, generation: int) -> None:
        assert generation <= self.coming
        self.routing.generation = self.coming

    def acknowledged(self):
        return [ack._replace(generation=self.routing.generation) for ack in super().acknowledged()]


def trained(store: Served, generation: int) -> list[BatchKey]:
    """Return what is acknowledged of one batch leased in a generation."""
    parameters = TrainingParameters(store, Figures(), lambda: 0.0)
    parameters.declare(Hashed(name="t", rows=8, width=2, optimizer=Sgd(rate=0.1)))
    handed = HandedOut(Assigned(generation, 1, 0, 3), None, Work(), 1)
    parameters.hand_out(handed)
    pulled = parameters.pull({"t": np.array([1])})
    parameters.push(handed.key, {"t": np.ones_like(pulled["t"])})
    assert parameters.awaits(handed)
    return [ack.batch for _, ack in parameters.collect()]


def test_a_batch_of_a_newer_generation_than_our_servers_waits_for_its_own_and_is_not_lost() -> None:
    assert trained(Served(0, coming=1), generation=1) == [BatchKey(0, 3)]


def test_a_batch_of_a_former_generation_is_not_pushed() -> None:
    assert trained(Served(1, coming=1), generation=0) == []
