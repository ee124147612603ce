"""A member that asks its master can be ended at any moment, also at that of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rover_bus.events.asking import Master
from rover_bus.events.errors import NoResponders
from rover_bus.events.identity import Member
from rover_bus.events.requests import LeaveRequest


class Gone:
    """A bus without a master, which has its asker cancelled at the moment of an answer."""

    def __init__(self) -> None:
        self.looks = 0
        self.asker: asyncio.Task[Any] | None = None

    async def get(self, bucket: str, key: str) -> None:
        self.looks += 1
        await asyncio.sleep(0)
        if self.looks == 3 and self.asker is not None:
            self.asker.cancel()

    async def request(self, subject: str, body: bytes, timeout_s: float) -> None:
        raise NoResponders(subject)


def test_an_end_that_comes_with_an_answer_is_an_end() -> None:
    async def ask() -> int:
        bus = Gone()
        request = LeaveRequest(member=Member("worker", 0, 1), reason="drained")
        bus.asker = asyncio.create_task(Master(bus, "job").ask(request))  # type: ignore[arg-type]
        done, _ = await asyncio.wait({bus.asker}, timeout=5.0)
        assert done, f"it asks on, after {bus.looks} looks"
        with pytest.raises(asyncio.CancelledError):
            await bus.asker
        return bus.looks

    assert asyncio.run(ask()) == 3
