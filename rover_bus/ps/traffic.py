"""How much each slot is asked for: counted on a sample of requests, so that it costs next to nothing. What hot slots are known by.

Fed by `core`; read by `service`, which knows how much time has passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rover_bus.events.requests import SlotTraffic
from rover_bus.ps.hashing import SLOTS

EVERY = 8  # requests: one of them is counted, for all
HOTTEST = 32  # slots named one by one
KEPT = 0.5  # of the former rates at every report: what is hot now was hot in the last few


class Traffic:
    """Keys a second by slot, pulled ones; pushes ask for the same rows again."""

    def __init__(self) -> None:
        self._requests = 0
        self._counts = np.zeros(SLOTS, np.int64)
        self._rates = np.zeros(SLOTS)

    def samples(self) -> bool:
        """Return whether the next request is one to be counted."""
        self._requests += 1
        return self._requests % EVERY == 0

    def note(self, slots: npt.NDArray[np.int64]) -> None:
        """Count the keys of a request."""
        self._counts += np.bincount(slots, minlength=SLOTS)

    def report(self, seconds: float) -> SlotTraffic:
        """Return the rates, of which the last `seconds` are half."""
        self._rates = KEPT * self._rates + (1 - KEPT) * EVERY * self._counts / max(seconds, 1e-3)
        self._counts[:] = 0
        order = np.argsort(self._rates)[::-1][:HOTTEST]
        hottest = [(int(slot), round(float(self._rates[slot]), 3)) for slot in order if self._rates[slot] > 0]
        return SlotTraffic(keys_per_s=round(float(self._rates.sum()), 3), hottest=hottest)
