"""How storing gives way to training: the priority of a thread, and a token bucket over the bytes that are written.

Used by the persister's threads and by the server of staged parts (peers.py). The bucket is pure, so that a limit can be tested
without a disk and without a clock.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

# Low, but not the lowest: against a busy core nice 12 gets one part in fifteen, nice 19 one in seventy, and a checkpoint that takes
# minutes to be stored is none (the weights are those of the kernel's scheduler).
NICE = 12
BURST_S = 0.25  # so much of a second may be written at once


def give_way() -> None:
    """Lower the priority of the calling thread; Linux has one for each thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


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
