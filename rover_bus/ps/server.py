"""The shell of a parameter server: one thread, one selector, sockets in front of a `core.ServerCore`.

Fed by workers over the network and by `call` from other threads (`service`: the server's run on the bus). All tables belong to the
thread that runs `serve`; nothing is locked. Plain sockets instead of asyncio by measurement (docs/design/0003).
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rover_bus.events.errors import AccessDenied, BadMessage
from rover_bus.ps import handshake, messages
from rover_bus.ps.changes import HalfChanged
from rover_bus.ps.core import ServerCore
from rover_bus.ps.encryption import KIND, WAITS, SocketIdentity, accept_encrypted, make_identity
from rover_bus.ps.patience import Patience
from rover_bus.ps.shared import SharedBodies, create_memory, map_memory
from rover_bus.ps.shared_secret import Secret, known
from rover_bus.ps.stream import (
    FrameReceiver,
    FrameSender,
    address_of,
    is_encrypted,
    listen,
    shares_memory,
    tune,
)

LOOPBACK = "127.0.0.1"
HANDSHAKE_S = 10.0  # for a worker to prove itself
LOOK_S = 1.0  # between looks at what secrets count
MOST_CONNECTIONS = 4096
MOST_WAITING_BYTES = 1 << 28  # of replies that a worker does not take: above it nothing more is read from it

Result = TypeVar("Result")


def addresses_at(bind: str = LOOPBACK) -> tuple[str, ...]:
    """Return where to listen: shared memory for workers of this host where the system has it, and TCP at an address of it.

    Beyond loopback TCP is encrypted. The name in shared memory is abstract: no file, gone with its process; and random, so that on
    another host nothing answers to it.
    """
    network = f"{'tcp' if bind == LOOPBACK else KIND}:{bind}:0"
    if sys.platform != "linux":
        return (network,)
    return f"shm:@rover-ps-{secrets.token_hex(16)}", network


class _Connection:
    """One worker's socket: first a proof, then frames."""

    def __init__(self, sock: socket.socket, shares: bool, now_s: float) -> None:
        sock.setblocking(False)
        tune(sock)
        self.shaken = not isinstance(sock, ssl.SSLSocket)  # hands, where it is encrypted
        self.socket, self.shares, self.deadline_s = sock, shares, now_s + HANDSHAKE_S
        self.nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        self.response = self.secret = b""  # the one that its worker has
        self.receiver: FrameReceiver | None = None  # once the worker has proved itself
        self.waiting: tuple[bytes, bytes] | None = None  # a frame that can wait for its answer
        self.sender = FrameSender(sock)
        self.sender.put([handshake.challenge(self.nonce)])

    def shake(self) -> int:
        """Go on with the handshake of TLS; return what its socket must be ready for next, 0 once it is done. Raises OSError."""
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        self.shaken = True
        return 0

    def open(self, secret: bytes, proof: bytes) -> None:
        """The worker has proved itself: prove ourselves, with shared memory where that can be had, and expect frames."""
        self.secret = secret
        descriptor = create_memory() if self.shares else None
        if descriptor is None:
            self.sender.put([proof])
            self.receiver = FrameReceiver(self.socket)
            return
        try:
            workers_half, servers_half = map_memory(descriptor)
            if socket.send_fds(self.socket, [proof], [descriptor]) < len(proof):
                raise BlockingIOError
        finally:
            os.close(descriptor)
        shared = SharedBodies(servers_half, workers_half, willing=False)
        self.sender, self.receiver = FrameSender(self.socket, shared), FrameReceiver(self.socket, shared)


class Server:
    """Serves a core at some addresses until `stop`. `secret`: the stack's; loopback unless told otherwise."""

    def __init__(self, core: ServerCore, secret: Secret, addresses: Sequence[str] = ()) -> None:
        self.core, self._secret, self._looked_s = core, secret, 0.0
        self._selector = selectors.DefaultSelector()
        self._calls: deque[tuple[Callable[[], Any], Future[Any], bool]] = deque()
        self._patience = Patience()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._take_calls)
        self._stopping = False
        self._connections: dict[socket.socket, _Connection] = {}
        self._listeners: dict[socket.socket, str] = {}  # and the address that was asked for
        self._identity: SocketIdentity | None = None  # where one of them is encrypted
        try:
            for address in addresses or addresses_at():
                if is_encrypted(address):
                    self._identity = self._identity or make_identity()
                self._listeners[listen(address)] = address
        except BaseException:
            self.close()
            raise
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def addresses(self) -> list[str]:
        """Where workers can connect."""
        return [address_of(listener, asked, self._identity) for listener, asked in self._listeners.items()]

    # --- from other threads ---

    def call(self, function: Callable[[], Result], patient: bool = False) -> Future[Result]:
        """Run a function on the thread that owns the tables: `admit`, `route`, `write_part`, `statistics`.

        `patient`: at a moment when it keeps no worker waiting. Of a server that is closed the call is cancelled.
        """
        future: Future[Result] = Future()
        self._calls.append((function, future, patient))
        try:
            self._wake.send(b"\0")
        except OSError:
            future.cancel()
        return future

    def stop(self) -> None:
        """End `serve`, from any thread or signal handler."""
        self.call(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        self._stopping = True

    # --- the loop ---

    def serve(self) -> None:
        """Answer until `stop`; then close every socket."""
        do_not_preempt()
        try:
            while not self._stopping:
                pause_s = self._patience.pause_s(time.monotonic(), 1.0)
                for key, events in self._selector.select(pause_s):
                    self._attend(key, events)
                if work := self._patience.take(began_s := time.monotonic()):
                    work.do()
                    self._patience.note_work(time.monotonic() - began_s)
                self._drop_silent(time.monotonic())
                self._drop_former(time.monotonic())
        finally:
            self.close()

    def _attend(self, key: selectors.SelectorKey, events: int) -> None:
        if isinstance(key.data, _Connection):
            self._exchange(key.data, events)
        else:
            key.data(key.fileobj)

    def close(self) -> None:
        """Close everything; calls that were not run are cancelled."""
        self._patience.drop()
        for _, future, _ in self._calls:
            future.cancel()
        for sock in [*self._connections, *self._listeners, self._wake, self._woken]:
            sock.close()
        self._connections.clear()
        self._selector.close()

    def _take_calls(self, woken: socket.socket) -> None:
        woken.recv(4096)
        while self._calls:
            function, future, patient = self._calls.popleft()
            if patient:
                self._patience.put(partial(_carry_out, function, future), future.cancel, time.monotonic())
            else:
                _carry_out(function, future)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # gone again, or out of files: the next one may do
        if len(self._connections) >= MOST_CONNECTIONS:
            sock.close()
            return
        asked = self._listeners[listener]
        if is_encrypted(asked) and self._identity is not None:
            try:
                sock = accept_encrypted(sock, self._identity)
            except OSError:
                sock.close()
                return
        connection = _Connection(sock, shares_memory(asked), time.monotonic())
        self._connections[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if connection.shaken:
            self._send(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.socket, None):
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _drop_silent(self, now_s: float) -> None:
        for connection in [
            c for c in self._connections.values() if c.receiver is None and now_s > c.deadline_s
        ]:
            self.core.count("denied")
            self._drop(connection)

    def _drop_former(self, now_s: float) -> None:
        """End what a secret has proved that counts no more: what has the present one connects again."""
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s, count = now_s, known(self._secret)
        for connection in [c for c in self._connections.values() if c.secret and c.secret not in count]:
            self._drop(connection)

    def _exchange(self, connection: _Connection, events: int) -> None:
        try:
            if not connection.shaken:
                if wanted := connection.shake():
                    self._selector.modify(connection.socket, wanted, connection)
                    return
                events = selectors.EVENT_WRITE  # the challenge
            if events & selectors.EVENT_WRITE and not self._send(connection):
                return
            if events & selectors.EVENT_READ and not self._read(connection):
                self._drop(connection)
        except WAITS:
            return
        except OSError:
            self._drop(connection)
        except MemoryError:  # no room to receive a frame, or to answer it: sent again it may pass; nothing is half done (`changes`)
            self.core.count("refused_not_enough_memory")
            self._drop(connection)
        except (BadMessage, AccessDenied) as error:
            self.core.count("malformed" if isinstance(error, BadMessage) else "denied")
            self._drop(connection)

    def _read(self, connection: _Connection) -> bool:
        """Take in what has arrived; False when the worker has left."""
        if connection.receiver is None:
            return self._prove(connection)
        while connection.receiver.receive():
            if not self._answer_frames(connection, connection.receiver) or not connection.receiver.holds_more:
                return True
        return False

    def _answer_frames(self, connection: _Connection, receiver: FrameReceiver) -> bool:
        """Answer all frames that have arrived whole; False when the connection is gone."""
        while frame := receiver.next_frame():
            self._answer_waiting(connection)
            if self.core.can_wait(frame[0]):
                connection.waiting = bytes(frame[0]), bytes(frame[1])  # the frame is gone with the next one
                answer = partial(self._answer_waiting, connection)
                self._patience.put(answer, lambda: None, time.monotonic())
                continue
            self._patience.note_request(time.monotonic())
            gives_values = messages.asks_for_values(frame[0])
            connection.sender.put(self.core.answer(*frame))
            if not self._send(connection):
                return False
            self._patience.note_answer(time.monotonic(), gives_values)
        return True

    def _answer_waiting(self, connection: _Connection) -> None:
        """Answer a request that could wait, if there is one still and a connection to answer on."""
        frame, connection.waiting = connection.waiting, None
        if frame is not None and connection.socket in self._connections:
            connection.sender.put(self.core.answer(*frame))
            self._send(connection)

    def _prove(self, connection: _Connection) -> bool:
        received = connection.socket.recv(handshake.RESPONSE_BYTES - len(connection.response))
        connection.response += received
        if len(connection.response) == handshake.RESPONSE_BYTES:
            connection.open(*handshake.accept(known(self._secret), connection.nonce, connection.response))
            self._send(connection)
        return bool(received)

    def _send(self, connection: _Connection) -> bool:
        """Send what can be sent; wait for writability with the rest. False when the connection is gone."""
        try:
            done = connection.sender.send()
        except OSError:
            self._drop(connection)
            return False
        events = selectors.EVENT_READ
        if not done:
            full = connection.sender.waiting_bytes > MOST_WAITING_BYTES
            events = selectors.EVENT_WRITE if full else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)
        return True


def _carry_out(function: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except HalfChanged as error:
        future.set_exception(error)
        raise
    except Exception as error:  # noqa: BLE001 - it is the caller's, which waits for the future
        future.set_exception(error)


def do_not_preempt() -> None:
    """Have a request wake this thread, and those that it starts, without taking the processor from the worker that sends it.

    It has more to send: a worker preempted after its first request leaves the other servers idle until it runs again
    (docs/design/0003).
    """
    with suppress(AttributeError, OSError):  # a system without such a class, or that does not let us
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
