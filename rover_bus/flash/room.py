"""Is there memory for another slot? Asked before it is allocated, because a full tmpfs or group answers by SIGBUS
or SIGKILL.

Fed by the kernel's own numbers (tmpfs, host, every memory group above us); feeds `slot`. The decision is pure, the
reading is not.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rover_bus.events.errors import NotEnoughMemory

SPARE_BYTES = 64 << 20  # what the host and the group keep for everything else
LARGER = (
    "enlarge it (docker --shm-size; on Kubernetes the sizeLimit of its emptyDir, and the memory with which the pod starts: a "
    "resize in place leaves the volume as it is), or choose another directory"
)
GROUPS = Path("/sys/fs/cgroup")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Free bytes as the kernel states them; None: no limit known."""

    tmpfs_bytes: int
    host_bytes: int | None = None
    group_bytes: int | None = None


def require_room(needed_bytes: int, room: Room, directory: Path) -> None:
    """Raise NotEnoughMemory, naming the sizes and the way out, if `needed_bytes` more cannot be had."""
    size = _mib(needed_bytes)
    if needed_bytes > room.tmpfs_bytes:
        raise NotEnoughMemory(f"a slot needs {size}, {directory} has {_mib(room.tmpfs_bytes)} left: {LARGER}")
    for free, whose in ((room.host_bytes, "the host"), (room.group_bytes, "this container's limit")):
        if free is not None and needed_bytes + SPARE_BYTES > free:
            raise NotEnoughMemory(
                f"a slot needs {size}, {whose} leaves {_mib(free)}: "
                "allow more memory, or use fewer slots or more servers for this state"
            )


def read_room(directory: Path) -> Room:
    """What is free now for files under `directory`."""
    stat = os.statvfs(directory)
    return Room(
        tmpfs_bytes=stat.f_bavail * stat.f_frsize, host_bytes=_host_bytes(), group_bytes=_group_bytes()
    )


def free_bytes() -> int:
    """What the host and every memory group above this process leave; 0: not known."""
    known = [each for each in (_host_bytes(), _group_bytes()) if each is not None]
    return max(min(known, default=0), 0)


def _host_bytes() -> int | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _group_bytes() -> int | None:
    """The least that any group above this process leaves (cgroup v2); reclaimable file cache counts as free."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::/"):
            own = GROUPS / line[4:]
            groups = [own, *own.parents]
            free = [_free_in(group) for group in groups if group.is_relative_to(GROUPS)]
            return min((value for value in free if value is not None), default=None)
    return None


def _free_in(group: Path) -> int | None:
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    stat = dict(line.split() for line in _read(group / "memory.stat").splitlines() if line.count(" ") == 1)
    return int(limit) - int(used) + int(stat.get("inactive_file", 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
