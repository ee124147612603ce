"""Requests that are sent again while nothing has their subject: for how long, and from when on."""

from __future__ import annotations

import asyncio

import pytest

from rover_bus.events.errors import NoResponders
from rover_bus.events.served import SERVED_S, served
from rover_bus.events.virtual_time import run


class Service:
    """Answers a request at these times; before and between nothing has its subject."""

    def __init__(self, first_s: float = 0.0, slow_s: float = 0.0) -> None:
        """`slow_s`: what the first request waits for an answer that is lost."""
        self.first_s, self.slow_s = first_s, slow_s

    async def ask(self) -> str:
        if self.slow_s:
            waited_s, self.slow_s = self.slow_s, 0.0
            await asyncio.sleep(waited_s)
            raise NoResponders("gone while it waited")
        if asyncio.get_running_loop().time() < self.first_s:
            raise NoResponders("not yet")
        return "served"


def test_a_request_is_sent_again_until_something_serves() -> None:
    assert run(served(Service(first_s=SERVED_S - 0.2).ask)) == "served"


def test_nothing_that_serves_is_an_error_in_time() -> None:
    async def ask() -> float:
        with pytest.raises(NoResponders):
            await served(Service(first_s=60.0).ask)
        return asyncio.get_running_loop().time()

    assert SERVED_S < run(ask()) < SERVED_S + 0.2


def test_a_request_that_waited_long_for_a_lost_answer_is_sent_again_as_any_other() -> None:
    waited_s = 2 * SERVED_S
    assert run(served(Service(first_s=waited_s + 0.5, slow_s=waited_s).ask)) == "served"
