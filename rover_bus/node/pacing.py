"""How fast a daemon may write: a token bucket over bytes.

Fed by the persister's threads with what they wrote and the time; says how long to wait. Pure, so that a limit can be
tested without a disk and without a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 0.25  # so much of a second may be written at once


@dataclass(slots=True)
class Pacing:
    """`rate_bytes` a second; 0: no limit. `level_bytes` is what may be written now; below 0 it is owed."""

    rate_bytes: float
    level_bytes: float = 0.0
    at_s: float | None = None

    def take(self, size_bytes: int, now_s: float) -> float:
        """Note that bytes were written; return for how many seconds to write nothing."""
        if self.rate_bytes <= 0:
            return 0.0
        most = self.rate_bytes * BURST_S
        earned = most if self.at_s is None else max(0.0, now_s - self.at_s) * self.rate_bytes
        self.level_bytes = min(most, self.level_bytes + earned) - size_bytes
        self.at_s = now_s
        return max(0.0, -self.level_bytes / self.rate_bytes)
