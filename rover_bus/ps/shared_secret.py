"""What the processes of one run demand of one another's sockets, and how it is replaced while they speak (docs/design/0064).

Fed by a member's credential, which may be replaced (events/credentials.py); feeds the handshakes of servers, workers and daemons.
Processes of several hosts learn of a new secret one after the other: for a while each accepts, and tries, the former one as well.
Then the former counts no more, and connections that it proved end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from rover_bus.events.errors import InputError

OVERLAP_S = 20.0  # a host that takes in new keys later than that is cut off by the broker before


class SharedSecret:
    """A secret that may be replaced. `read`: returns what it is now; `clock`: monotonic seconds."""

    def __init__(self, read: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._now, self._former, self._until_s = read(), b"", 0.0

    def known(self) -> tuple[bytes, ...]:
        """Return what counts now, the newest first."""
        fresh = b""
        with suppress(InputError):  # a file that cannot be read just now: what was read before counts
            fresh = self._read()
        if fresh and fresh != self._now:
            self._now, self._former, self._until_s = fresh, self._now, self._clock() + OVERLAP_S
        return (self._now, self._former) if self._clock() < self._until_s else (self._now,)


Secret = bytes | SharedSecret


def known(secret: Secret) -> tuple[bytes, ...]:
    """Return the secrets that count now, the newest first; one that is never replaced is the only one."""
    return secret.known() if isinstance(secret, SharedSecret) else (secret,)
