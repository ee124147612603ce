"""P11 and P3 where a move and a loss meet: a server dies within moments of a hand-over; the survivors keep what the log gave them.

Random histories of the real deciders, services, servers and sessions. What dies, and when, is drawn around every `MoveEnded`: the
log may have given slots to a target that has not heard of it. A survivor that drops them is given slots which it has not,
refuses the routing and ends: a second server lost. So the count of servers lost is compared with the count of servers killed.
"""

from __future__ import annotations

import asyncio
import random
from functools import cache

import pytest

from rover_bus.events.errors import RoverError
from rover_bus.events.facts import SlotsMoved
from rover_bus.events.identity import Member
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import CALM, Faults
from rover_bus.master.decider import MasterDecider
from rover_bus.master.service import build_master
from rover_bus.node.simulated import SimulatedHost
from rover_bus.ps.core import ServerCore
from rover_bus.ps.simulated_memory import SimulatedMemory
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan
from rover_bus.simulation.rules import Rules

SEEDS = range(9000, 9020)
MOST_STRIKES = 3  # a history


class Striker:
    """Kills a server some moments after a move has ended in the log: its source mostly. Often the target cannot hear meanwhile."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"{seed}/strikes")
        self.seen: set[int] = set()  # moves: a successor and a standby read the same records
        self.killed: list[str] = []
        self.hosts: list[SimulatedHost] = []
        self.brokers: list[MemoryBroker] = []
        self.names: list[str] = []  # of connections
        self.unread = (
            0  # restores that found no digests yet, or nothing: the job goes back once more, to a cut before
        )

    def note(self, record: SlotsMoved) -> None:
        if record.move in self.seen:
            return
        self.seen.add(record.move)
        if len(self.killed) >= MOST_STRIKES or self.chance.random() < 0.4:
            return
        loop, chance = asyncio.get_running_loop(), self.chance
        match chance.choice(("deaf", "deaf", "leaderless", "all well")):
            case "deaf":
                self.cut_off(record.target, chance.choice((0.2, 0.5)))
            case "leaderless":
                loop.call_soon(self.kill, "master-0")
                loop.call_soon(self.kill, "master-1")
        victim = chance.choice([record.source.name] * 3 + [record.target.name, "ps-0"])
        loop.call_later(chance.choice((0.0, 0.01, 0.1, 0.4)), self.kill, victim)

    def cut_off(self, member: Member, seconds: float) -> None:
        """A member sends and receives nothing on the bus for a while: the answer to its heartbeat is lost."""
        [broker] = self.brokers
        name = next(name for name in reversed(self.names) if name.startswith(f"{member}/"))
        broker.partition(name)
        asyncio.get_running_loop().call_later(seconds, broker.heal, name)

    def kill(self, place: str) -> None:
        for host in self.hosts:
            for key in [key for key, life in host.members.items() if life.desired.member.name == place]:
                host.kill(key)
                self.killed += [place] * place.startswith("ps-")

    def rules(self, core: type[ServerCore] = ServerCore) -> Rules:
        striker = self

        class Watched(MasterDecider):
            def evolve(self, record):
                super().evolve(record)
                if isinstance(record, SlotsMoved):
                    striker.note(record)

        class Host(SimulatedHost):
            def __init__(self, program):
                super().__init__(program)
                striker.hosts.append(self)

        class Broker(MemoryBroker):
            def __init__(self, seed, faults):
                super().__init__(seed, faults)
                striker.brokers.append(self)

            def connect(self, name):
                striker.names.append(name)
                return super().connect(name)

        class Memory(SimulatedMemory):
            def find(self, order, wanted):
                try:
                    return super().find(order, wanted)
                except RoverError:
                    striker.unread += 1
                    raise

        master = lambda *a, **k: build_master(*a, **k, decider_type=Watched)  # noqa: E731
        return Rules(build_master=master, host=Host, broker=Broker, memory=Memory, core=core)


def plan_of(seed: int) -> Plan:
    chance = random.Random(f"{seed}/plan")
    rough = chance.choice((0.0, 0.5, 1.0))
    blows = [
        Blow(
            1.5 + 1.5 * number + chance.random(),
            chance.choice(("move_slots", "move_slots", "scale")),
            chance.random(),
            chance.uniform(0.2, 1.0),
        )
        for number in range(4)
    ]
    if chance.random() < 0.3:
        blows.append(
            Blow(
                chance.uniform(1.5, 8.0),
                chance.choice(("kill_leader", "kill_worker", "kill_daemon")),
                0.5,
                0.5,
            )
        )
    return Plan(
        seed=seed,
        records=500,
        batch_size=5,
        epochs=chance.randint(1, 2),
        workers=chance.randint(1, 3),
        servers=chance.randint(2, 3),
        batch_s=0.1,
        target_s=0.5,
        faults=Faults(delay_s=(0.0, 0.05 * rough), ack_delay_s=(0.0, 0.05 * rough)) if rough else CALM,
        drop=0.05 * chance.random(),
        double=0.2 * chance.random(),
        delay_s=0.03 * chance.random(),
        in_flight=chance.choice((1, 3)),
        cut_every_s=chance.choice((0.3, 1.0)),
        blows=tuple(sorted(blows, key=lambda blow: blow.at_s)),
    )


@cache
def lived(seed: int) -> tuple[list[str], int]:
    """Return what is wrong with the history of a seed, and how many servers died in it by our hand."""
    striker = Striker(seed)
    verdict = live(plan_of(seed), rules=striker.rules())
    wrong = list(verdict.wrong)
    rewinds, killed = verdict.summary["rewinds"] - striker.unread, len(striker.killed)
    if rewinds > killed:
        wrong.append(f"{rewinds} rewinds, {killed} servers killed: a survivor ended")
    return wrong, killed


@pytest.mark.parametrize("seed", SEEDS)
def test_who_survives_keeps_the_slots_that_the_log_has_given_it(seed):
    wrong, _ = lived(seed)
    assert not wrong, f"seed {seed}: {wrong}"


def test_the_histories_kill_servers_around_their_hand_overs():
    """The seeds above would prove nothing if nothing died in them."""
    assert sum(lived(seed)[1] for seed in list(SEEDS)[:6]) >= 5
