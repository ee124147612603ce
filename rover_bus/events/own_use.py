"""What this process itself uses of its machine, as members say it of themselves in their samples.

A daemon sees more: children, and members that hang. On Kubernetes nothing but the member can look into its pod (docs/design/0077).
"""

from __future__ import annotations

import os
from typing import NamedTuple

STATUS = "/proc/self/status"
COUNTED = (
    "RssAnon",
    "RssShmem",
)  # as a daemon counts members: anonymous and shared memory, no pages of files


class OwnUse(NamedTuple):
    """`processor_s`: seconds of processor time of this process and its ended children since it began; `memory_bytes`: now."""

    processor_s: float = 0.0
    memory_bytes: int = 0


def read_own_use() -> OwnUse:
    """Return what this process uses; no memory (0) where the kernel does not say."""
    try:
        with open(STATUS, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith(COUNTED))
    return OwnUse(sum(os.times()[:4]), kilobytes << 10)
