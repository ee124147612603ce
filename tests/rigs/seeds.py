"""How many histories of chance a test lives: few in `make test`, more of the same in `make simulate`."""

from __future__ import annotations

import os


def seeds(variable: str, few: int, many: int, first: int = 0) -> range:
    """Return the seeds. `variable`: of the environment, where COUNT or COUNT@FIRST asks for others."""
    asked, _, begin = os.environ.get(variable, "").partition("@")
    start = int(begin or first)
    return range(start, start + int(asked or (many if "ROVER_SIMULATIONS" in os.environ else few)))
