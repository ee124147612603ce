"""A replica lags behind its stream's leader: what was stored before a read is read all the same.

A consumer and a direct get are answered by any replica. One that lags is put in their way by an answer that is cut short, as such a
replica gives it; everything else is a real broker.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from live_bus import connect

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_jetstream import ApiAnswer
from rover_bus.events.nats_wire import PLAIN, StoredBatch, Ways
from rover_bus.events.streams import FACTS, LEADERS

pytestmark = pytest.mark.broker
ONE, ALL = "rover.job.demo.plan.v1", "rover.job.demo.*.*"
KNOWN = 2  # messages that the replica has
STORED = 9


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each consumer and each direct get know no more than so many messages."""
    api, batch = NatsBus.api, NatsBus.batch

    async def api_of_replica(self: NatsBus, call: str, body: Any, what: str) -> ApiAnswer:
        answer = await api(self, call, body, what)
        if call.startswith("CONSUMER.CREATE."):
            return msgspec.structs.replace(answer, num_pending=min(answer.num_pending, KNOWN))
        return answer

    async def batch_of_replica(self: NatsBus, stream: str, wanted: dict[str, Any], what: str) -> StoredBatch:
        whole = await batch(self, stream, wanted, what)
        return StoredBatch([each for each in whole.found if each.sequence <= KNOWN], 0)

    monkeypatch.setattr(NatsBus, "api", api_of_replica)
    monkeypatch.setattr(NatsBus, "batch", batch_of_replica)


@pytest.mark.parametrize("ways", [PLAIN, Ways(direct=True)], ids=["by consumer", "directly"])
@pytest.mark.usefixtures("lagging")
def test_a_read_ends_where_the_leader_ends(broker: EmbeddedBroker, ways: Ways) -> None:
    async def run() -> None:
        bus = await connect(broker, ways=ways)
        try:
            stored = [await bus.append(FACTS, ONE, b"%d" % n) for n in range(STORED)]
            assert [each.sequence async for each in bus.read(FACTS, ALL)] == stored
            assert [each.sequence async for each in bus.read(FACTS, ALL, first=stored[4])] == stored[4:]
            assert [each async for each in bus.read(FACTS, ALL, first=stored[-1] + 1)] == []
        finally:
            await bus.close()

    asyncio.run(run())


@pytest.mark.usefixtures("lagging")
def test_a_reader_without_consumers_has_all_that_the_leader_has_when_it_stands(
    broker: EmbeddedBroker,
) -> None:
    async def run() -> None:
        bus = await connect(broker, ways=Ways(direct=True))
        try:
            stored = [await bus.append(FACTS, ONE, b"%d" % n) for n in range(STORED)]
            followed: list[Stored] = []
            reading = await bus.follow(FACTS, [ALL], followed.append, start="first")
            assert [each.sequence for each in followed] == stored
            await reading.stop()
        finally:
            await bus.close()

    asyncio.run(run())


def test_a_bucket_is_shown_whole(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica without any entry says at once that there is no more; the entries come after that."""
    api = NatsBus.api

    async def api_of_replica(self: NatsBus, call: str, body: Any, what: str) -> ApiAnswer:
        answer = await api(self, call, body, what)
        if call.startswith("CONSUMER.CREATE."):
            return msgspec.structs.replace(answer, num_pending=0, delivered=ApiAnswer().delivered)
        return answer

    async def run() -> None:
        bus = await connect(broker)
        try:
            for key in "abc":
                await bus.put(LEADERS, key, b"x")
            monkeypatch.setattr(NatsBus, "api", api_of_replica)
            for _ in range(20):
                assert set(await bus.entries(LEADERS, "*")) == {"a", "b", "c"}
        finally:
            await bus.close()

    asyncio.run(run())
