"""Facts of FACTS as the daemons of one process read them: decoded and checked once, however many daemons receive them.

Given to each daemon by operator.py, which has one for each node: a fact that all of them follow arrives a hundred times. No
reader changes what is read, so that they may share it. The key is all that is stored: after a loss numbers come again (P21).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from rover_bus.events.bus import Stored
from rover_bus.events.fact import Fact
from rover_bus.events.reading import read_fact

KEPT = 512  # daemons receive a fact within moments of one another


def reading_once() -> Callable[[Stored], Fact]:
    """Return what reads a fact as `read_fact` does; what cannot be read is tried by each. Raises BadMessage."""

    @functools.lru_cache(maxsize=KEPT)
    def read(sequence: int, subject: str, body: bytes, headers: tuple[tuple[str, str], ...]) -> Fact:
        return read_fact(Stored(sequence, subject, body, dict(headers)))

    return lambda stored: read(stored.sequence, stored.subject, stored.body, tuple(stored.headers.items()))
