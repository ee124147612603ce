"""Control groups, versions 1 and 2: the limits we live under, what is used of them, how often we were throttled.

Read by daemons (node/local), and by members of their own group (own_cores.py), below a `root` ("/" or a recorded tree); apart
because the two versions, hybrids and containers name the same five figures in ten ways. A limit of an ancestor binds as well, so
each is the least along the path.
Source: kernel documentation, admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60  # version 1 says "no limit" with a number near 2^63


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Where our group lies: the directories from our own up to the root of what we can see. Empty: no such controller."""

    version: int
    cpu: tuple[Path, ...] = ()
    memory: tuple[Path, ...] = ()
    accounting: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """None where nothing limits."""

    cores: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Counters of our own group since it began; memory without the file cache that the kernel gives back first."""

    processor_s: float | None = None
    memory_bytes: int | None = None
    periods: int = 0
    periods_throttled: int = 0


def find(root: Path = Path("/")) -> Cgroup:
    """Find our group by /proc/self/cgroup and the mounts. Version 0: none is mounted."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    mounts = list(_mounts(root))
    unified = _directories(root, mounts, "cgroup2", "", paths.get("", "/"))
    if any((each / "cpu.max").exists() or (each / "memory.max").exists() for each in unified) or not any(
        kind == "cgroup" for kind, *_ in mounts
    ):
        return Cgroup(2 if unified else 0, unified, unified, unified)
    return Cgroup(
        1,
        *(
            _directories(root, mounts, "cgroup", controller, paths.get(controller, "/"))
            for controller in ("cpu", "memory", "cpuacct")
        ),
    )


def _mounts(root: Path) -> Iterator[tuple[str, str, str, set[str]]]:
    """Yield (file system, root of the mount, mount point, options) of every control group mount."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, dash, after = line.partition(" - ")
        if dash and after.startswith("cgroup"):
            fields, kind = before.split(), after.split()
            yield kind[0], fields[3], fields[4], set(kind[2].split(","))


def _directories(
    root: Path, mounts: list[tuple[str, str, str, set[str]]], kind: str, controller: str, path: str
) -> tuple[Path, ...]:
    for found, mount_root, point, options in mounts:
        if found != kind or (controller and controller not in options):
            continue
        top = root / point.lstrip("/")
        below = path.removeprefix(mount_root.rstrip("/")).strip("/")
        own = (
            top / below if (top / below).is_dir() else top
        )  # a container may see only its own part as the top
        return tuple(each for each in (own, *own.parents) if each == top or top in each.parents)
    return ()


def read_limits(group: Cgroup) -> CgroupLimits:
    """Return the least of the limits along our path."""
    version2 = group.version == 2
    cores = [_cores_2(each) if version2 else _cores_1(each) for each in group.cpu]
    name = "memory.max" if version2 else "memory.limit_in_bytes"
    memory = [_number(each / name) for each in group.memory]
    return CgroupLimits(
        min((each for each in cores if each is not None), default=None),
        min((each for each in memory if each is not None and each < NO_LIMIT_BYTES), default=None),
    )


def own_cores(group: Cgroup) -> float | None:
    """Return the quota of our own group alone, in cores; None where it has none."""
    read = _cores_2 if group.version == 2 else _cores_1
    return next((read(each) for each in group.cpu[:1]), None)


def _cores_2(directory: Path) -> float | None:
    quota, _, period = _text(directory / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.strip().isdecimal() else None


def _cores_1(directory: Path) -> float | None:
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def read_usage(group: Cgroup) -> CgroupUsage:
    """Return what our own group has used until now."""
    if not group.cpu and not group.memory and not group.accounting:
        return CgroupUsage()
    read: Callable[[Cgroup], CgroupUsage] = _usage_2 if group.version == 2 else _usage_1
    return read(group)


def _usage_2(group: Cgroup) -> CgroupUsage:
    own = group.cpu[0]
    cpu, memory = table(_text(own / "cpu.stat")), table(_text(own / "memory.stat"))
    used, held = cpu.get("usage_usec"), _number(own / "memory.current")
    return CgroupUsage(
        processor_s=None if used is None else used / 1e6,
        memory_bytes=None if held is None else max(held - memory.get("inactive_file", 0), 0),
        periods=cpu.get("nr_periods", 0),
        periods_throttled=cpu.get("nr_throttled", 0),
    )


def _usage_1(group: Cgroup) -> CgroupUsage:
    used = _number(group.accounting[0] / "cpuacct.usage") if group.accounting else None
    held = _number(group.memory[0] / "memory.usage_in_bytes") if group.memory else None
    cache = table(_text(group.memory[0] / "memory.stat")).get("total_inactive_file", 0) if group.memory else 0
    cpu = table(_text(group.cpu[0] / "cpu.stat")) if group.cpu else {}
    return CgroupUsage(
        processor_s=None if used is None else used / 1e9,
        memory_bytes=None if held is None else max(held - cache, 0),
        periods=cpu.get("nr_periods", 0),
        periods_throttled=cpu.get("nr_throttled", 0),
    )


def out_of_memory_counter(group: Cgroup) -> Path | None:
    """Return the file whose line `oom_kill N` counts the kernel's kills in our group, None where there is none."""
    name = "memory.events" if group.version == 2 else "memory.oom_control"
    for own in group.memory[:1]:
        if "oom_kill" in table(_text(own / name)):
            return own / name
    return None


def table(text: str) -> dict[str, int]:
    """Parse lines of `name number`; other lines are passed over."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdecimal() else None
