"""A standby's wait for the leadership key (protocol P20): quick to follow, and no work while the leader lives."""

import asyncio

import pytest

from rover_bus.cli.views.hindrances import read_present
from rover_bus.events.leadership import LEADER_TTL_S, Deposed, Leadership, read_leader
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import BUCKETS, LEADERS, STREAMS
from rover_bus.events.virtual_time import run

KEY = "movielens"


class Looks:
    """A connection that counts how often somebody looks at a key, and that may keep what changes to itself."""

    def __init__(self, bus, deaf=False):
        self._bus, self._deaf = bus, deaf
        self.looks = 0

    def __getattr__(self, name):
        return getattr(self._bus, name)

    async def get(self, bucket, key):
        self.looks += 1
        return await self._bus.get(bucket, key)

    async def watch(self, bucket, key, handler):
        return await self._bus.watch(bucket, key, (lambda _: None) if self._deaf else handler)


class Pair:
    """A leader that renews, and a standby."""

    def __init__(self, deaf=False):
        self.broker = MemoryBroker(1)
        self.clock = asyncio.get_running_loop().time
        self.leader = Leadership(self.broker.connect("m0"), KEY, "m0", self.clock)
        self.bus = Looks(self.broker.connect("m1"), deaf)
        self.standby = Leadership(self.bus, KEY, "m1", self.clock)

    async def begin(self):
        await self.leader.bus.ensure(STREAMS, BUCKETS)
        await self.leader.acquire()
        self.keeping = asyncio.create_task(self.leader.keep())
        self.acquiring = asyncio.create_task(self.standby.acquire())
        await asyncio.sleep(10.1)  # between two renewals
        assert not self.acquiring.done()

    async def gap_s(self):
        """Return how long nobody leads after the leader has died."""
        began = self.clock()
        self.keeping.cancel()
        self.broker.kill("m0")
        await self.acquiring
        return self.clock() - began


def play(scenario, **how):
    async def program():
        pair = Pair(**how)
        await pair.begin()
        return await scenario(pair)

    return run(program())


def test_a_standby_does_not_look_at_the_key_while_its_holder_renews_it():
    async def scenario(pair):
        return pair.bus.looks

    assert play(scenario) <= 2


@pytest.mark.parametrize("deaf", [False, True])
def test_a_standby_follows_a_dead_leader_within_a_ttl_and_a_look(deaf):
    async def scenario(pair):
        return await pair.gap_s()

    assert play(scenario, deaf=deaf) <= 1.2 * LEADER_TTL_S


def test_a_standby_follows_at_once_when_the_leader_resigns():
    async def scenario(pair):
        began = pair.clock()
        pair.keeping.cancel()
        await pair.leader.resign()
        await pair.acquiring
        return pair.clock() - began

    assert play(scenario) <= 0.1 * LEADER_TTL_S


def test_a_standby_leaves_one_ttl_to_the_leader_after_the_broker_lost_its_memory():
    async def scenario(pair):
        pair.broker.restart(0.3)
        pair.bus.on_connection(lambda state: pair.standby.wait_one_ttl() if state == "connected" else None)
        pair.keeping.cancel()
        await asyncio.sleep(0.5)  # everybody is back
        kept = asyncio.create_task(pair.leader.keep())
        await asyncio.sleep(5.0)
        kept.cancel()
        entry = await pair.bus.get(LEADERS, KEY)
        return entry.value, pair.acquiring.done()

    value, taken = play(scenario)
    assert b'"m0"' in value
    assert not taken


FOREIGN = [b"\x00junk", b'{"holder": "somebody", "term": 7, "timeline": 1}', b"[]"]


@pytest.mark.parametrize("value", FOREIGN)
def test_a_key_that_nobody_renews_is_taken_after_one_ttl_whatever_it_holds(value):
    async def program():
        broker = MemoryBroker(1)
        people, clock = broker.connect("people"), asyncio.get_running_loop().time
        await people.put(LEADERS, KEY, value)  # as `nats kv put` does: it has no time to live
        began, master = clock(), Leadership(broker.connect("m0"), KEY, "m0", clock)
        await asyncio.wait_for(master.acquire(), 30.0)
        return clock() - began, read_leader(await people.get(LEADERS, KEY)).holder

    waited, holder = run(program())
    assert LEADER_TTL_S <= waited <= 1.5 * LEADER_TTL_S
    assert holder == "m0"


@pytest.mark.parametrize("value", FOREIGN)
def test_a_leader_whose_key_is_overwritten_leads_on_or_is_followed_within_two_ttl(value):
    async def program():
        broker = MemoryBroker(1)
        clock, people = asyncio.get_running_loop().time, broker.connect("people")
        masters = [Leadership(broker.connect(name), KEY, name, clock) for name in ("m0", "m1")]

        async def lead(master):
            while True:
                await master.acquire()
                try:
                    await master.keep()
                except Deposed:
                    continue

        tasks = [asyncio.create_task(lead(master)) for master in masters]
        await asyncio.sleep(5.0)
        await people.put(LEADERS, KEY, value)
        await asyncio.sleep(2.2 * LEADER_TTL_S)
        leader = read_leader(await people.get(LEADERS, KEY))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return leader

    assert run(program()).holder in ("m0", "m1")


@pytest.mark.parametrize("value", FOREIGN)
def test_a_key_that_stays_for_ever_names_no_leader(value):
    async def program():
        bus = MemoryBroker(1).connect("people")
        await bus.put(LEADERS, KEY, value)
        return read_leader(await bus.get(LEADERS, KEY)), (await read_present(bus)).leaders

    assert run(program()) == (None, {})
