"""How fast one process asks an API server: so many requests a second, some more at once, none while the server asks for a pause.

Used by api.py for every request; pure, the clock comes in as an argument.
"""

from __future__ import annotations


class RequestPace:
    """A bucket of requests. `per_s`: how many a second for long; `burst`: how many at once after a rest."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._gap_s = 1.0 / per_s
        self._rest_s = burst / per_s
        self._full_s = 0.0  # when the bucket will have been filled again

    def take(self, now_s: float) -> float:
        """Take a place for one request; return how many seconds to wait for it."""
        self._full_s = max(self._full_s, now_s) + self._gap_s
        return max(self._full_s - self._rest_s - now_s, 0.0)

    def hold(self, until_s: float) -> None:
        """Let nothing go before this second."""
        self._full_s = max(self._full_s, until_s + self._rest_s)
