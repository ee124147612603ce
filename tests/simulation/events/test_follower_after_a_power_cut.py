"""A follower of the last of every subject, after a power cut took messages that it had handed over: their numbers come again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rover_bus.events.bus import Start, Stored
from rover_bus.events.nats_follow import NatsFollower
from rover_bus.events.nats_wire import PLAIN


class Broker:
    """As much of a connection as a follower needs, to a stream that ends at `last`."""

    ways = PLAIN

    def __init__(self, last: int) -> None:
        self.last, self.asked = last, list[int]()
        self.deliver: Any = None

    def delivery_inbox(self) -> str:
        return "inbox"

    async def listen(self, subject: str, callback: Any) -> Any:
        self.deliver = callback

        async def end() -> None:
            self.deliver = None

        return end

    async def api(self, call: str, body: dict[str, Any] | None, what: str) -> Any:
        if body is not None:
            self.asked.append(body["config"].get("opt_start_seq", 0))
        return SimpleNamespace(
            state=SimpleNamespace(last_seq=self.last), delivered=SimpleNamespace(stream_seq=self.last)
        )

    def give(self, sequence: int, consumer_sequence: int) -> None:
        reply = f"$JS.ACK.FACTS.c.1.{sequence}.{consumer_sequence}.1000000000.0"
        self.deliver(SimpleNamespace(subject="s", reply=reply, data=b"x", headers=None))


@pytest.mark.parametrize("start", ["last_per_subject", "first", "new"])
def test_what_is_stored_under_a_number_that_was_lost_is_handed_over(start: Start) -> None:
    async def play() -> tuple[list[int], list[int]]:
        broker, heard = Broker(last=99), list[int]()

        def observe(stored: Stored) -> None:
            heard.append(stored.sequence)

        follower = NatsFollower(broker, "FACTS", ["s"], observe, start)  # type: ignore[arg-type]
        await follower.attach()
        broker.give(100, 1)
        broker.last = 50  # the power is back
        await follower.attach()
        broker.give(51, 1)
        return heard, broker.asked

    heard, asked = asyncio.run(play())
    assert heard == [100, 51]
    assert asked[-1] == 51
