"""A worker's parameters on several servers: `store.Parameters` over blocking sockets, for the training thread.

Drives `exchange`, which knows the protocol; here are sockets, time and the secret, nothing else. Requests go out to all
servers before the first reply is read, so that servers work side by side.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Unpack

import numpy.typing as npt

from rover_bus.events.errors import AccessDenied, BadMessage
from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.ps import handshake
from rover_bus.ps.exchange import (
    Effect,
    Exchange,
    LinkLost,
    OperationDone,
    Receive,
    Refresh,
    Reset,
    Send,
    Steps,
    advance,
)
from rover_bus.ps.frame import Buffer
from rover_bus.ps.shared import SharedBodies, map_memory
from rover_bus.ps.shared_secret import Secret, known
from rover_bus.ps.spec import Table
from rover_bus.ps.store import Acknowledged, BatchKey, Exported, Pulled, PushOptions
from rover_bus.ps.stream import Frame, FrameReceiver, FrameSender, connect

Refresher = Callable[[RoutingTable, float], RoutingTable]


class ServerLink:
    """One authenticated connection."""

    def __init__(self, server: ServerAddress, secret: Secret, connect_s: float, silence_s: float) -> None:
        self.server = server
        self.name = f"server {server.index} ({', '.join(server.addresses)})"
        *newer, oldest = known(secret)
        for each in newer:
            with suppress(AccessDenied):  # it does not know this one yet
                shared = self._open(server, each, connect_s)
                break
        else:
            shared = self._open(server, oldest, connect_s)
        self._socket.settimeout(silence_s)
        self._receiver, self._sender = FrameReceiver(self._socket, shared), FrameSender(self._socket, shared)

    def _open(self, server: ServerAddress, secret: bytes, connect_s: float) -> SharedBodies | None:
        self._socket = self._connect(server, connect_s)
        try:
            return self._prove(secret)
        except BaseException:
            self._socket.close()
            raise

    def _connect(self, server: ServerAddress, connect_s: float) -> socket.socket:
        problem = "it has no address"
        for address in server.addresses:
            try:
                return connect(address, connect_s)
            except (OSError, ValueError) as error:
                problem = str(error)
        raise LinkLost(f"{self.name} cannot be reached: {problem}")

    def _prove(self, secret: bytes) -> SharedBodies | None:
        """Prove ourselves and have the server prove itself. Return the memory that it shares with us, if it does."""
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        descriptors: list[int] = []
        try:
            challenge = self._exactly(handshake.CHALLENGE_BYTES)
            if not challenge:
                raise LinkLost(f"{self.name} is leaving: it closed the connection")
            server_nonce = handshake.read_challenge(challenge)
            self._socket.sendall(handshake.respond(secret, server_nonce, nonce))
            proof = self._exactly(handshake.PROOF_BYTES, descriptors)
            if not proof:
                raise AccessDenied(f"{self.name} refused the secret: is this worker of the same stack?")
            handshake.check_server(secret, server_nonce, nonce, proof)
            return _share(descriptors)
        except OSError as error:
            raise LinkLost(f"{self.name} broke off: {error}") from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _exactly(self, size: int, descriptors: list[int] | None = None) -> bytes:
        """Receive so many bytes, empty at the end of the stream; and, where asked for, file descriptors that come with them."""
        received = b""
        while len(received) < size:
            if descriptors is None or self._socket.family != socket.AF_UNIX:
                more = self._socket.recv(size - len(received))
            else:
                more, fds, _, _ = socket.recv_fds(
                    self._socket, size - len(received), 1, socket.MSG_CMSG_CLOEXEC
                )
                descriptors.extend(fds)
            if not more:
                return b""
            received += more
        return received

    def send(self, frame: list[Buffer]) -> None:
        try:
            self._sender.put(frame)
            self._sender.send()
        except OSError as error:
            raise LinkLost(f"{self.name} was lost while sending: {error}") from None

    def receive(self) -> Frame:
        try:
            while not (frame := self._receiver.next_frame()):
                if not self._receiver.receive():
                    raise LinkLost(f"{self.name} closed the connection")
        except (OSError, BadMessage) as error:
            raise LinkLost(f"{self.name} was lost while receiving: {error}") from None
        return frame

    def close(self) -> None:
        self._socket.close()


def _identity(server: ServerAddress) -> tuple[int, int]:
    return server.index, server.incarnation


def _share(descriptors: list[int]) -> SharedBodies | None:
    """Map the memory that came with a server's proof. None without it, or without room: then bodies travel on the socket."""
    if not descriptors:
        return None
    try:
        workers_half, servers_half = map_memory(descriptors[0])
    except (OSError, ValueError, BadMessage):
        return None
    return SharedBodies(workers_half, servers_half, willing=True)


def no_news(after: RoutingTable, wait_s: float) -> RoutingTable:
    """A routing provider for servers that never change: waits, and knows nothing newer."""
    time.sleep(wait_s)
    return after


class RemoteParameters:
    """`store.Parameters` on the servers of a routing table.

    `refresh(after, wait_s)` blocks up to `wait_s` for a table newer than `after` and returns the newest known. `in_flight`:
    pushes that may be unacknowledged when `push` returns (0: wait for each; 1: the next pull waits). `patience_s`: how long
    lost servers are looked for before ServersUnreachable; `silence_s`: how long one may take to answer before it counts as lost.
    """

    def __init__(
        self,
        routing: RoutingTable,
        secret: Secret,
        *,
        refresh: Refresher = no_news,
        in_flight: int = 1,
        patience_s: float = 30.0,
        silence_s: float = 60.0,
    ) -> None:
        self._exchange = Exchange(routing, in_flight=in_flight, patience_s=patience_s)
        self._secret, self._refresh = secret, refresh
        self._connect_s, self._silence_s = 5.0, silence_s
        self._links: list[ServerLink] = []  # by position in the routing table

    @property
    def routing(self) -> RoutingTable:
        """The routing table in use."""
        return self._exchange.route.table

    # --- Parameters ---

    def declare(self, *tables: Table) -> None:
        self._run(self._exchange.declare(*tables))

    def pull(self, ids: Mapping[str, npt.NDArray[Any]]) -> Pulled:
        item = self._run(self._exchange.ask(ids))
        pulled: Pulled = self._run(self._exchange.collect(item))
        return pulled

    def push(
        self, batch: BatchKey, gradients: Mapping[str, npt.NDArray[Any]], **options: Unpack[PushOptions]
    ) -> None:
        self._run(self._exchange.push(batch, gradients, **options))

    def acknowledged(self) -> list[Acknowledged]:
        return self._exchange.acknowledged()

    def flush(self) -> None:
        self._run(self._exchange.flush())

    def read(self, table: str, ids: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self._run(self._exchange.read(table, ids))
        return values

    def export(self) -> dict[str, Exported]:
        tables: dict[str, Exported] = self._run(self._exchange.export())
        return tables

    def close(self) -> None:
        while self._links:
            self._links.pop().close()

    # --- more than Parameters ---

    def follow(self, generation: int) -> None:
        """Wait for the servers of a generation, the present or a later one. Raises ServersUnreachable."""
        self._run(self._exchange.follow(generation))

    def statistics(self) -> dict[int, dict[str, float]]:
        """Return every server's counters, by server index."""
        counters: dict[int, dict[str, float]] = self._run(self._exchange.statistics())
        return counters

    def __enter__(self) -> RemoteParameters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- effects ---

    def _run(self, steps: Steps) -> Any:
        """Perform the effects of an operation and return its result."""
        result: Any = None
        lost: LinkLost | None = None
        while not isinstance(effect := advance(steps, result, lost), OperationDone):
            try:
                result, lost = self._perform(effect), None
            except LinkLost as error:
                lost = error
            except BaseException:
                self._exchange.interrupt()  # Ctrl-C, or a secret refused: what was on its way is sent again by the next call
                raise
        return effect.value

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Send(position, frame):
                self._link(position).send(frame)
            case Receive(position):
                return self._link(position).receive()
            case Reset(routing, afresh):
                self._reset(routing, afresh)
            case Refresh(after, wait_s):
                return self._refresh(after, wait_s)
        return None

    def _reset(self, routing: RoutingTable, afresh: bool) -> None:
        if afresh:
            self.close()
        links = {_identity(link.server): link for link in self._links}
        staying = {_identity(server) for server in routing.servers}
        for identity in [identity for identity in links if identity not in staying]:
            links.pop(identity).close()
        for server in routing.servers:
            if _identity(server) not in links:
                links[_identity(server)] = ServerLink(server, self._secret, self._connect_s, self._silence_s)
                self._links.append(links[_identity(server)])  # `close` finds it even if the next one fails
        self._links = [links[_identity(server)] for server in routing.servers]

    def _link(self, position: int) -> ServerLink:
        if position >= len(self._links):
            raise LinkLost("not connected")
        return self._links[position]
