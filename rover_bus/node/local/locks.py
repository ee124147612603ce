"""Locks of open file descriptions: a proof of life that dies with its holder, whatever killed it.

The daemon holds one on its state directory (one daemon a directory, and shims see that it lives); every shim holds one on its
member's directory, inherited from the daemon that spawned it, so that it is held at every moment.
Asking takes nothing: a probe can never make a starting daemon believe that another one is there. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, pid


def hold(path: str) -> int | None:
    """Take the lock and return the descriptor that holds it until closed everywhere; None when another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    with suppress(OSError):  # a full disk: then nothing names the holder
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d" % os.getpid(), 0)
    return fd


def holder_of(path: str) -> str:
    """Return the process id of the lock's holder, as it wrote it; "" where it could not."""
    with suppress(OSError, ValueError):
        return str(int(Path(path).read_text()))
    return ""


def is_held(fd: int) -> bool:
    """Say whether another open file description holds the lock of this file."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def is_held_at(path: str) -> bool:
    """Say whether the lock of the file at `path` is held; that of an absent file is not."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return is_held(fd)
    finally:
        os.close(fd)
