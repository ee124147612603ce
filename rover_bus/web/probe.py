"""Two words for a process that serves nothing else over HTTP: `/healthz` and `/readyz`, to anybody who asks.

Hung by `cli/probing.py` on the Brain, an operator and a node's agent, where `--probe` asks for it. A loop that does not turn
answers nothing, which is what a prober looks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serve_probe(address: str, port: int, ready: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Answer at an address while the body runs. Raises OSError where it cannot listen there."""

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readiness(_request: web.Request) -> web.Response:
        there = await ready()
        return web.Response(text="ready\n" if there else "not ready\n", status=200 if there else 503)

    application = web.Application(client_max_size=1024)
    application.router.add_get("/healthz", health)
    application.router.add_get("/readyz", readiness)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield
    finally:
        await runner.cleanup()
