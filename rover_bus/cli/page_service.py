"""The process that serves HTTP, put together: a socket, what it demands, and what it shows once it has joined the bus.

Called by serve.py. The server answers before there is a bus, so that probes are answered from the first moment on: that it
lives, and that it is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path

from rover_bus.auth.page_tokens import PageTokens
from rover_bus.cli.http_options import HttpOptions, is_loopback, listen_at, split_address
from rover_bus.cli.page import ShownStack
from rover_bus.events.errors import BusError, InputError
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.refusals import unless_turned_away
from rover_bus.events.timelines import StackRestored, stack_timeline, unless_restored
from rover_bus.web.access import Access
from rover_bus.web.server import WebServer

AGAIN_S = 0.5
RENEWED_S = 600.0  # between looks whether there is a new certificate
NO_TOKENS = Path("/nonexistent")

log = get_logger("rover.web")
Connecting = Callable[[], AbstractAsyncContextManager[NatsBus]]


async def serve_page(
    options: HttpOptions,
    connecting: Connecting,
    stop: asyncio.Event,
    ready: Callable[[], None],
    store_limit_bytes: int = 0,
) -> None:
    """Serve until `stop`. `store_limit_bytes`: of the broker; 0: not known.

    Raises InputError for what HTTP may not be served with.
    """
    listening = _listening(options)
    address = listening.getsockname()[0]
    encrypted = _encryption(options, address)
    server = WebServer(_access(options, address), version("rover-bus"))
    await server.start(listening, encrypted)
    renewing = asyncio.create_task(_renew(encrypted, options))
    try:
        showing = asyncio.create_task(_show(server, connecting, ready, store_limit_bytes))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({showing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()
        for task in (showing, stopped):
            task.cancel()
        await asyncio.gather(showing, stopped, return_exceptions=True)
    finally:
        renewing.cancel()
        await server.stop()


async def _show(
    server: WebServer, connecting: Connecting, ready: Callable[[], None], limit_bytes: int
) -> None:
    while True:
        async with connecting() as bus:
            try:
                await unless_turned_away(bus, _follow(server, bus, ready, limit_bytes))
            except StackRestored as restored:  # all that was read is of a past that is erased
                log.warning(str(restored))
                server.page = None
                server.end_streams()


async def _follow(server: WebServer, bus: NatsBus, ready: Callable[[], None], limit_bytes: int) -> None:
    """Show what is there; streams that are not there yet are waited for. Raises StackRestored."""
    ready()
    while True:
        try:
            timeline = await stack_timeline(bus)
            server.page = stack = ShownStack.on(bus, limit_bytes, timeline)
            await unless_restored(bus, timeline, stack.run())
        except BusError:
            await asyncio.sleep(AGAIN_S)


def _listening(options: HttpOptions) -> socket.socket:
    if options.listen_fd >= 0:
        return socket.socket(fileno=options.listen_fd)
    return listen_at(*split_address(options.listen, "--listen"), "--listen")


def _access(options: HttpOptions, address: str) -> Access:
    names = frozenset({address, *options.names})
    tokens = PageTokens(Path(options.tokens) if options.tokens else NO_TOKENS)
    return Access(tokens, names, free=is_loopback(address), open_metrics=options.open_metrics)


def _encryption(options: HttpOptions, address: str) -> ssl.SSLContext | None:
    if not options.certificate:
        if is_loopback(address):
            return None
        raise InputError(f"HTTP at {address} needs a certificate and tokens: --certificate, --key, --tokens")
    if not is_loopback(address) and not options.tokens:
        raise InputError(
            f"HTTP at {address} needs tokens: `rover auth page-token` makes them, --tokens names their file"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, options)
    return context


def _load(context: ssl.SSLContext, options: HttpOptions) -> None:
    try:
        context.load_cert_chain(options.certificate, options.key or None)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{options.certificate} is no usable certificate: {error}") from None


async def _renew(context: ssl.SSLContext | None, options: HttpOptions) -> None:
    """Take a renewed certificate in: connections that come from then on are shown it."""
    while context is not None:
        await asyncio.sleep(RENEWED_S)
        with contextlib.suppress(InputError):
            _load(context, options)
