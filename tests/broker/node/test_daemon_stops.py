"""A daemon that is told to end ends, also where the broker has gone before it had its host's name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from live_bus import come_true, connect

from rover_bus.events.broker import EmbeddedBroker
from rover_bus.node.service import run_daemon

pytestmark = pytest.mark.broker


def test_a_daemon_without_a_broker_ends_when_it_is_told_to(tmp_path: Path) -> None:
    asyncio.run(tell_it_to_end(tmp_path))


async def tell_it_to_end(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker")
    broker.start()
    bus = await connect(broker)
    states: list[str] = []
    bus.on_connection(states.append)
    broker.stop()
    stop = asyncio.Event()
    try:
        await come_true(lambda: "disconnected" in states)
        running = asyncio.create_task(run_daemon(bus, "h1", tmp_path / "state", stop=stop))
        await asyncio.sleep(0.5)
        assert not running.done(), "it waits for the broker"
        stop.set()
        async with asyncio.timeout(30):
            await running
        async with asyncio.timeout(30):  # and lets go of its directory
            await run_daemon(bus, "h1", tmp_path / "state", stop=stop)
    finally:
        await bus.close()
