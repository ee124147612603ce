"""The key that says "this host is here": in a memory bucket, with a time to live, renewed three times in it (protocol P20).

Run by the daemon; watched by masters and the Brain, which take an expired key for a host that is lost (S19).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.errors import BusError, Refused, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import PRESENCE

TTL_S = 3.0
log = get_logger("rover.node")


class Presence:
    """One daemon's key. `home` names the place that a daemon comes back to: a machine's boot and a state directory."""

    def __init__(self, bus: Bus, host: str, daemon: str, home: str, ttl_s: float = TTL_S) -> None:
        self._bus = bus
        self._host = host
        self._home = home
        self._value = msgspec.json.encode({"daemon": daemon, "home": home})
        self._ttl_s = ttl_s
        self._renew = asyncio.Event()
        bus.on_connection(self._on_connection)

    def _on_connection(self, state: ConnectionState) -> None:
        if state == "connected":
            self._renew.set()

    async def claim(self) -> None:
        """Take the host's name. A key of another home may be a dead host's: wait for it to expire. Raises Refused if it stays."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 2 * self._ttl_s
        while True:
            try:
                if not await self._is_taken():
                    await self._put()
                    return
            except BusError as error:
                log.warning("presence waits for the bus", host=self._host, why=str(error))
                deadline_s = loop.time() + 2 * self._ttl_s
            if loop.time() >= deadline_s:
                raise Refused(
                    f"another daemon runs under the host name {self._host!r}: give this one its own with --host",
                    "host_exists",
                )
            await asyncio.sleep(self._ttl_s / 6)

    async def _is_taken(self) -> bool:
        entry = await self._bus.get(PRESENCE, self._host)
        if entry is None or not entry.value or not entry.expires:  # a daemon's own key expires
            return False
        try:
            value: Any = msgspec.json.decode(entry.value)
        except msgspec.DecodeError:
            return False
        return not isinstance(value, dict) or value.get("home") != self._home

    async def _put(self) -> None:
        await self._bus.put(PRESENCE, self._host, self._value, ttl_s=self._ttl_s)

    async def run(self) -> None:
        """Renew for ever; a broker that was away gets the key again as soon as it is back."""
        while True:
            self._renew.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ttl_s / 3):
                    await self._renew.wait()
            try:
                await self._put()
            except RoverError as error:
                log.warning("presence is not renewed", host=self._host, why=str(error))

    async def leave(self) -> None:
        """Remove the key: this host goes on purpose."""
        try:
            await self._bus.delete(PRESENCE, self._host)
        except RoverError as error:
            log.warning("presence stays until it expires", host=self._host, why=str(error))
