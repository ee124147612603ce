"""How a shim is spawned: with the lock that proves its life, the pipe on which it reports, and nothing else of ours.

Used by processes.py for members and by warm.py for spares. Apart because both must hold the lock at every moment, from before the
spawn on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rover_bus.events.identity import DesiredMember
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.subjects import split_job
from rover_bus.node.affinity import threads
from rover_bus.node.local import layout, locks, proctree
from rover_bus.node.local.trials import PYTHON, read_invocation
from rover_bus.node.port import NO_MASTERS, Incarnation, RoleCommands
from rover_bus.node.users import MemberUsers, give, give_file, open_to

ROOT = str(Path(__file__).resolve().parents[3])
BOOT = f"import sys; sys.path.append({ROOT!r}); from rover_bus.node.local.shim import main; main()"
SHIM_SIGNALS = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What all members of a daemon share. `environment` is the base of theirs."""

    environment: Mapping[str, str]
    allowed: tuple[int, ...]
    orphan_s: float = 30.0  # P23: without a daemon for this long a group is drained; 0: never
    oom_path: str = "/proc/vmstat"
    python: str = sys.executable  # of shims, and what `python` means as the first word of a program
    commands: RoleCommands = NO_MASTERS
    users: MemberUsers | None = None  # None: members run as the daemon does

    def user_of(self, incarnation: Incarnation) -> int:
        """Return whom a member becomes; 0: no other user. Raises NoFreeUser."""
        return self.users.of(incarnation.uid or incarnation.job) if self.users is not None else 0


@dataclass(frozen=True, slots=True)
class ShimOrder:
    """What a shim is to run. `entrance`: of its control group; `stdin`: a descriptor, None for nothing to read."""

    directory: Path
    log: Path
    desired: DesiredMember
    command: list[str]
    entrance: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    stdin: int | None = None
    user: int = 0  # whom the member becomes; 0: no other


def spawn_shim(order: ShimOrder, settings: MemberSettings, daemon_lock: Path) -> tuple[int, int]:
    """Start a shim; its directory is there. Returns its pid and the pipe on which it reports. Raises OSError."""
    lock = locks.hold(str(order.directory / "alive"))
    report, reported = os.pipe()
    try:
        if lock is None:
            raise OSError(0, "its former incarnation is not proven dead", str(order.directory))
        for fd in (lock, reported):
            os.set_inheritable(fd, True)
        return _posix_spawn(order, settings, daemon_lock, lock, reported), report
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(reported)
        if lock is not None:
            os.close(lock)


def _posix_spawn(
    order: ShimOrder, settings: MemberSettings, daemon_lock: Path, lock: int, reported: int
) -> int:
    command = [settings.python, "-I", "-S", "-c", BOOT]
    command += [f"dir={order.directory}", f"alive={lock}", f"report={reported}", f"lock={daemon_lock}"]
    command += [f"group={order.entrance}", f"cwd={order.desired.directory}"]
    command += [f"grace={order.desired.grace_s}", f"orphan={settings.orphan_s}", f"oom={settings.oom_path}"]
    if order.user:
        command += [
            f"user={order.user}",
            "reads=" + "\n".join(read_by(order.command, order.desired.directory)),
        ]
        give_file(order.log, order.user)
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(
        command[0],
        [*command, "--", *order.command],
        order.environment,
        file_actions=[
            nothing if order.stdin is None else (os.POSIX_SPAWN_DUP2, order.stdin, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(order.log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=SHIM_SIGNALS,  # a word that comes before the shim can listen waits
        setsigdef=[*SHIM_SIGNALS, signal.SIGPIPE],
    )


def read_by(command: list[str], directory: str) -> list[str]:
    """Return the files without which a member cannot begin: its script, and our package for its interpreter."""
    executable, *words = command
    if not PYTHON.fullmatch(os.path.basename(executable)):
        return []
    run = read_invocation(words)
    ours = [f"{ROOT}/rover_bus/__init__.py"] if executable == sys.executable else []
    return ours + ([os.path.join(directory, run.first)] if run.kind == "script" else [])


def make_own_place(directory: Path, user: int) -> None:
    """Make the directory of a member passable for its user, with a place of its own; the rest stays root's.

    What root writes there must lead nowhere else.
    """
    open_to(directory, user)
    give(directory / layout.OWN, user)


def home_of(directory: Path) -> dict[str, str]:
    """Return what the environment of a member says that has a place of its own."""
    own = directory / layout.OWN
    return {"HOME": str(own)} if own.is_dir() else {}


def own_python(settings: MemberSettings, command: list[str]) -> list[str]:
    """Return what runs here: which interpreter has our code is this host's to know, not the log's of another host."""
    first, *rest = command
    return [settings.python if first == OWN_PYTHON else first, *rest]


def environment_of(
    settings: MemberSettings, incarnation: Incarnation, directory: Path, credential: str = ""
) -> dict[str, str]:
    """Return a member's environment: ours, the threads for its cores, what desired state says, its identity, its secret."""
    member, desired = incarnation.member, incarnation.desired
    own = {"ROVER_CREDENTIAL": credential} if credential else {}
    tenant, job = split_job(incarnation.job)
    return {
        **settings.environment,
        **home_of(directory),
        **threads(desired.resources.cores, member.role),
        **desired.environment,
        "ROVER_JOB": job,
        "ROVER_TENANT": tenant,
        "ROVER_ROLE": member.role,
        "ROVER_INDEX": str(member.index),
        "ROVER_INCARNATION": str(member.incarnation),
        proctree.MARK: str(directory),
        "ROVER_GRACE_S": f"{desired.grace_s / 2:g}",  # the other half is for its last words and its end
        **own,
    }


def limits_of(settings: MemberSettings, incarnation: Incarnation) -> str:
    """Return what stands in the file `limits`: bytes of memory, then CPUs."""
    chosen = sorted(incarnation.cpus) or settings.allowed
    return " ".join(str(number) for number in (incarnation.desired.resources.memory_bytes, *chosen))


def write_order(
    directory: layout.IncarnationDirectory,
    incarnation: Incarnation,
    limits: str,
    spare: layout.SpareRecord | None = None,
) -> None:
    """Write limits and order of an incarnation, and which spare it was. Raises OSError."""
    directory.write("limits", limits)
    order = layout.OrderRecord(
        job=incarnation.job,
        uid=incarnation.uid,
        desired=incarnation.desired,
        cpus=dict(incarnation.cpus),
        boot=layout.boot_id(),
        spare=spare,
    )
    directory.write("order", order)
