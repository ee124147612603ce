"""How many batches a second a worker manages: what sizes its leases (design §5). Pure; times are seconds of one clock.

Waiting for leases is not the worker's doing and does not count. Older batches fade, so that a worker that becomes slow gets
smaller leases within a few time constants (S18).
"""

from __future__ import annotations

import math

TIME_CONSTANT_S = 10.0


class Pace:
    """A fading mean of batches over working seconds."""

    def __init__(self) -> None:
        self._batches = 0.0
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def rate(self) -> float:
        """Batches a second, 0.0 while unknown."""
        return self._batches / self._seconds if self._seconds > 0 else 0.0

    def resume(self, now: float) -> None:
        """Work is there again after a wait."""
        self._since = now

    def finish(self, now: float) -> None:
        """One more batch is done."""
        if self._since is None:
            self._since = now
        spent = max(now - self._since, 0.0)
        faded = math.exp(-spent / TIME_CONSTANT_S)
        self._batches = self._batches * faded + 1
        self._seconds = self._seconds * faded + spent
        self._since = now
