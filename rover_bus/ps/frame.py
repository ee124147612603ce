"""One message on a byte stream: a prelude, a msgpack header, raw array buffers; every length bounded before it is believed.

    offset 0   4 bytes  magic b"RPS1"
           4   4 bytes  header length, little endian
           8   8 bytes  body length, little endian, a multiple of 64
          16   header, padded to a multiple of 64 from offset 0
          ..   body: buffers, each padded to a multiple of 64, so that arrays lie aligned wherever a frame does

Used by both shells (`server`, `client`) and by the simulated transport. It knows nothing of what a header says (`messages`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import BadMessage

ALIGNMENT = 64
PRELUDE_BYTES = 16
MAX_HEADER_BYTES = 1 << 20
MAX_BODY_BYTES = 1 << 28  # a batch of 4 million rows of width 16
_PRELUDE = struct.Struct("<4sIQ")
_MAGIC = b"RPS1"
_SHARED_MAGIC = b"RPSM"  # the body says where the real one is (`shared`)
_PADDING = bytes(ALIGNMENT)

Buffer = bytes | bytearray | memoryview


class Extent(NamedTuple):
    """Where the parts of a frame lie, in bytes from its beginning."""

    header_end: int
    body_start: int
    end: int
    shared: bool = False  # the body is elsewhere, and this one says where


def padded(size_bytes: int) -> int:
    """Return the next multiple of 64."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def measure(prelude: Buffer, max_body_bytes: int = MAX_BODY_BYTES, may_share: bool = False) -> Extent:
    """Read the first 16 bytes of a frame. Raises BadMessage for foreign bytes and for lengths beyond their bounds."""
    magic, header_bytes, body_bytes = _PRELUDE.unpack_from(prelude)
    shared = may_share and magic == _SHARED_MAGIC and body_bytes == ALIGNMENT
    if magic != _MAGIC and not shared:
        raise BadMessage("not a parameter server's frame: is the address right?")
    if header_bytes > MAX_HEADER_BYTES or body_bytes > max_body_bytes:
        raise BadMessage(
            f"a frame of {header_bytes} + {body_bytes} bytes: at most {max_body_bytes} are taken"
        )
    if body_bytes % ALIGNMENT:
        raise BadMessage(f"a body of {body_bytes} bytes is not padded to {ALIGNMENT}")
    body_start = padded(PRELUDE_BYTES + header_bytes)
    return Extent(PRELUDE_BYTES + header_bytes, body_start, body_start + body_bytes, shared)


def share(head: Buffer) -> bytes:
    """Return the first buffer of a packed frame, changed to one whose body only says where the real one is."""
    _, header_bytes, _ = _PRELUDE.unpack_from(head)
    return _PRELUDE.pack(_SHARED_MAGIC, header_bytes, ALIGNMENT) + bytes(head[PRELUDE_BYTES:])


def pack(header: bytes, arrays: Iterable[npt.NDArray[Any]] = ()) -> list[Buffer]:
    """Return the buffers of one frame, in order; arrays are not copied. Raises BadMessage when it is too large to be taken."""
    body: list[Buffer] = []
    size = 0
    for array in arrays:
        if not array.nbytes:
            continue
        body.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        padding = padded(array.nbytes) - array.nbytes
        if padding:
            body.append(_PADDING[:padding])
        size += array.nbytes + padding
    if len(header) > MAX_HEADER_BYTES or size > MAX_BODY_BYTES:
        raise BadMessage(f"a message of {len(header)} + {size} bytes is too large: use smaller batches")
    prelude = _PRELUDE.pack(_MAGIC, len(header), size) + header
    return [prelude + _PADDING[: padded(len(prelude)) - len(prelude)], *body]


def unpack(frame: Buffer) -> tuple[memoryview, memoryview]:
    """Divide one whole frame into header and body. Raises BadMessage."""
    view = memoryview(frame)
    if len(view) < PRELUDE_BYTES:
        raise BadMessage(f"a frame of {len(view)} bytes is truncated")
    extent = measure(view)
    if extent.end != len(view):
        raise BadMessage(f"a frame of {len(view)} bytes says that it has {extent.end}")
    return view[PRELUDE_BYTES : extent.header_end], view[extent.body_start :]


class BodyReader:
    """Cuts a body into arrays, in the order in which they were packed. No copies; every read is checked against the length."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def read(self, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
        """Return the next array. Raises BadMessage where the body is too short for it."""
        count = 1
        for length in shape:
            count *= int(length)
        size = count * np.dtype(dtype).itemsize
        if padded(size) > len(self._body) - self._at:
            raise BadMessage(f"a body of {len(self._body)} bytes lacks an array of {size} bytes")
        array = np.frombuffer(self._body, dtype, count, self._at).reshape(tuple(shape))
        self._at += padded(size)
        return array

    def end(self) -> None:
        """Raises BadMessage when something is left over."""
        if self._at != len(self._body):
            raise BadMessage(f"{len(self._body) - self._at} bytes too many in a body")
