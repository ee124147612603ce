"""Work on files with the rights of another user, on one thread, by a process that is root: what it makes belongs to that user.

Used by a host's daemon for what a job may change itself (docs/design/0085): a link in there to files of another user leads nowhere,
since the kernel asks who goes there. Linux alone; apart from `places`, which asks here who acts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rover_bus.events.errors import AccessDenied

ROOT = 0
_NO_USER = 0xFFFFFFFF  # the kernel answers who it is now
_acting = threading.local()


def acting_user() -> int:
    """Return whose rights on files this thread has taken; -1: those of its process."""
    return int(getattr(_acting, "user", -1))


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Have a user's rights on files while the body runs; threads that it starts have them too. Raises AccessDenied."""
    former = acting_user()
    _become(user)
    _acting.user = user
    try:
        yield
    finally:
        _become(ROOT if former < 0 else former)
        _acting.user = former


def _become(user: int) -> None:
    import ctypes  # most processes that ask who acts never change that

    libc = ctypes.CDLL(None)
    libc.setfsgid(ctypes.c_uint32(user))
    libc.setfsuid(ctypes.c_uint32(user))
    if libc.setfsuid(ctypes.c_uint32(_NO_USER)) & _NO_USER != user:
        raise AccessDenied(
            f"this process may not work as user {user}: it needs root (hosts.first_member_uid)"
        )
