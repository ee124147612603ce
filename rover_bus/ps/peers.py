"""Other servers, from a server: frames there and back over the sockets that workers use, in a thread of their own.

Fed by `moves`. The same handshake with the stack's secret both ways: rows go to no other process, and come from no other.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rover_bus.events.errors import RoverError
from rover_bus.events.requests import ServerAddress
from rover_bus.ps.client import ServerLink
from rover_bus.ps.exchange import LinkLost
from rover_bus.ps.frame import Buffer
from rover_bus.ps.shared_secret import Secret

CONNECT_S = 2.0
SILENCE_S = 5.0  # for one answer: then the same request is sent again


class Peers:
    """Connections to the servers that were asked last; one that breaks is made again by the next request."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._links: dict[tuple[int, int], ServerLink] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="peers")

    async def ask(self, server: ServerAddress, frame: list[Buffer]) -> tuple[Buffer, Buffer]:
        """Return the answer (header, body) of a server. Raises LinkLost."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, server, frame)

    def _ask(self, server: ServerAddress, frame: list[Buffer]) -> tuple[Buffer, Buffer]:
        key = (server.index, server.incarnation)
        try:
            if key not in self._links:
                self._links[key] = ServerLink(server, self._secret, CONNECT_S, SILENCE_S)
            self._links[key].send(frame)
            header, body = self._links[key].receive()
            return bytes(header), _copied(body)
        except RoverError as error:
            link = self._links.pop(key, None)
            if link is not None:
                link.close()
            raise LinkLost(str(error)) from None

    def close(self) -> None:
        """Drop every connection."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for link in self._links.values():
            link.close()


def _copied(body: Buffer) -> Buffer:
    """Return a copy, made without holding up the thread that serves workers."""
    copy: Buffer = np.frombuffer(body, np.uint8).copy().data
    return copy
