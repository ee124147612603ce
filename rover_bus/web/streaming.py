"""Events as they happen, as server-sent events: one a fact, its id the sequence. A browser that comes back says where it was.

Fed by the page's events; a client that reads slowly holds up its own stream alone. A comment now and then keeps proxies from
ending what is silent. The stream ends with the server, and the client comes back.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import msgspec
from aiohttp import web

from rover_bus.events.errors import InputError
from rover_bus.web.api import TIMELINE, number_of
from rover_bus.web.bodies import EventShown
from rover_bus.web.port import Page

ALIVE_S = 15.0
AGAIN_MS = 500  # until a browser whose stream broke comes back


class OpenStreams:
    """The streams of one server that are open now."""

    def __init__(self) -> None:
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, sending: asyncio.Task[None]) -> None:
        """Wait until a stream has ended: its client left, or the server ends."""
        self._sending.add(sending)
        try:
            with suppress(asyncio.CancelledError, ConnectionError):
                await sending
        finally:
            sending.cancel()
            self._sending.discard(sending)

    def end(self) -> None:
        """End all: their clients come back."""
        for sending in self._sending:
            sending.cancel()


STREAMS: web.AppKey[OpenStreams] = web.AppKey("streams", OpenStreams)


async def stream(page: Page, request: web.Request) -> web.StreamResponse:
    """Send facts until the client leaves or the server ends."""
    after = _resume(request)
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            TIMELINE: str(page.timeline),
        }
    )
    await response.prepare(request)
    await response.write(f"retry: {AGAIN_MS}\n\n".encode())
    sending = asyncio.create_task(_send(page, request.query.get("job", ""), after, response))
    await request.app[STREAMS].run(sending)
    return response


def _resume(request: web.Request) -> int | None:
    said = request.headers.get("Last-Event-ID", "")
    if said and not (said.isascii() and said.isdecimal() and len(said) < 19):
        raise InputError(f"Last-Event-ID {said!r} is no sequence")
    return int(said) if said else number_of(request, "after")


async def _send(page: Page, job: str, after: int | None, response: web.StreamResponse) -> None:
    async with aclosing(page.events(job, after)) as coming:
        upcoming = asyncio.ensure_future(anext(coming))
        try:
            while True:
                done, _ = await asyncio.wait({upcoming}, timeout=ALIVE_S)
                if not done:
                    await response.write(b": alive\n\n")
                    continue
                await response.write(_encode(upcoming.result()))
                upcoming = asyncio.ensure_future(anext(coming))
        finally:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)


def _encode(event: EventShown) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (event.sequence, msgspec.json.encode(event))
