"""Whether the control group of this process holds it to the cores that its member was given: members in pods say so as they join.

A kubelet promises that, and some set no limit (`--cpu-cfs-quota=false`). No process outside of a container can read its group, so
the member does, once: a kubelet that sets a limit changes it as well (docs/design/0038).
"""

from __future__ import annotations

import os
from pathlib import Path

from rover_bus.events.cgroup import find, own_cores

ABOUT = 0.1  # share of what was given by which a quota may differ from it
LEAST_CORES = 0.01  # the kernel takes no quota below 1 ms of 100 ms


def cores_held(given: str, root: Path = Path("/")) -> bool | None:
    """Return whether a quota of about the given cores is there; None where that cannot be told.

    given: ROVER_CORES, as a platform that cannot try it sets it for its members; "" of others. root: of the machine, or of a tree
    in its place. None as well: no control group is to be seen; another quota (it was changed since, or is no member's own); no
    quota, but just as many CPUs as were given, of more (a kubelet with the static policy keeps those free of others).
    """
    try:
        cores = float(given)
    except ValueError:
        return None
    group = find(root)
    if not cores or not group.cpu:
        return None
    quota = own_cores(group)
    if quota is not None:
        return True if abs(quota - cores) <= max(ABOUT * cores, LEAST_CORES) else None
    return None if _has_cpus_of_its_own(cores) else False


def _has_cpus_of_its_own(cores: float) -> bool:
    return len(os.sched_getaffinity(0)) == cores < (os.cpu_count() or 1)
