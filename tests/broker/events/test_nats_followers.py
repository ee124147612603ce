"""Followers and watches over a real broker: nothing is missed and nothing is told twice, whatever JetStream forgets."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from live_bus import come_true, connect, through_proxy

from rover_bus.events import nats_follow
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Entry, Stored
from rover_bus.events.errors import BusTimeout
from rover_bus.events.nats_jetstream import ApiAnswer
from rover_bus.events.streams import FACTS, LEADERS

pytestmark = pytest.mark.broker


def test_a_follower_whose_consumer_is_deleted_goes_on(
    broker: EmbeddedBroker, quick_watchdog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_follow, "HEARTBEAT_S", 0.2)

    async def program() -> None:
        bus = await connect(broker)
        facts: list[Stored] = []
        await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append, start="first")
        await bus.append(FACTS, "rover.job.demo.plan.applied", b"1")
        await come_true(lambda: len(facts) == 1)
        names = await bus.request(f"$JS.API.CONSUMER.NAMES.{FACTS}", b"", timeout_s=2.0)
        for name in json.loads(names.body)["consumers"]:
            await bus.request(f"$JS.API.CONSUMER.DELETE.{FACTS}.{name}", b"", timeout_s=2.0)
        await bus.append(FACTS, "rover.job.demo.plan.applied", b"2")
        await come_true(lambda: len(facts) == 2)
        assert [stored.body for stored in facts] == [b"1", b"2"]
        await bus.close()

    asyncio.run(program())


def test_a_follower_that_was_begun_without_an_answer_delivers_nothing(broker: EmbeddedBroker) -> None:
    """The server made its consumer, and the caller repeats the call: it would stop the second follower only."""

    async def program() -> None:
        bus = await connect(broker)
        api, told = bus.api, list[Stored]()

        async def lost(call: str, body: Any, what: str) -> ApiAnswer:
            await api(call, body, what)
            raise BusTimeout(f"no answer to {what}: whether it happened is unknown, repeat it")

        bus.api = lost  # type: ignore[method-assign]
        with pytest.raises(BusTimeout):
            await bus.follow(FACTS, ["rover.job.*.*.*"], told.append, start="first")
        bus.api = api  # type: ignore[method-assign]
        await bus.follow(FACTS, ["rover.job.*.*.*"], told.append, start="first")
        await bus.append(FACTS, "rover.job.demo.plan.applied", b"1")
        await come_true(lambda: len(told) > 0)
        await asyncio.sleep(0.2)
        assert len(told) == 1
        await bus.close()

    asyncio.run(program())


def test_a_follower_notices_a_message_lost_on_the_way(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        async with through_proxy(broker) as (proxy, bus):
            writer = await connect(broker)
            facts: list[Stored] = []
            await bus.follow(FACTS, ["rover.job.*.*.*"], facts.append)
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"one")
            await come_true(lambda: len(facts) == 1)
            proxy.dropped = b"swallowed"
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"swallowed")
            await come_true(lambda: not proxy.dropped)
            await writer.append(FACTS, "rover.job.demo.plan.applied", b"three")
            await come_true(lambda: len(facts) == 3)
            assert [stored.body for stored in facts] == [b"one", b"swallowed", b"three"]
            await writer.close()

    asyncio.run(program())


def test_a_thousand_keys_are_watched_and_each_expiry_is_told_once(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        bus = await connect(broker)
        seen: list[Entry] = []
        await bus.watch(LEADERS, ">", seen.append)
        await asyncio.gather(*(bus.put(LEADERS, f"job-{n}", b"x", ttl_s=1.0) for n in range(1000)))
        await come_true(lambda: len(seen) >= 2000)
        assert sorted(entry.key for entry in seen if entry.value is None) == sorted(
            f"job-{n}" for n in range(1000)
        )
        await bus.close()

    asyncio.run(program())


def test_entries_that_seem_to_have_expired_before_they_came_are_handed_over(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host that is late, or whose clock is ahead; in the loop that services have, whose timers of the past have no time."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    class Ahead:
        @staticmethod
        def time() -> float:
            return time.time() + 3600.0

    async def program() -> None:
        bus, known = await connect(broker), list[Entry]()
        try:
            for number in range(3):
                await bus.put(LEADERS, f"job-{number}", b"x", ttl_s=60.0)
            monkeypatch.setattr(nats_follow, "time", Ahead)
            await bus.watch(LEADERS, "*", known.append)
            await come_true(lambda: {each.key for each in known} == {"job-0", "job-1", "job-2"})
            assert all(each.value == b"x" for each in known)
        finally:
            await bus.close()

    uvloop.run(program())
