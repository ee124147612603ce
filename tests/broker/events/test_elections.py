"""While the servers of a cluster choose a leader its API does nothing and says so: it is asked again, and an error says what to do.

An account that is reached under another name stands for the cluster: a second connection serves that name.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rover_bus.events import served
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_jetstream import API, ELECTING
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.nats_wire import Raw
from rover_bus.events.subjects import of_tenant

pytestmark = pytest.mark.broker

NO_LEADER = [
    {"error": {"code": 503, "err_code": code, "description": "temporarily unavailable"}}
    for code in sorted(ELECTING)
]


async def answering(servers: NatsBus, answers: list[dict[str, object]]) -> list[Raw]:
    """Answer what is asked of an account's API, the last answer again and again; return what was asked."""
    asked, going = list[Raw](), set[asyncio.Task[None]]()

    def answer(request: Raw) -> None:
        said = answers[min(len(asked), len(answers) - 1)]
        asked.append(request)
        going.add(asyncio.ensure_future(servers.publish(request.reply, msgspec.json.encode(said))))

    await servers.listen(of_tenant("ads", f"{API}.>"), answer)
    return asked


def test_what_meets_an_election_is_asked_again(broker: EmbeddedBroker) -> None:
    async def run() -> None:
        servers, bus = (
            await NatsBus.connect(broker.url, secret=broker.secret),
            await NatsBus.connect(broker.url, secret=broker.secret),
        )
        asked = await answering(servers, [*NO_LEADER, {"config": {"name": "X"}}])
        account = bus.of("ads")
        assert isinstance(account, NatsStorage)
        answer = await account.api("STREAM.INFO.X", None, "look at X")
        assert answer.config == {"name": "X"}
        assert len(asked) == len(NO_LEADER) + 1
        await bus.close()
        await servers.close()

    asyncio.run(run())


def test_an_election_that_takes_long_is_said_with_what_to_do(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        servers, bus = (
            await NatsBus.connect(broker.url, secret=broker.secret),
            await NatsBus.connect(broker.url, secret=broker.secret),
        )
        asked = await answering(servers, NO_LEADER[:1])
        account = bus.of("ads")
        assert isinstance(account, NatsStorage)
        with pytest.raises(BusError, match=r"look at X: .*10008.*choose a leader, repeat it"):
            await account.api("STREAM.INFO.X", None, "look at X")
        assert len(asked) > 5
        await bus.close()
        await servers.close()

    monkeypatch.setattr(served, "LONGEST_PAUSE_S", 0.02)
    asyncio.run(run())
