"""Which cores a member gets, and how many threads. Pure; asked by the platform decider before a start or a change.

A member is pinned only where the cores it asks for can be its own: on an oversubscribed host pins would fight the kernel's
balancing (two members on one core beside an idle one), so there it may use every core and only its threads are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

EPSILON = 1e-9

# What numerical libraries read when they are loaded.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# A helper thread of such a library that waits for its next share sleeps. As they come, OpenBLAS's spin: a worker that waits for its
# input then uses up a core, which no other member gets and which the Brain counts as needed (docs/design/0007).
PATIENT = {"OPENBLAS_THREAD_TIMEOUT": "4", "OMP_WAIT_POLICY": "PASSIVE"}


def assign_cpus(allowed: Sequence[int], loads: Mapping[int, float], cores: float) -> dict[int, float]:
    """Return the share of each CPU that a member asking for `cores` (0: no limit) gets; empty: it is not pinned.

    allowed: CPU numbers that members may use. loads: share of each CPU that is taken, 0 to 1. Whole cores get idle CPUs; a
    fraction shares the fullest CPU that still has room (best fit).
    """
    whole = math.floor(cores + EPSILON)
    fraction = cores - whole if cores - whole > EPSILON else 0.0
    idle = [cpu for cpu in allowed if loads.get(cpu, 0.0) <= EPSILON]
    if cores <= EPSILON or len(idle) < whole:
        return {}
    chosen = dict.fromkeys(idle[:whole], 1.0)
    if fraction:
        roomy = [
            cpu for cpu in allowed if cpu not in chosen and loads.get(cpu, 0.0) + fraction <= 1 + EPSILON
        ]
        if not roomy:
            return {}
        chosen[max(roomy, key=lambda cpu: (loads.get(cpu, 0.0), -cpu))] = fraction
    return chosen


def threads(cores: float, role: str) -> dict[str, str]:
    """Return how threads are for a member's environment: as many as its cores rounded up, one for a master, any without a limit."""
    if cores <= 0 and role != "master":
        return dict(PATIENT)
    count = str(max(1, math.ceil(cores - 1e-9)))
    return {**dict.fromkeys(THREAD_VARIABLES, count), **PATIENT}
