"""The state directory of a daemon: orders, records of starts and ends, logs. What survives when the daemon is killed.

    daemon.lock                             held by the one daemon of this directory; shims watch it
    members/<job>.<uid>/<member>.<incarnation>/      one incarnation of one member
        order       what was wanted, written before the spawn (JSON)
        limits      bytes of memory (0: none) and cores, read by the shim
        alive       a lock that the shim holds as long as it lives
        started     pids and start times, written by the shim before the member's exec
        exit        how it ended, written by the shim after the last process of the group is gone
        reported    the fact about the exit is stored on the bus
        loaded      what a worker had loaded when it joined, written by it (client/loaded.py)
        own/        where each job has a user of its own: what that user may write, `loaded` too
    logs/<job>.<uid>/<member>.<incarnation>.log      standard output and error
    spares/<name>/                          a spare, `ready` once it is; a link to its member's directory once it is one
    parts/<job>/                            parts of its model, written by its servers at the end

Fed by processes.py and the shim; read by the daemon after a restart, by `rover members` and by `rover logs`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from rover_bus.events.identity import DesiredMember, Exit, Member
from rover_bus.events.profiles import SpareSample
from rover_bus.events.subjects import file_name, job_of_file, name
from rover_bus.node.local import locks, proctree

MAX_RECORD_BYTES = 4 << 20
LOGS_A_MEMBER = 20
OWN = "own"

T = TypeVar("T")


class SpareRecord(msgspec.Struct, frozen=True):
    """The spare that a member was: `name` of its directory and control group, and its age when it became one."""

    name: str
    age_s: float


class OrderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon asked a shim to run. `boot` is the boot id of the machine, so that pids of a former boot mean nothing.

    `spare`: the one that became this member; None: it was started as one.
    """

    job: str
    uid: str
    desired: DesiredMember
    cpus: dict[int, float] = {}
    boot: str = ""
    spare: SpareRecord | None = None


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The pids of the shim and of its member, the member's with its start in ticks since boot."""

    shim: int
    pid: int
    pid_started: int


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How an incarnation ended, how long it ran, and what its group used."""

    reason: str
    status: int | None = None
    signal: int | None = None
    detail: str = ""
    ran_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0

    def exit(self) -> Exit:
        return msgspec.convert(
            {"reason": self.reason, "status": self.status, "signal": self.signal, "detail": self.detail}, Exit
        )


State = Literal["starting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One line of `rover members`: an incarnation of a member on this host. pid 0: not (yet or any more) running."""

    job: str
    uid: str
    member: Member
    host: str
    pid: int
    state: State
    exit: Exit | None
    log: Path


@dataclass(frozen=True, slots=True)
class IncarnationDirectory:
    """The directory of one incarnation."""

    path: Path

    def read(self, record: str, cls: type[T]) -> T | None:
        """Return a record, None when it is absent or not one (a disk that was full, a foreign file)."""
        body = proctree.read_bytes(str(self.path / record), MAX_RECORD_BYTES)
        try:
            return msgspec.json.decode(body, type=cls) if body else None
        except (msgspec.DecodeError, RecursionError):
            return None

    def write(self, record: str, value: msgspec.Struct | str) -> None:
        """Write a record and rename it into place: all of it or nothing."""
        body = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        fresh = self.path / f"{record}.next"
        fresh.write_bytes(body)
        fresh.rename(self.path / record)

    @property
    def written_by_member(self) -> Path:
        """Where its member may write."""
        own = self.path / OWN
        return own if own.is_dir() else self.path

    def is_alive(self) -> bool:
        """Say whether its shim lives. The lock answers, so a pid that was given out again cannot deceive."""
        return locks.is_held_at(str(self.path / "alive"))

    def ended(self) -> ExitRecord | None:
        return self.read("exit", ExitRecord)

    def is_reported(self) -> bool:
        return (self.path / "reported").exists()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def parts_directory(root: str | Path, job: str) -> Path:
    """Return where the servers of a job on this host write their parts of the model."""
    return Path(root) / "parts" / file_name(job)


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """Paths below a state directory. Names come from the bus, so each is checked before it becomes a path."""

    root: Path

    @property
    def daemon_lock(self) -> Path:
        return self.root / "daemon.lock"

    def incarnation(self, job: str, uid: str, member: Member) -> IncarnationDirectory:
        return IncarnationDirectory(self.root / "members" / _run(job, uid) / str(member))

    def spare(self, name: str) -> Path:
        return self.root / "spares" / name

    def log(self, job: str, uid: str, member: Member) -> Path:
        return self.root / "logs" / _run(job, uid) / f"{member}.log"

    def incarnations(self) -> Iterator[tuple[IncarnationDirectory, OrderRecord]]:
        """Iterate all incarnations with a readable order, oldest incarnation first."""
        found = []
        for path in (self.root / "members").glob("*/*"):
            order = IncarnationDirectory(path).read("order", OrderRecord)
            if order:
                found.append((order.desired.member, IncarnationDirectory(path), order))
        for _, directory, order in sorted(found, key=lambda each: (each[2].job, each[0])):
            yield directory, order

    def forget(self, job: str) -> None:
        """Remove the records of an ended job, those of former runs too; its logs stay."""
        for run in self.runs("members", job):
            shutil.rmtree(run, ignore_errors=True)

    def erase(self, job: str, uid: str) -> None:
        """Remove what is kept of a run of a job: records, logs, and the parts of its model."""
        for below in ("members", "logs"):
            shutil.rmtree(self.root / below / _run(job, uid), ignore_errors=True)
        shutil.rmtree(parts_directory(self.root, job), ignore_errors=True)

    def mark_reported(self, job: str, uid: str, member: Member) -> None:
        """Note that the fact about an exit is stored, and remove the reported ones before it: the last one tells enough."""
        own = self.incarnation(job, uid, member).path
        if own.is_dir():
            (own / "reported").touch()
        for run in self.runs("members", job):
            for path in run.glob(f"{member.name}.*"):
                directory = IncarnationDirectory(path)
                if path != own and directory.is_reported() and not directory.is_alive():
                    directory.remove()

    def runs(self, below: str, job: str) -> list[Path]:
        named = file_name(job)
        return [run for run in (self.root / below).glob(f"{named}*") if run.name.split(".")[0] == named]

    def prune_logs(self, job: str, uid: str, name: str) -> None:
        """Keep the newest logs of a member that is started again and again."""
        logs = sorted((self.root / "logs" / _run(job, uid)).glob(f"{name}.*.log"), key=_incarnation)
        for log in logs[:-LOGS_A_MEMBER]:
            log.unlink(missing_ok=True)


def _run(job: str, uid: str) -> str:
    return f"{file_name(job)}.{name(uid, 'uid')}" if uid else file_name(job)


def _incarnation(log: Path) -> int:
    number = log.name.split(".")[-2]
    return int(number) if number.isdecimal() else -1


def create(state_dir: str | os.PathLike[str]) -> StateDirectory:
    """Return the layout of a state directory, made if need be; only its owner can read it."""
    root = Path(state_dir).absolute()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return StateDirectory(root)


def boot_id() -> str:
    return proctree.read_bytes("/proc/sys/kernel/random/boot_id").decode().strip()


def read_logs(state_dir: str | os.PathLike[str], job: str, member: str = "") -> list[Path]:
    """Return the log files of a job's newest run, or of one of its members, in order of member and incarnation."""
    runs = StateDirectory(Path(state_dir)).runs("logs", job)
    if not runs:
        return []
    newest = max(runs, key=lambda run: run.stat().st_mtime_ns)
    return sorted(
        newest.glob(f"{member or '*'}.*.log"), key=lambda log: (log.name.split(".")[0], _incarnation(log))
    )


def list_spares(state_dir: str | os.PathLike[str], job: str = "") -> list[SpareSample]:
    """Return the spares that wait, or load, below a state directory; needs neither daemon nor bus."""
    found = []
    for path in sorted((Path(state_dir) / "spares").glob(f"{file_name(job) if job else '*'}.*.spare-*")):
        directory, number = IncarnationDirectory(path), path.name.rpartition("-")[2]
        if path.is_symlink() or not number.isdecimal() or not directory.is_alive():
            continue
        started = directory.read("started", StartRecord)
        with suppress(OSError):  # it is gone meanwhile
            found.append(
                SpareSample(
                    job=job_of_file(path.name.split(".")[0]),
                    number=int(number),
                    pid=started.pid if started is not None else 0,
                    state="ready" if (path / "ready").exists() else "loading",
                    age_s=round(max(time.time() - (path / "loaded").stat().st_mtime, 0.0), 1),
                    memory_bytes=proctree.memory_bytes([started.pid]) if started is not None else 0,
                )
            )
    return found


def list_members(state_dir: str | os.PathLike[str], job: str = "") -> list[MemberStatus]:
    """Return what runs and what ended below a state directory, with pids; needs neither daemon nor bus."""
    home = StateDirectory(Path(state_dir))
    found = []
    for directory, order in home.incarnations():
        if job and order.job != job:
            continue
        started, ended = directory.read("started", StartRecord), directory.ended()
        alive = (
            ended is None and started is not None and proctree.start_ticks(started.pid) == started.pid_started
        )
        state: State = (
            "running" if alive else "starting" if directory.is_alive() and ended is None else "ended"
        )
        found.append(
            MemberStatus(
                job=order.job,
                uid=order.uid,
                member=order.desired.member,
                host=order.desired.host,
                pid=started.pid if alive and started else 0,
                state=state,
                exit=ended.exit() if ended else None,
                log=home.log(order.job, order.uid, order.desired.member),
            )
        )
    return found
