"""Samples of a host, published one window after another.

Run by the daemon and by a node's agent, each with its own way to measure (`platform.measure`, `MachineSampler`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.profiles import HostProfile
from rover_bus.events.subjects import host_profile

FIRST_SAMPLE_S = 1.0
log = get_logger("rover.node")


async def publish_samples(
    bus: Bus,
    host: str,
    every_s: float,
    measure: Callable[[], Awaitable[HostProfile | None]],
    on_sample: Callable[[HostProfile], None] = lambda _: None,
) -> None:
    """Publish a window of the host and its members every `every_s`, for ever; a lost one is not sent again."""
    await measure()
    wait_s = FIRST_SAMPLE_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s, sample = every_s, await measure()
        try:
            if sample is not None:
                on_sample(sample)
                await bus.publish(host_profile(host), encode(sample))
        except RoverError as error:
            log.debug("a sample is lost", why=str(error))
