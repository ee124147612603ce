"""Workers and servers on a network that delays, drops and doubles: the witness judges, not the servers' own count."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from rover_bus.events import virtual_time
from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import ServerStart
from rover_bus.ps import admission, messages
from rover_bus.ps.admission import Apply, Fence
from rover_bus.ps.core import ServerCore
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.simulated import SimulatedParameters, SimulatedServers
from rover_bus.ps.spec import Add, Growing, Hashed
from rover_bus.ps.store import BatchKey, GenerationChanged

BATCHES, SAMPLES, SERVERS = 30, 7, 3
TABLES = (
    Growing(name="witness", width=1, optimizer=Add(), dtype="int32"),
    Hashed(name="rows", rows=40, width=2, optimizer=Add()),
)


class AppliesTwice(ServerCore):
    @staticmethod
    def decide_push(state, fence, batch):
        return admission.decide_request(state, fence) or Apply((0,))


class Generationless(ServerCore):
    @staticmethod
    def decide_push(state, fence, batch):
        now = Fence(state.timeline, state.generation, state.routing.epoch, state.incarnation)
        return admission.decide_push(state, now, batch)


class World:
    """A job without a master: batches are drawn from a list, some of them twice, and once all servers may start afresh."""

    def __init__(self, seed, core, rewind):
        self.chance = random.Random(seed)
        self.network = SimulatedServers(self.chance, asyncio.sleep, drop=0.1, double=0.2, delay_s=0.05)
        self.core, self.rewind = core, rewind
        self.begin(0)

    def begin(self, generation):
        lives = [ServerAddress(index, 10 * generation + index + 1, []) for index in range(SERVERS)]
        self.routing = divide_slots(lives, 0, generation)
        for life in lives:
            core = self.network.cores[life.index] = self.core(life.index, life.incarnation)
            core.admit(timeline=0, generation=generation, start=ServerStart("empty", generation), seed=1)
            core.route(self.routing)
        self.generation, self.committed = generation, set()
        self.left = list(range(BATCHES)) + self.chance.sample(range(BATCHES), 8)  # leased twice
        self.chance.shuffle(self.left)

    def commit(self, worker):
        """Note what every server holds; what was given out before a rewind, and is in nobody's hands now, returns."""
        self.committed |= {a.batch.number for a in worker.acknowledged() if a.generation == self.generation}
        if not self.left:
            self.left = [number for number in range(BATCHES) if number not in self.committed]

    async def refresh(self, after, wait_s):
        await asyncio.sleep(wait_s)
        return self.routing

    async def work(self):
        worker = SimulatedParameters(
            self.routing,
            self.network.call,
            self.refresh,
            in_flight=self.chance.choice([0, 1, 3]),
            patience_s=1e6,
        )
        await worker.declare(*TABLES)
        while True:
            try:
                if not self.left:
                    await worker.flush()
                    self.commit(worker)
                    if not self.left:
                        return worker
                await self.train(worker, self.left.pop())
            except GenerationChanged:
                continue

    async def train(self, worker, number):
        if self.rewind and len(self.left) == BATCHES // 2:
            self.rewind = False
            self.begin(1)
        pulled = await worker.pull({"rows": np.arange(number, number + 9)})
        await asyncio.sleep(self.chance.random())
        positions = np.arange(number * SAMPLES, (number + 1) * SAMPLES)
        await worker.push(
            BatchKey(0, number),
            {"rows": np.ones_like(pulled["rows"])},
            add={"witness": (positions, 1)},
            pulled=pulled,
        )

    async def run(self):
        workers = await asyncio.gather(*(self.work() for _ in range(4)))
        self.network._late.clear()
        return await workers[0].export()


def live(seed, core=ServerCore, rewind=False):
    return virtual_time.run(World(seed, core, rewind).run())


@pytest.mark.parametrize("rewind", [False, True], ids=["steady", "rewound"])
@pytest.mark.parametrize("seed", range(10))
def test_every_sample_is_applied_exactly_once(seed, rewind):
    tables = live(seed, rewind=rewind)
    assert tables["witness"].ids.tolist() == list(range(BATCHES * SAMPLES))
    assert np.all(tables["witness"].values == 1)
    assert tables["rows"].values.sum() == BATCHES * 9 * 2


def test_the_same_seed_lives_the_same_history():
    assert [core.statistics() for core in _statistics(5)] == [core.statistics() for core in _statistics(5)]


def _statistics(seed):
    world = World(seed, ServerCore, False)
    virtual_time.run(world.run())
    return world.network.cores.values()


def test_without_applied_sets_samples_count_twice():
    assert any(live(seed, AppliesTwice)["witness"].values.max() > 1 for seed in range(3))


def test_without_the_generation_a_zombies_push_poisons_the_new_life():
    """A push of generation 0 that arrives late marks its batch as applied in generation 1, and its true samples are lost."""

    def disturbed(core):
        results = []
        for seed in range(6):
            world = World(seed, core, False)
            old = world.network.cores[0].state
            push = _push_of(world, number=3)
            world.begin(1)
            world.network._deliver(ServerAddress(0, old.incarnation, []), push)
            tables = virtual_time.run(world.run())
            results.append(len(tables["witness"].ids) == BATCHES * SAMPLES)
        return results

    assert all(disturbed(ServerCore))
    assert not all(disturbed(Generationless))


def _push_of(world, number):
    """A zombie's push without its rows, as the first server of this generation would take it."""
    state = world.network.cores[0].state
    push = messages.Push(fence=Fence(0, state.generation, 0, state.incarnation), epoch=0, number=number)
    return b"".join(messages.encode(push))
