"""The log of an embedded broker, read as it grows: rotated, truncated and removed logs included.

Fed by broker.py, which asks for news of a full disk and for the last words of a server that ended. Apart from it because a log is
a file that others touch as well: whatever became of it, reading it never ends the broker's watch.
"""

from __future__ import annotations

import os
from pathlib import Path

WRITE_ERRORS = (
    b"critical write error",  # of a stream, once: the line may be lost, where the log lies on the disk that is full
    b"no space left on device",  # and of each message that it takes no more
)
TAIL_BYTES = 2000
TAIL_LINES = 4
UNKNOWN, MISSING = 0, -1  # in place of an inode


class BrokerLog:
    """Follows one log file. `look` reads what is new; `write_error` remembers what it found since `begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write_error: str | None = None
        self._inode, self._offset = UNKNOWN, 0
        self._rest = b""

    def begin(self) -> None:
        """A server starts: what is in the log already is of a former one."""
        self.write_error, self._rest = None, b""
        status = self._status()
        self._inode, self._offset = (status.st_ino, status.st_size) if status else (UNKNOWN, 0)

    def look(self) -> bool:
        """Read what is new. Returns False when the file is not the one that was read so far: moved, removed, or replaced."""
        status = self._status()
        if status is None:
            self._inode, self._offset = MISSING, 0  # whatever comes in its place is asked for once more
            return False
        same = self._inode in (UNKNOWN, status.st_ino)
        if not same or status.st_size < self._offset:
            self._offset, self._rest = 0, b""
        self._inode = status.st_ino
        self._read()
        return same

    def last_words(self, *others: Path) -> str:
        """Return the last lines of the log and of `others`, on one line."""
        lines = [line for path in (self.path, *others) for line in _tail(path)[-TAIL_LINES:]]
        return " | ".join(lines) or f"its log {self.path} is empty"

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.stat()
        except OSError:
            return None

    def _read(self) -> None:
        try:
            with self.path.open("rb") as log:
                log.seek(self._offset)
                fresh = log.read()
        except OSError:
            return
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        for line in lines:
            if self.write_error is None and any(error in line.lower() for error in WRITE_ERRORS):
                self.write_error = line.decode(errors="replace").strip()


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []
