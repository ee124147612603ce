"""Cores that bind: a control group for each member, with the quota of its cores, and a trial whether a quota holds.

Fed by processes.py with members to start, adjust and end, by platform.py with the trial. Affinity alone binds nothing below one
core, nor where several members share one. Version 2: `cpu.max`, which needs `+cpu` handed down by the group above (systemd:
`Delegate=yes`). Version 1: `cpu.cfs_quota_us`. Where neither can be written, nothing here does anything.
Source: kernel documentation, admin-guide/cgroup-v2 and scheduler/sched-bwc; systemd, CGROUP_DELEGATION.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from rover_bus.events import cgroup
from rover_bus.events.cgroup import Cgroup
from rover_bus.node.local import proctree

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PERIOD_US = 100_000  # the kernel's default, and what Kubernetes takes
LEAST_US = 1_000  # the kernel refuses less
TRIAL_CORES, TRIAL_S, TRIALS = 0.2, 0.3, 5
BINDS_BELOW = 0.5  # of a core: what the trial may use at most to be held back; alone it uses a whole one
SPIN = f"import time\nend = time.monotonic() + {TRIAL_S}\nwhile time.monotonic() < end: pass"


class CoreGroups:
    """The groups of one state directory's members. `top` None: cores cannot be bound here."""

    def __init__(self, top: Path | None, version: int) -> None:
        self._top, self._version = top, version

    @classmethod
    def below(cls, group: Cgroup, state_directory: Path) -> CoreGroups:
        """Make the group that holds those of members, below our own, or beside it where the one above is ours as well."""
        name = f"rover-{hashlib.sha256(str(state_directory).encode()).hexdigest()[:12]}"
        for parent in [*group.cpu[:1], *filter(_is_delegated, group.cpu[1:2])]:
            groups = cls(parent / name, group.version)
            if groups._make_top():
                groups.remove_empty()
                return groups
        return cls(None, group.version)

    def _make_top(self) -> bool:
        assert self._top is not None
        try:
            self._top.mkdir(exist_ok=True)
            if self._version == 2:
                for above in (self._top.parent, self._top):
                    (above / "cgroup.subtree_control").write_text("+cpu")
            self._write(self._top, 0.0)
        except OSError:  # read-only, not delegated, or processes lie beside the groups of version 2
            with suppress(OSError):
                self._top.rmdir()
            return False
        return True

    def entrance(self, name: str, cores: float) -> str:
        """Make a member's group; return the file into which it writes itself, "" where there is none. `cores` 0: no limit."""
        if self._top is None:
            return ""
        own = self._top / name
        for _ in range(2):  # the last member that ended may just have taken the whole away
            try:
                if self._make_top():
                    own.mkdir(exist_ok=True)
                    self._write(own, cores)
                    return str(own / "cgroup.procs")
            except OSError:
                continue
        return ""

    def limit(self, name: str, cores: float) -> None:
        """Change the limit of a member that runs; one without a group stays as it is."""
        if self._top is not None and (self._top / name).is_dir():
            with suppress(OSError):
                self._write(self._top / name, cores)

    def used_s(self, name: str) -> float | None:
        """Return the processor seconds that all processes of a member's group have used; None where that is not counted."""
        if self._top is None:
            return None
        own = self._top / name
        if self._version == 2:
            used_us = cgroup.table(_read(own / "cpu.stat")).get("usage_usec")
            return None if used_us is None else used_us / 1e6
        used_ns = _read(own / "cpuacct.usage").strip()
        return int(used_ns) / 1e9 if used_ns.isdecimal() else _used_by_processes(own)

    def remove(self, name: str) -> None:
        """Remove the group of a member that is dead, and the whole after the last one. Its shim has done so, if it could."""
        if self._top is not None:
            for directory in (self._top / name, self._top):
                with suppress(OSError):
                    directory.rmdir()

    def remove_empty(self, within_s: float = 0.0) -> None:
        """Remove the groups in which nothing runs. Killed processes count until they are reaped: they are waited for `within_s`."""
        if self._top is None:
            return
        end_s = time.monotonic() + within_s
        while self._top.is_dir():
            with suppress(OSError):
                left = [each for each in self._top.iterdir() if each.is_dir()]
                for directory in (*left, self._top):
                    with suppress(OSError):
                        directory.rmdir()
            if time.monotonic() >= end_s:
                return
            time.sleep(0.01)

    def try_whether_they_bind(self) -> bool:
        """Run a process that spins at a fifth of a core for 0.3 s; say whether it was held to that. Blocks as long.

        One that got less, because others had the cores, says nothing: it is run again, a few times.
        """
        for _ in range(TRIALS):
            answer = self._try_once()
            if answer is not None:
                return answer
        return False

    def _try_once(self) -> bool | None:
        entrance = self.entrance("trial", TRIAL_CORES)
        if not entrance:
            return False
        began_s = time.monotonic()
        try:
            code, cpu_s = _spin(entrance)
            throttled = cgroup.table(_read(Path(entrance).parent / "cpu.stat")).get("nr_throttled", 0)
        except OSError:
            return False
        finally:
            self.remove("trial")
        used = cpu_s / (time.monotonic() - began_s)
        if code == 0 and not throttled and used < TRIAL_CORES:
            return None
        return code == 0 and throttled > 0 and used < BINDS_BELOW

    def _write(self, own: Path, cores: float) -> None:
        quota_us = max(int(cores * PERIOD_US), LEAST_US) if cores else -1
        if self._version == 2:
            (own / "cpu.max").write_text(f"{quota_us if cores else 'max'} {PERIOD_US}")
        else:
            (own / "cpu.cfs_quota_us").write_text(str(quota_us))


def _is_delegated(directory: Path) -> bool:
    """Whether a group was handed to us with all below it: by systemd's mark, or because it belongs to our user."""
    for mark in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(directory, mark) == b"1":
                return True
    return os.getuid() != 0 and directory.stat().st_uid == os.getuid()


def _spin(entrance: str) -> tuple[int, float]:
    """Return how the trial's process ended, and the seconds of processor time that it used."""
    command = f"open({entrance!r}, 'w').write('0')\n{SPIN}"
    trial = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(trial.pid, 0)
    trial.returncode = os.waitstatus_to_exitcode(status)
    return trial.returncode, usage.ru_utime + usage.ru_stime


def _read(path: Path) -> str:
    return proctree.read_bytes(str(path)).decode(errors="replace")


def _used_by_processes(group: Path) -> float | None:
    """Return the processor seconds of the processes of a group that counts none, as where `cpu` and `cpuacct` are mounted apart.

    They are counted in ticks, of which the tenth of a second that peaks are taken of has ten.
    """
    found = [proctree.stat(int(each)) for each in _read(group / "cgroup.procs").split()]
    ticks = [each[3] for each in found if each is not None]
    return sum(ticks) / TICKS_A_SECOND if ticks else None
