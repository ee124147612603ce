"""How tests wait for real processes: until something holds, however slow the machine is.

The bound only keeps a broken test from hanging for ever: it is far beyond what any machine needs. Nothing is asserted about time.
Rings whose jobs train under load have a longer one (Makefile): machines were seen four times slower than on other days.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", "280"))
LOOK_S = 0.02


def until(
    condition: Callable[[], object], what: str, look_s: float = LOOK_S, more: Callable[[], object] = str
) -> None:
    """Wait until `condition` holds; fail saying what never came. `more`: what else the failure shows."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"never came: {what}; {more()}"
        time.sleep(look_s)
