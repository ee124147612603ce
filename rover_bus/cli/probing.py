"""Whether a service is ready, and the HTTP probe that says so: hung here on a service that knows nothing of HTTP (design §3).

Used by serve.py. Ready is what has joined the bus, has replayed what it decides by, and has its broker; what that means is the
role's to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rover_bus.cli.http_options import split_address
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, InputError
from rover_bus.events.shell import Shell
from rover_bus.events.streams import LOG


class Health:
    """What a probe asks. `serving`: set once the service has begun."""

    def __init__(self) -> None:
        self.serving = False
        self.bus: Bus | None = None
        self.replayed: Callable[[], Awaitable[bool]] = _always

    async def ready(self) -> bool:
        """Whether it is ready now."""
        return self.serving and self.bus is not None and self.bus.connected and await self.replayed()


async def _always() -> bool:
    return True


async def has_replayed(bus: Bus, shell: Shell | None, subject: str) -> bool:
    """Whether a shell leads, or knows all that its log holds, and so could lead."""
    if shell is None:
        return False
    if shell.leading:
        return True
    try:
        newest = await bus.last(LOG, subject)
    except BusError:
        return False
    return newest is None or newest.sequence <= shell.journal.sequence


@asynccontextmanager
async def probed(probe: str, health: Health) -> AsyncIterator[None]:
    """Answer probes while the body runs, where an address was named. Raises InputError where it cannot listen there."""
    if not probe:
        yield
        return
    from rover_bus.web.probe import serve_probe

    address, port = split_address(probe, "--probe")
    try:
        async with serve_probe(address, port, health.ready):
            yield
    except OSError as error:
        raise InputError(f"--probe {probe}: it cannot be listened at there ({error.strerror})") from None
