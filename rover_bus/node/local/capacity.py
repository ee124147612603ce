"""What this host can give to members: the least of the machine, its control group's limits and our affinity.

Read once for the local platform: for `host.registered`, and for the sampler as the scale of its figures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rover_bus.events.cgroup import Cgroup, CgroupLimits, find, read_limits
from rover_bus.events.identity import HostCapacity


@dataclass(frozen=True, slots=True)
class Machine:
    """What the local platform stands on. `cpus`: those that members may use."""

    capacity: HostCapacity
    limits: CgroupLimits
    cgroup: Cgroup
    cpus: tuple[int, ...]


def read_machine() -> Machine:
    """Return what this machine is now."""
    group = find()
    limits = read_limits(group)
    return Machine(read_capacity(limits), limits, group, tuple(sorted(os.sched_getaffinity(0))))


def read_whole_machine() -> Machine:
    """Return what the machine is, whatever limits the control group of this process: others run its members."""
    limits = CgroupLimits()
    return Machine(read_capacity(limits), limits, Cgroup(0), tuple(range(os.cpu_count() or 1)))


def parse_meminfo(text: str) -> dict[str, int]:
    """Return /proc/meminfo in bytes by name."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) << (10 if words[-1] == "kB" else 0)
    return found


def capacity(
    cpus: int, memory_bytes: int, limits: CgroupLimits, affinity: int, shared_memory_bytes: int = 0
) -> HostCapacity:
    """Return the capacity. cpus: of the machine; memory_bytes: of the machine; affinity: CPUs that we may use."""
    cores = min(float(cpus), float(affinity), limits.cores if limits.cores is not None else float(cpus))
    memory = min(memory_bytes, limits.memory_bytes if limits.memory_bytes is not None else memory_bytes)
    return HostCapacity(
        cores=cores,
        memory_bytes=memory,
        shared_memory_bytes=min(shared_memory_bytes, memory),
    )


def read_capacity(limits: CgroupLimits, root: Path = Path("/")) -> HostCapacity:
    """Return what this host can give now."""
    memory = parse_meminfo((root / "proc/meminfo").read_text())
    return capacity(
        os.cpu_count() or 1,
        memory.get("MemTotal", 0),
        limits,
        len(os.sched_getaffinity(0)),
        _shared_memory_bytes(Path(os.environ.get("ROVER_SHM", "") or root / "dev/shm")),
    )


def _shared_memory_bytes(directory: Path) -> int:
    try:
        stat = os.statvfs(directory)
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize
