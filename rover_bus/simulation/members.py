"""What the processes of a simulated job run: the same services and sessions as live; only the training itself is simulated.

A worker sleeps instead of computing, then pushes what the witness needs: 1 at the position of every sample of the batch. Servers
are real cores behind a network that delays, drops and doubles (ps/simulated.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rover_bus.client.lease import Assigned, Work
from rover_bus.client.session import Session
from rover_bus.client.worker import Worker
from rover_bus.events.bus import Bus
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.errors import Refused, RoverError
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import Dataset
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.requests import FailureRequest, JoinReply, JoinRequest, RoutingTable
from rover_bus.ps.service import PartStorage, ServerRun, TableThread
from rover_bus.ps.simulated import SimulatedParameters, SimulatedServers
from rover_bus.ps.simulated_memory import SharedMemory
from rover_bus.ps.spec import Add, Growing
from rover_bus.ps.staging import Stager
from rover_bus.ps.store import BatchKey, GenerationChanged, ServersUnreachable
from rover_bus.simulation.barrier import Barriers, BrokenStep
from rover_bus.simulation.plan import Plan, chance_of
from rover_bus.simulation.rules import PRODUCT, Rules
from rover_bus.simulation.storage import SimulatedStorage
from rover_bus.simulation.tables import WitnessPart

WITNESS = Growing(name="witness", width=1, optimizer=Add(), dtype="int32")
Say = Callable[[str], None]


@dataclass
class Shared:
    """What the members of one history have in common besides the bus."""

    plan: Plan
    network: SimulatedServers
    chance: random.Random
    say: Say
    parts: dict[str, WitnessPart] = field(default_factory=dict)  # by path
    rules: Rules = PRODUCT
    trained: dict[Member, int] = field(default_factory=dict)  # samples, by incarnation
    memory: SharedMemory = field(default_factory=SharedMemory)
    broken: dict[str, str] = field(
        default_factory=dict
    )  # invariants of masters' states -> the record behind it
    barriers: Barriers = field(default_factory=Barriers)  # of synchronous jobs
    storage: SimulatedStorage = field(default_factory=lambda: SimulatedStorage(keep=3))

    def __post_init__(self) -> None:
        self.memory.read_storage = self.storage.read


class Poisoned(Exception):
    """User code fails on a poison batch."""


async def run_server(bus: Bus, member: Member, shared: Shared, leave: asyncio.Event) -> int:
    """One server until its job is over."""
    if member.incarnation == 1 and member.index < len(shared.plan.late_s):
        await _until_left(asyncio.sleep(shared.plan.late_s[member.index]), leave)
        if leave.is_set():
            return 0
    core = shared.rules.core(member.index, member.incarnation)
    core.free_bytes = lambda: shared.plan.room_bytes
    shared.network.cores[member.index] = core

    def stager_of(_: JoinReply) -> Stager:
        return Stager(shared.rules.memory(shared.memory, member.index), lambda: 0.0)

    hello = JoinRequest(member=member, nonce=f"{member}", host="h1", addresses=[f"simulated:{member}"])
    chance = chance_of(shared.plan.seed, f"tables of {member}")
    tables = shared.rules.tables(core, shared.parts, chance)
    storage = PartStorage(Path("parts"), tables.write, stager_of)
    server = ServerRun(bus, "job", hello, TableThread(core, tables.run), storage, shared.network.ask)
    try:
        return await _until_left(server.live(), leave)
    finally:
        if shared.network.cores.get(member.index) is core:
            del shared.network.cores[member.index]


async def _until_left(work: Coroutine[Any, Any, None], leave: asyncio.Event) -> int:
    """Run until the work ends or we are asked to leave; 0 either way, 1 when it was refused."""
    living = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(leave.wait())
    try:
        await asyncio.wait({living, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return 1 if living.done() and isinstance(living.exception(), RoverError) else 0
    finally:
        living.cancel()
        leaving.cancel()
        await asyncio.gather(living, leaving, return_exceptions=True)


async def run_worker(bus: Bus, desired: DesiredMember, shared: Shared, leave: asyncio.Event, pid: int) -> int:
    """One worker's run: join, train what it is given, leave."""
    member = desired.member
    worker = Worker(member, nonce=f"{member}/{pid}", host=desired.host, pid=pid)
    session = Session(bus, "job", worker)
    talking = asyncio.ensure_future(session.run())
    obeying = asyncio.ensure_future(_drain_when_told(session, leave))
    sampling = asyncio.ensure_future(_sample(session, shared))
    try:
        return await _train(session, shared)
    finally:
        shared.barriers.leave(worker.member)
        for task in (talking, obeying, sampling):
            task.cancel()
        await asyncio.gather(talking, obeying, sampling, return_exceptions=True)


async def _sample(session: Session, shared: Shared) -> None:
    """Publish what this worker trained, window by window: all of it waiting for input, as the shape of a simulated batch is."""
    window_s = shared.plan.sample_s
    before = 0
    while window_s:
        await asyncio.sleep(window_s)
        member = session.worker.member
        now = shared.trained.get(member, 0)
        profile = WorkerProfile(
            window_s=window_s, job="job", member=member, samples=now - before, batches=0, read_s=window_s / 2
        )
        before = now
        with suppress(RoverError):
            await session.publish(profile)


async def _drain_when_told(session: Session, leave: asyncio.Event) -> None:
    await leave.wait()
    session.drain()


async def _train(session: Session, shared: Shared) -> int:
    plan = shared.plan
    at_hand: Assigned | None = None
    try:
        while not session.worker.over and not session.worker.draining:
            if not await session.joined():
                break
            await session.register(
                Dataset(records=plan.records, batch_size=plan.batch_size, epochs=plan.epochs, seed=plan.seed),
                "simulated",
            )
            routing = await session.routing()
            if routing is None:
                break
            try:
                at_hand = await _train_generation(session, shared, routing, at_hand)
            except GenerationChanged:
                at_hand = None
                continue
            if at_hand is not None:
                continue
            if session.worker.resting:
                break
        await session.leave("drained" if session.worker.draining else "done")
    except (Poisoned, BrokenStep) as error:
        kind = type(error).__name__
        message, token = error.args or ("a worker is gone", 0)
        failure = FailureRequest(
            member=session.worker.member,
            token=token,
            exception=kind,
            message=message,
            fingerprint=f"{kind}@train",
        )
        await session.fail(failure)
        return 1
    except (Refused, ServersUnreachable):
        return 1
    return 0


async def _train_generation(
    session: Session, shared: Shared, routing: RoutingTable, at_hand: Assigned | None
) -> Assigned | None:
    """Train under one routing; return the batch at hand when it belongs to a newer generation than the routing does.

    It was handed out and would be missed for ever: only what was handed out in a former generation is void (P8).
    """
    parameters = shared.rules.parameters(
        routing, shared.network.call, partial(_refresh, session), in_flight=shared.plan.in_flight
    )
    await parameters.declare(WITNESS)
    training = _Training(session, shared, parameters)
    while (assigned := at_hand or await training.next_batch()) is not None:
        at_hand = None
        if assigned.generation != routing.generation:
            return assigned if assigned.generation == session.worker.generation else None
        await training.train(assigned)
    await training.flush()
    return None


async def _refresh(session: Session, after: RoutingTable, wait_s: float) -> RoutingTable:
    try:
        async with asyncio.timeout(wait_s):
            newer = await session.routing(after)
    except TimeoutError:
        return after
    if newer is None:
        raise ServersUnreachable("this incarnation of the worker has ended")
    return newer


@dataclass
class _Training:
    """What a worker pushes under one routing, and what of it is on its way."""

    session: Session
    shared: Shared
    parameters: SimulatedParameters
    waiting: dict[BatchKey, Assigned] = field(default_factory=dict)

    async def next_batch(self) -> Assigned | None:
        """Nothing at hand: what is still on its way to the servers must be acknowledged before we wait for more."""
        if (at_hand := self.session.worker.take()) is not None:
            return at_hand
        await self.flush()
        return await self.session.take()

    async def train(self, assigned: Assigned) -> None:
        """Compute for a while and push. Raises Poisoned."""
        plan = self.shared.plan
        if assigned.number in plan.poison:
            await self.flush()
            raise Poisoned(f"batch {assigned.number}", assigned.token)
        await asyncio.sleep(plan.batch_s * self.shared.chance.uniform(0.5, 2.0))
        if assigned.group is not None:
            await self.shared.barriers.wait(assigned.group, self.session.worker.member)
        key = self.shared.rules.push_identity(assigned)
        positions = good_positions(plan, assigned.epoch, assigned.number)
        self.waiting[key] = assigned
        add = {"witness": (positions, np.ones((len(positions), 1), np.int32))}
        await self.parameters.push(key, {}, add=add)
        self.settle()

    async def flush(self) -> None:
        await self.parameters.flush()
        self.settle()

    def settle(self) -> None:
        """What every server holds is done; only that is ever reported (P6)."""
        plan = self.shared.plan
        for acked in self.parameters.acknowledged():
            assigned = self.waiting.pop(acked.batch, None)
            if assigned is None:
                continue
            first = assigned.number * plan.batch_size
            end = min(first + plan.batch_size, plan.records)
            skipped = tuple(
                SkippedRow(position, position, position + 1, "bad")
                for position in plan.bad_rows
                if first <= position < end
            )
            member = self.session.worker.member
            self.shared.trained[member] = self.shared.trained.get(member, 0) + end - first
            work = Work(skipped=skipped, samples_retrained=end - first if acked.repeated else 0)
            self.session.finish(assigned, work, acked.incarnations)


def good_positions(plan: Plan, epoch: int, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in the witness the usable samples of a batch stand."""
    first = number * plan.batch_size
    bad = set(plan.bad_rows)
    end = min(first + plan.batch_size, plan.records)
    return np.array(
        [epoch * plan.records + position for position in range(first, end) if position not in bad], np.int64
    )
