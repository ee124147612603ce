"""Frames on a socket: one buffer to receive into, scattered buffers to send from, no copies in between.

Between processes of one host the bodies may lie in memory that both share (`shared`): then the socket carries the rest. Between
hosts it is encrypted (`encryption`): a record at a time, each copied once more.
Used by `server` and `client`. Frames are multiples of 64 bytes, so that every frame in the buffer, and every array in a frame,
lies aligned.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress

from rover_bus.events.units import number_in
from rover_bus.ps.encryption import KIND, RECORD_BYTES, WAITS, SocketIdentity, connect_encrypted
from rover_bus.ps.frame import MAX_BODY_BYTES, PRELUDE_BYTES, Buffer, measure
from rover_bus.ps.shared import SharedBodies

FIRST_BUFFER_BYTES = 1 << 20
SHARED = "shm"  # the kind of address whose frames may have their bodies in shared memory
MOST_BUFFERS = 64  # of one sendmsg: far below IOV_MAX

Frame = tuple[memoryview, memoryview]  # header, body


class FrameReceiver:
    """Cuts what a socket brings into frames. A frame is valid until `receive` is called again."""

    def __init__(
        self, sock: socket.socket, shared: SharedBodies | None = None, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._socket, self._shared, self._max_body_bytes = sock, shared, max_body_bytes
        self._view = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._start = self._end = 0  # of what is received and not yet consumed

    def receive(self) -> bool:
        """Receive once; False at the end of the stream. Raises OSError, BadMessage."""
        self._make_room()
        received = self._socket.recv_into(self._view[self._end :])
        self._end += received
        if received and isinstance(self._socket, ssl.SSLSocket) and self._socket.gettimeout() == 0:
            self._receive_records(self._socket)
        return received > 0

    def _receive_records(self, sock: ssl.SSLSocket) -> None:
        """Receive what else is there, as far as there is room: TLS gives one record at a time, whatever has arrived."""
        with suppress(*WAITS):
            while self._end < len(self._view) and (received := sock.recv_into(self._view[self._end :])):
                self._end += received

    @property
    def holds_more(self) -> bool:
        """Whether more has arrived that no selector tells of: decrypted already."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def next_frame(self) -> Frame | None:
        """Consume and return the next whole frame. Raises BadMessage."""
        held = self._end - self._start
        if held < PRELUDE_BYTES:
            return None
        extent = measure(self._view[self._start :], self._max_body_bytes, self._shared is not None)
        if held < extent.end:
            return None
        frame = self._view[self._start : self._start + extent.end]
        self._start += extent.end
        header, body = frame[PRELUDE_BYTES : extent.header_end], frame[extent.body_start :]
        if self._shared is not None:
            self._shared.count_received()
            if extent.shared:
                body = self._shared.find(body)
        return header, body

    def _make_room(self) -> None:
        """Keep room for the whole frame that is arriving; move what has arrived only when that is needed."""
        if self._start == self._end:
            self._start = self._end = 0
        held = self._end - self._start
        needed = PRELUDE_BYTES
        if held >= PRELUDE_BYTES:
            needed = measure(self._view[self._start :], self._max_body_bytes, self._shared is not None).end
        if len(self._view) - self._start >= max(needed, held + PRELUDE_BYTES):
            return
        view = self._view
        if needed > len(view):
            view = memoryview(bytearray(2 * needed))
        view[:held] = (
            self._view[self._start : self._end].tobytes()
            if view is self._view
            else self._view[self._start : self._end]
        )
        self._view, self._start, self._end = view, 0, held


class FrameSender:
    """Sends buffers in order, as far as the socket takes them."""

    def __init__(self, sock: socket.socket, shared: SharedBodies | None = None) -> None:
        self._socket, self._shared = sock, shared
        self._waiting: deque[memoryview] = deque()

    def put(self, frame: list[Buffer]) -> None:
        """Queue a frame, or what the socket is to carry of it."""
        if self._shared is not None:
            frame = self._shared.place(frame)
        self._waiting.extend(memoryview(buffer) for buffer in frame)

    def send(self) -> bool:
        """Send until the socket is full (False) or nothing is left (True). Raises OSError."""
        while self._waiting:
            try:
                sent = self._send_some()
            except WAITS:
                return False
            while self._waiting and sent >= len(self._waiting[0]):
                sent -= len(self._waiting.popleft())
            if sent:
                self._waiting[0] = self._waiting[0][sent:]
        return True

    def _send_some(self) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(self._next_record())
        return self._socket.sendmsg(
            [self._waiting[at] for at in range(min(MOST_BUFFERS, len(self._waiting)))]
        )

    def _next_record(self) -> Buffer:
        """Return what is sent next under TLS. After a wait it must begin as before: the queue only grows at its end."""
        if len(self._waiting[0]) >= RECORD_BYTES:
            return self._waiting[0]
        some: list[memoryview] = []
        left = RECORD_BYTES
        for buffer in self._waiting:
            some.append(buffer[:left])
            left -= len(some[-1])
            if not left:
                break
        return b"".join(some)

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self._waiting))


def connect(address: str, timeout_s: float) -> socket.socket:
    """Connect to `tcp:<host>:<port>`, `tls:<host>:<port>:<fingerprint>`, `unix:<path>`, `unix:@<name>` or `shm:@<name>`.

    Raises OSError, ValueError.
    """
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(target)
        tune(sock)
        return connect_encrypted(sock, address.rpartition(":")[2]) if is_encrypted(address) else sock
    except BaseException:
        sock.close()
        raise


def listen(address: str) -> socket.socket:
    """Listen at an address; port 0 lets the system choose. Raises OSError, ValueError."""
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(128)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def address_of(sock: socket.socket, asked: str, identity: SocketIdentity | None = None) -> str:
    """Return the address that a listening socket really has, when it was asked to listen at `asked` and shows this identity."""
    name = sock.getsockname()
    if is_encrypted(asked) and identity is not None:
        return f"{KIND}:{name[0]}:{name[1]}:{identity.fingerprint}"
    if sock.family == socket.AF_INET:
        return f"tcp:{name[0]}:{name[1]}"
    if shares_memory(asked):
        return asked
    return f"unix:@{name[1:].decode()}" if isinstance(name, bytes) else f"unix:{name}"


def shares_memory(address: str) -> bool:
    """Whether frames of connections to this address may have their bodies in shared memory."""
    return address.startswith(f"{SHARED}:")


def is_encrypted(address: str) -> bool:
    """Whether connections to this address speak TLS."""
    return address.startswith(f"{KIND}:")


def parse_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Return what a socket needs. Raises ValueError."""
    kind, _, rest = address.partition(":")
    if kind == SHARED and rest.startswith("@"):
        return socket.AF_UNIX, "\0" + rest[1:]
    if kind == "unix" and rest:
        return socket.AF_UNIX, "\0" + rest[1:] if rest.startswith("@") else rest
    if kind == KIND and rest.count(":") == 2:
        rest = rest.rpartition(":")[0]  # without the fingerprint
    host, _, port = rest.rpartition(":")
    if kind not in ("tcp", KIND) or not host or number_in(port) < 0:
        forms = "tcp:<host>:<port>, tls:<host>:<port>:<fingerprint>, unix:<path> or shm:@<name>"
        raise ValueError(f"{address!r} is no server address: {forms}")
    return socket.AF_INET, (host, int(port))


def tune(sock: socket.socket) -> None:
    """Requests wait for replies: never hold small packets back."""
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
