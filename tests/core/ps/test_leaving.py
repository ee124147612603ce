"""A server that is told to leave ends without a word of an error: its run does not ask a thread that is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from rover_bus.ps.core import ServerCore
from rover_bus.ps.server import Server
from rover_bus.ps.service import ServerRun, _run_on, _serve_while_alive


class Asking:
    """A run that does nothing but ask the thread of the tables."""

    def __init__(self, server: Server) -> None:
        self.server, self.asked, self.ended_by = server, 0, ""
        self.enough, self.reached = 0, asyncio.Event()

    async def live(self) -> None:
        try:
            while True:
                await _run_on(self.server, lambda: None)
                self.asked += 1
                if self.asked == self.enough:
                    self.reached.set()
        except BaseException as error:
            self.ended_by = type(error).__name__
            raise


async def leave(run: Asking, asked: int) -> None:
    run.enough = asked
    serving = asyncio.ensure_future(_serve_while_alive(run.server, cast(ServerRun, run)))
    await run.reached.wait()
    serving.cancel()  # as SIGTERM does
    with pytest.raises(asyncio.CancelledError):
        await serving
    await asyncio.sleep(0.01)


def test_a_run_that_asks_is_cancelled_with_its_server(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        for asked in range(1, 20):
            run = Asking(Server(ServerCore(0, 1), b""))
            asyncio.run(leave(run, asked))
            assert run.ended_by == "CancelledError"
    assert not caplog.records


def test_a_call_of_a_closed_server_is_cancelled() -> None:
    server = Server(ServerCore(0, 1), b"")
    server.close()
    future: Any = server.call(lambda: None)
    assert future.cancelled()
