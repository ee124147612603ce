"""What /proc says of processes: their tree, their age, their processor time, their memory.

Read by the shim (what to kill, how much its group uses) and by the sampler; apart because the shim must start without our
dependencies. A process that vanished while being read is simply not there. Standard library only.
"""

from __future__ import annotations

import os

# One process: parent, group, session, processor ticks, threads, start in ticks since boot.
Stat = tuple[int, int, int, int, int, int]
MARK = "ROVER_MEMBER_DIR"  # in the environment of all that a member began: the member's directory


def read_bytes(path: str, limit: int = 1 << 16) -> bytes:
    """Return a small file's bytes, empty when it or its process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a member's pipe is not waited for
    except OSError:
        return b""
    try:
        return os.read(fd, limit)
    except OSError:
        return b""
    finally:
        os.close(fd)


def parse_stat(text: bytes) -> Stat | None:
    """Take /proc/<pid>/stat apart; None for what is no such line, and for the dead (zombies run no more)."""
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    parent, group, session = int(fields[1]), int(fields[2]), int(fields[3])
    return parent, group, session, int(fields[11]) + int(fields[12]), int(fields[17]), int(fields[19])


def stat(pid: int) -> Stat | None:
    """Return a living process's figures, None when it does not live."""
    return parse_stat(read_bytes(f"/proc/{pid}/stat", 4096))


def start_ticks(pid: int) -> int:
    """Return when a process started, in ticks since boot: with the pid it names a process for good. 0 when it is dead."""
    found = stat(pid)
    return found[5] if found else 0


def snapshot() -> dict[int, Stat]:
    """Return every living process of this machine (about 15 µs each)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            process = stat(int(entry))
            if process:
                found[int(entry)] = process
    return found


def descendants(processes: dict[int, Stat], root: int) -> list[int]:
    """Return all that descend from `root`, without it."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process[0], []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def listed_descendants(root: int) -> list[int]:
    """Return all that descend from `root`, from the kernel's own lists where it keeps them, else from a whole snapshot."""
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        return descendants(snapshot(), root)
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        for thread in _entries(f"/proc/{pid}/task"):
            below = [int(child) for child in read_bytes(f"/proc/{pid}/task/{thread}/children").split()]
            found += below
            waiting += below
    return found


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _kibibytes(text: bytes, name: bytes) -> int:
    at = text.find(b"\n" + name + b":")
    return int(text[at + len(name) + 2 :].split(None, 1)[0]) if at >= 0 else 0


def memory_bytes(pids: list[int]) -> int:
    """Return an upper bound of what the processes hold: anonymous and shared memory; pages that they share count twice."""
    total = 0
    for pid in pids:
        text = read_bytes(f"/proc/{pid}/status", 8192)
        total += _kibibytes(text, b"RssAnon") + _kibibytes(text, b"RssShmem")
    return total << 10


def exact_memory_bytes(pids: list[int]) -> int:
    """Return the same with shared pages divided among their holders; costs milliseconds for a large process."""
    total = 0
    for pid in pids:
        text = read_bytes(f"/proc/{pid}/smaps_rollup", 8192)
        if b"Pss_Anon" not in text:
            total += memory_bytes([pid]) >> 10
            continue
        total += _kibibytes(text, b"Pss_Anon") + _kibibytes(text, b"Pss_Shmem")
    return total << 10


def out_of_memory_kills(path: str) -> int:
    """Return the counter `oom_kill` of memory.events, memory.oom_control or /proc/vmstat; 0 where there is none."""
    for line in read_bytes(path).splitlines():
        name, _, value = line.partition(b" ")
        if name == b"oom_kill":
            return int(value)
    return 0


def set_affinity(pids: list[int], cpus: list[int]) -> None:
    """Bind every thread of the processes to `cpus`; those that vanish meanwhile are passed over."""
    for pid in pids:
        for thread in _entries(f"/proc/{pid}/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except OSError:
                continue


def bearing(directory: str, *, only: bool = False) -> list[int]:
    """Return the living processes of members below a directory, `only`: of the member with this one, wherever they moved to."""
    own, found = os.getpid(), []
    marker = f"{MARK}={directory}".encode() + (b"\0" if only else b"")
    for entry in _entries("/proc"):
        if entry.isdecimal() and int(entry) != own:
            environment = read_bytes(f"/proc/{entry}/environ", 1 << 18)
            if marker in environment and stat(int(entry)):
                found.append(int(entry))
    return found
