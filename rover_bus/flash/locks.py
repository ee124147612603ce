"""Locks that belong to an open file description, and therefore die with their holder (`man 2 fcntl`, OFD locks).

Fed with file descriptors; used for owners (one writer a part), for readers (a slot in use is not overwritten) and
for jobs (a directory without a holder may be swept). It is apart because a lock file that outlives its process is
the peer's bug that this store must not have. A child made by `fork` shares its parent's locks until it execs or
ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)


def _set(fd: int, kind: int) -> bool:
    request = struct.pack("hhqqi0q", kind, *WHOLE_FILE)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock_shared(fd: int) -> bool:
    """Take or keep a read lock, without waiting; whether it is held. `fd` must be readable."""
    return _set(fd, fcntl.F_RDLCK)


def lock_exclusive(fd: int) -> bool:
    """Take or keep the write lock, without waiting; whether it is held. `fd` must be writable."""
    return _set(fd, fcntl.F_WRLCK)


def is_held_elsewhere(fd: int) -> bool:
    """Whether another description holds any lock on this file; nothing is taken, so that no other process is kept out by
    the question."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, *WHOLE_FILE))
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def unlock(fd: int) -> None:
    """Give up whatever is held through this descriptor."""
    _set(fd, fcntl.F_UNLCK)


def open_locked(path: Path, *, exclusive: bool) -> int | None:
    """Open or create a lock file and lock it; None when another holds it.

    The file may be removed between our open and our lock (a sweep): a lock on a file without a name guards nothing,
    so try again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _give_to_owner_of(path.parent, fd)
        if not (lock_exclusive(fd) if exclusive else lock_shared(fd)):
            os.close(fd)
            return None
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _give_to_owner_of(folder: Path, fd: int) -> None:
    """A lock that root made in the folder of another user is that user's, who has to open it too."""
    made, owner = os.fstat(fd), os.stat(folder)
    if os.geteuid() == 0 and made.st_uid == 0 != owner.st_uid and (made.st_nlink, made.st_size) == (1, 0):
        os.fchown(fd, owner.st_uid, owner.st_gid)
