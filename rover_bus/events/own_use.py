"""What this process itself uses of its machine, as members say it of themselves in their samples.

A daemon sees more: children, and members that hang. On Kubernetes nothing but the member can look into its pod (docs/design/0077,
of peaks 0084).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from rover_bus.events.peaks import Peaks

STATUS = "/proc/self/status"
COUNTED = (
    "RssAnon",
    "RssShmem",
)  # as a daemon counts members: anonymous and shared memory, no pages of files


TASKS = Path("/proc/self/task")


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


def read_own_seconds() -> dict[str, float]:
    """Return the processor seconds of this process alone, as `Peaks` takes them."""
    return {"": time.process_time()}


def take_own_peak(peaks: Peaks[str]) -> float:
    """Return the cores that this process used in its busiest tenths of a second.

    0, not known, where it has children, whose use it cannot see while they live, or where the kernel does not say so: cores cut to
    what a program's main process uses would starve its loaders.
    """
    peak = peaks.take().get("", 0.0)
    return 0.0 if _may_have_children() else round(peak, 4)


def _may_have_children() -> bool:
    try:
        return any((task / "children").read_text() for task in TASKS.iterdir())
    except OSError:  # no such file in this kernel, or a thread that ended just now
        return True
