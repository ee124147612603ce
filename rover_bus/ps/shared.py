"""Bodies of frames in memory that a worker and a server on one host share; the socket carries headers and rings the bell.

Used by `stream`, symmetrically at both ends. A server's proof (`handshake`) brings the descriptor of an anonymous, sealed memory
file over a unix socket: without a name, so that a killed process leaves nothing behind; sealed, so that no peer can shrink it
under the other's feet. Apart, because all of it is optional: what finds no room, or no peer on this host, travels on the socket.

A shared frame has another magic in its prelude, and this in place of its body, padded to 64 bytes, little endian:

    offset 0   8 bytes  where the body begins in the sender's half, a multiple of 64
           8   8 bytes  length of the body
          16   8 bytes  frames of the other side that the sender has done with, since the connection began
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections import deque

from rover_bus.events.errors import BadMessage
from rover_bus.ps.frame import ALIGNMENT, Buffer, share

HALF_BYTES = 1 << 24  # for each direction; pages that are never touched cost nothing
MAX_HALF_BYTES = 1 << 28
_DESCRIPTOR = struct.Struct("<QQQ40x")
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, SHRINK, GROW: what fcntl does not name on every system


def create_memory() -> int | None:
    """Return the descriptor of a new sealed memory file, or None where the system has none (or none left)."""
    try:
        descriptor = os.memfd_create("rover-ps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError):
        return None
    try:
        os.ftruncate(descriptor, 2 * HALF_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def map_memory(descriptor: int) -> tuple[memoryview, memoryview]:
    """Map a memory file: (the worker's half, the server's half). Raises OSError, and BadMessage for one that is not sealed."""
    size = os.fstat(descriptor).st_size
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS or not 0 < size <= 2 * MAX_HALF_BYTES:
        raise BadMessage(f"shared memory of {size} bytes is not sealed, or too large")
    if size % (2 * mmap.PAGESIZE):
        raise BadMessage(f"shared memory of {size} bytes cannot be halved")
    whole = memoryview(mmap.mmap(descriptor, size))
    return whole[: size // 2], whole[size // 2 :]


class Ring:
    """Places for pieces that are taken and given back in order. An empty one begins at its front, which is warm."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._taken: deque[tuple[int, int, int]] = deque()  # (number, start, end)

    def take(self, number: int, size: int) -> int | None:
        """Return where `size` bytes, a multiple of 64, fit in one piece; None if they do not. Numbers ascend."""
        first = self._taken[0][1] if self._taken else 0
        last_start, last_end = self._taken[-1][1:] if self._taken else (0, 0)
        wrapped = last_start < first
        start = last_end
        if start + size > (first if wrapped else self._size):
            if wrapped or size > first:
                return None
            start = 0
        if size:
            self._taken.append((number, start, start + size))
        return start

    def give_back(self, through: int) -> None:
        """Free everything with a number up to `through`."""
        while self._taken and self._taken[0][0] <= through:
            self._taken.popleft()


class SharedBodies:
    """One end of a connection's shared memory. `willing`: whether to share before the other end has shared anything."""

    def __init__(self, outgoing: memoryview, incoming: memoryview, *, willing: bool) -> None:
        self._outgoing, self._incoming, self._willing = outgoing, incoming, willing
        self._ring = Ring(len(outgoing))
        self._sent = self._received = 0

    def count_received(self) -> None:
        """A frame was taken in; it is done with when the next one is sent."""
        self._received += 1

    def place(self, frame: list[Buffer]) -> list[Buffer]:
        """Return what the socket is to carry: the header and where the body is; or the frame as it was, without room or will."""
        self._sent += 1
        size = sum(len(buffer) for buffer in frame[1:])
        at = self._ring.take(self._sent, size) if self._willing else None
        if at is None:
            return frame
        end = at
        for buffer in frame[1:]:
            self._outgoing[end : end + len(buffer)] = buffer
            end += len(buffer)
        return [share(frame[0]) + _DESCRIPTOR.pack(at, size, self._received)]

    def find(self, descriptor: memoryview) -> memoryview:
        """Return the body that a shared frame speaks of. Raises BadMessage when it lies outside of the shared memory."""
        start, size, done = _DESCRIPTOR.unpack_from(descriptor)
        if start % ALIGNMENT or size % ALIGNMENT or start + size > len(self._incoming) or done > self._sent:
            raise BadMessage(f"a body of {size} bytes at {start}, which is not in the shared memory")
        self._ring.give_back(done)
        self._willing = True
        return self._incoming[start : start + size]
