"""Slow storage for experiments: every batch takes a while to read, and only so many readers of a host are served at a time.

Fed by `[data] read_latency` and `readers_at_once` of the job file; waited for by the reader thread. An input-bound job gains from
more workers until its storage is busy: what the demo shows, and what the Brain must find out by measuring.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from rover_bus.events.job import DataSpec

REST = 1 / 10  # of the latency: what a place needs between two readers


def pause_of(data: DataSpec) -> Callable[[], None] | None:
    """Return what a reader does before each batch; None for storage that is as fast as it is."""
    if not data.read_latency_s:
        return None
    if not data.readers_at_once:
        return lambda: time.sleep(data.read_latency_s)
    return SharedStorage(Path(data.train), data.readers_at_once, data.read_latency_s).read


class SharedStorage:
    """A queue before `places` readers, in a small file beside the data: when each place is free again, in monotonic seconds.

    A reader books the place that is free first, and waits for its end; one that dies leaves nothing behind but its booking.
    """

    def __init__(self, data: Path, places: int, latency_s: float) -> None:
        key = zlib.crc32(f"{data.name}:{places}:{latency_s}".encode())
        self._path = data.absolute().parent / f".rover-storage-{key:08x}"
        self._places, self._latency_s = struct.Struct(f"<{places}d"), latency_s
        self._file = -1

    def open(self) -> None:
        """Open the file, unless it is."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> None:
        """Wait as long as the storage takes, queueing included."""
        self.open()
        time.sleep(max(self.book(time.monotonic()) - time.monotonic(), 0.0))

    def book(self, now_s: float) -> float:
        """Book the next place; return the second at which the batch is read. Bookings of a former boot are void."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            body = os.pread(self._file, self._places.size, 0)
            free = list(self._places.unpack(body)) if len(body) == self._places.size else []
            free = free or [0.0] * (self._places.size // 8)
            place = min(range(len(free)), key=free.__getitem__)
            most_s = now_s + 60.0
            start_s = now_s if free[place] > most_s else max(now_s, free[place])
            free[place] = start_s + self._latency_s * (1 + REST)
            os.pwrite(self._file, self._places.pack(*free), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return start_s + self._latency_s

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
