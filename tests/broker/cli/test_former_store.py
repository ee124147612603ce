"""A state directory of a release with one token: its history is there under the account of today."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rover_bus.cli.connection import connect
from rover_bus.cli.home import Home
from rover_bus.cli.stack import RunningStack
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS

pytestmark = pytest.mark.broker
SUBJECT = subjects.job_fact("old", "job.ended")


async def store(url: str, secret: str) -> None:
    bus = await NatsBus.connect(url, secret=secret)
    await bus.ensure(STREAMS, BUCKETS)
    await bus.append(FACTS, SUBJECT, b"of before")
    await bus.close()


async def newest(stack: RunningStack) -> bytes | None:
    bus = await connect(stack.address)
    try:
        stored = await bus.last(FACTS, SUBJECT)
        return stored.body if stored else None
    finally:
        await bus.close()


def test_the_history_of_a_stack_with_one_token_is_kept(tmp_path: Path) -> None:
    home = Home(tmp_path / ".rover")
    home.create()
    with EmbeddedBroker(home.broker) as broker:
        asyncio.run(store(broker.url, broker.secret))
    for _ in range(2):
        with RunningStack(home, brain=None) as stack:
            assert asyncio.run(newest(stack)) == b"of before"
