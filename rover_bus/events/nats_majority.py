"""Whether a server that answers has lost most of its cluster: no majority is with it, and so it stores nothing.

Fed by nats_bus.py with how many addresses of servers the present one knows, which it tells its clients whenever that changes; says
when it is to be left for another one. A connection to it lives, and its pings are answered, for as long as it is cut off.
"""

from __future__ import annotations

import time

ALONE_S = 3.0  # routes that break for a moment are made again
MOST_DOUBLED = 6


class ServerMajority:
    """How many servers were known at most, since when the present one knows no majority of them, and how often one was left for it.

    `told`: how many addresses the user gave; several are of two servers at least, and may be several of one. Where all servers are
    as badly off, each time in a row that one is left makes the next wait twice as long: what needs no store goes on meanwhile.
    """

    def __init__(self, told: int) -> None:
        self._most, self._left = min(told, 2), 0
        self._since_s: float | None = None

    def is_to_be_left(self, known: int) -> bool:
        """Whether this server, which knows so many addresses (0: it does not say), is to be left now."""
        self._most = max(self._most, known)
        if not known or 2 * known > self._most:
            self._left, self._since_s = (0 if known else self._left), None
            return False
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < ALONE_S * 2 ** min(self._left, MOST_DOUBLED):
            return False
        self._left, self._since_s = self._left + 1, None
        return True
