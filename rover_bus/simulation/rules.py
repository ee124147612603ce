"""What a history is built from, each part replaceable: a test swaps one to show which history its rule is for.

Feeds history.py, cluster.py and members.py. Everything here is the product's own unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rover_bus.client.lease import Assigned
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import Faults
from rover_bus.master.service import build_master
from rover_bus.node.simulated import SimulatedHost
from rover_bus.ps.core import ServerCore
from rover_bus.ps.simulated import SimulatedParameters
from rover_bus.ps.simulated_memory import SimulatedMemory
from rover_bus.ps.store import BatchKey
from rover_bus.simulation.tables import SimulatedTables


def push_identity(assigned: Assigned) -> BatchKey:
    """Return what a push is named by: epoch and batch, never the lease (protocol P2)."""
    return BatchKey(assigned.epoch, assigned.number)


@dataclass(frozen=True)
class Rules:
    """The parts of a history. `on_server_lost`: what the job asks for when a server dies (protocol P24); "": by its plan."""

    core: type[ServerCore] = ServerCore
    memory: type[SimulatedMemory] = SimulatedMemory
    parameters: type[SimulatedParameters] = SimulatedParameters
    push_identity: Callable[[Assigned], BatchKey] = push_identity
    build_master: Callable[..., Any] = build_master
    broker: Callable[[int, Faults], MemoryBroker] = MemoryBroker
    host: Callable[..., SimulatedHost] = SimulatedHost
    tables: type[SimulatedTables] = SimulatedTables
    on_server_lost: Literal["", "fail", "restart", "restore"] = ""


PRODUCT = Rules()
