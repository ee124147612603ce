"""Samples of a host and its members: two readings of /proc and the control group make one `profile.host`.

`read` takes a reading (counters, one pass over /proc), `profile` is the pure difference of two; `MachineSampler` does both.
Published by the daemon every few seconds; read by the Brain and `rover top`. /proc is read directly: the daemon asks for six
figures a process, and an idle host should not notice it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from rover_bus.events import cgroup
from rover_bus.events.cgroup import Cgroup, CgroupLimits, CgroupUsage
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.profiles import HostProfile, ProcessSample
from rover_bus.node.local import proctree
from rover_bus.node.local.capacity import Machine, parse_meminfo

RESOURCES = ("cpu", "memory", "io")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

RunningMember = tuple[str, Member, int]  # job, member, pid


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One member's process group: its processor time of the living, its memory (anonymous and shared), its threads."""

    processor_s: float
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment. `stalled_s` is the PSI total of `some` by resource, absent where the kernel has none."""

    at_s: float
    busy_s: float
    memory_used_bytes: int
    usage: CgroupUsage
    stalled_s: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[RunningMember, GroupUse] = field(default_factory=dict)


def parse_busy_s(text: str) -> float:
    """Return the processor seconds that a machine was busy, from the first line of /proc/stat: all but idle, iowait and steal."""
    words = text.split("\n", 1)[0].split()[1:]
    ticks = [int(word) for word in words[:7]]
    return (sum(ticks) - sum(ticks[3:5])) / TICKS_A_SECOND


def parse_stalled_s(text: str) -> float | None:
    """Return how long some task has waited for a resource, from a pressure file (PSI); None when it is none."""
    for line in text.splitlines():
        if line.startswith("some ") and "total=" in line:
            return int(line.rpartition("total=")[2]) / 1e6
    return None


def read(members: Sequence[RunningMember], group: Cgroup, now_s: float, root: Path = Path("/")) -> Reading:
    """Take a reading; `now_s` is the monotonic second."""
    memory = parse_meminfo(_text(root / "proc/meminfo"))
    stalled = {name: parse_stalled_s(read_pressure(group, name, root)) for name in RESOURCES}
    return Reading(
        at_s=now_s,
        busy_s=parse_busy_s(_text(root / "proc/stat") or "cpu 0 0 0 0 0 0 0"),
        memory_used_bytes=max(memory.get("MemTotal", 0) - memory.get("MemAvailable", 0), 0),
        usage=cgroup.read_usage(group),
        stalled_s={name: value for name, value in stalled.items() if value is not None},
        groups=read_groups(members),
    )


def read_pressure(group: Cgroup, resource: str, root: Path = Path("/")) -> str:
    """Return the pressure file (PSI) of our own group where it has one, else of the host; "" when there is none."""
    own = _text(group.cpu[0] / f"{resource}.pressure") if group.version == 2 and group.cpu else ""
    return own or _text(root / "proc/pressure" / resource)


def read_groups(members: Sequence[RunningMember]) -> dict[RunningMember, GroupUse]:
    """Return what each member's process and all that descends from it use, in one pass over /proc."""
    processes = proctree.snapshot() if members else {}
    found = {}
    for member in members:
        pids = [pid for pid in (member[2], *proctree.descendants(processes, member[2])) if pid in processes]
        if pids:
            ticks, threads = sum(processes[pid][3] for pid in pids), sum(processes[pid][4] for pid in pids)
            found[member] = GroupUse(ticks / TICKS_A_SECOND, proctree.memory_bytes(pids), threads)
    return found


def profile(
    host: str, capacity: HostCapacity, limits: CgroupLimits, before: Reading, now: Reading
) -> HostProfile:
    """Return the window between two readings. A resource that our control group limits is measured there, else machine-wide."""
    window_s = max(now.at_s - before.at_s, 1e-9)
    pressure = {name: _pressure_of(name, before, now, window_s) for name in RESOURCES}
    periods = now.usage.periods - before.usage.periods
    throttled = now.usage.periods_throttled - before.usage.periods_throttled
    return HostProfile(
        window_s=window_s,
        host=host,
        cores=capacity.cores,
        cores_used=_cores_used(limits, before, now) / window_s,
        memory_bytes=capacity.memory_bytes,
        memory_used_bytes=_memory_used(limits, now),
        cpu_pressure=pressure["cpu"],
        memory_pressure=pressure["memory"],
        io_pressure=pressure["io"],
        throttled=min(max(throttled / periods, 0.0), 1.0) if periods > 0 else 0.0,
        processes=[_process(running, group, before, window_s) for running, group in now.groups.items()],
    )


class MachineSampler:
    """One window after another of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._reading: Reading | None = None

    def take(
        self,
        host: str,
        capacity: HostCapacity,
        members: Sequence[RunningMember] = (),
        peaks: Mapping[tuple[str, Member], float] = MappingProxyType({}),
    ) -> HostProfile | None:
        """Return the window since the last call; None at the first. `peaks`: of members, in cores, where they were measured."""
        before, self._reading = self._reading, read(members, self._machine.cgroup, time.monotonic())
        if before is None:
            return None
        window = profile(host, capacity, self._machine.limits, before, self._reading)
        processes = [
            msgspec.structs.replace(each, cores_peak=round(peaks.get((each.job, each.member), 0.0), 4))
            for each in window.processes
        ]
        return window.replace(processes=processes, wall_ms=time.time_ns() // 1_000_000)


def _cores_used(limits: CgroupLimits, before: Reading, now: Reading) -> float:
    then_s, now_s = before.usage.processor_s, now.usage.processor_s
    if limits.cores is not None and then_s is not None and now_s is not None:
        return max(now_s - then_s, 0.0)
    return max(now.busy_s - before.busy_s, 0.0)


def _memory_used(limits: CgroupLimits, now: Reading) -> int:
    if limits.memory_bytes is not None and now.usage.memory_bytes is not None:
        return now.usage.memory_bytes
    return now.memory_used_bytes


def _pressure_of(name: str, before: Reading, now: Reading, window_s: float) -> float:
    if name not in before.stalled_s or name not in now.stalled_s:
        return -1.0
    return min(max((now.stalled_s[name] - before.stalled_s[name]) / window_s, 0.0), 1.0)


def _process(running: RunningMember, group: GroupUse, before: Reading, window_s: float) -> ProcessSample:
    job, member, pid = running
    then = before.groups.get(running)
    spent_s = max(group.processor_s - (then.processor_s if then else 0.0), 0.0)
    return ProcessSample(
        job=job,
        member=member,
        pid=pid,
        cores_used=round(spent_s / window_s, 4),
        memory_bytes=group.memory_bytes,
        threads=group.threads,
    )


def _text(path: Path) -> str:
    return proctree.read_bytes(str(path)).decode("utf-8", "replace")
