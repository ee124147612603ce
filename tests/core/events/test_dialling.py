"""A cancellation that comes while nats-py connects or closes reaches the task that dials, whatever nats-py makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from rover_bus.events import nats_client
from rover_bus.events.nats_client import BrokerAddress

BROKER = BrokerAddress(url="nats://127.0.0.1:9", secret="", secret_source="", name="test", timeout_s=5.0)


class Forgetful:
    """A call of nats-py at the moment at which what it waits for comes together with a cancellation: it goes on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.answered = asyncio.get_running_loop().create_future()

    async def call(self, *_: Any, **__: Any) -> None:
        self.begun.set()
        try:
            await self.answered
        except asyncio.CancelledError:
            return

    async def cancelled(self, task: asyncio.Task[Any]) -> bool:
        """Cancel a task that awaits the call, and return whether the task ends by it."""
        await asyncio.wait_for(self.begun.wait(), 5.0)
        task.cancel()
        await asyncio.wait({task}, timeout=5.0)
        return task.cancelled()


def ignore(*_: object) -> None:
    """Nothing is told of these connections."""


async def nothing(*_: object) -> None:
    """The end of a client that nothing has connected."""


async def goes_on(act: Callable[[], Any]) -> None:
    await act()
    await asyncio.sleep(600.0)


def test_a_cancellation_while_nats_py_connects_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        forgetful = Forgetful()
        monkeypatch.setattr(Client, "connect", forgetful.call)
        monkeypatch.setattr(Client, "close", nothing)
        task = asyncio.create_task(goes_on(lambda: nats_client.dial(BROKER, ignore, ignore)))
        assert await forgetful.cancelled(task)

    asyncio.run(scenario())


def test_a_cancellation_while_nats_py_closes_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        forgetful = Forgetful()
        monkeypatch.setattr(Client, "close", forgetful.call)
        task = asyncio.create_task(goes_on(lambda: nats_client.end(Client())))
        assert await forgetful.cancelled(task)

    asyncio.run(scenario())
