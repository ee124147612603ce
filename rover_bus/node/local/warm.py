"""Spares of this machine: processes that wait behind launcher.py, each under a shim of its own (docs/design/0042).

Fed by processes.py; answers with observations, called on the event loop. A spare lies in `spares/<name>`. When it becomes a member,
its directory moves to the member's place, and a link remains, because its shim goes on writing there. The socket on its standard
input is the daemon's only hold: when the daemon is gone, the launcher ends, so there is nothing to adopt.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from rover_bus.events.errors import RoverError
from rover_bus.events.identity import Member
from rover_bus.events.last_words import describe_ending, last_line, read_tail
from rover_bus.events.logs import get_logger
from rover_bus.events.subjects import file_name
from rover_bus.node.local import layout, proctree
from rover_bus.node.local.cores import CoreGroups
from rover_bus.node.local.launching import LATER, LOADED, launch_command
from rover_bus.node.local.layout import IncarnationDirectory, SpareRecord, StartRecord, StateDirectory
from rover_bus.node.local.spawning import (
    MemberSettings,
    ShimOrder,
    environment_of,
    limits_of,
    make_own_place,
    own_python,
    spawn_shim,
    write_order,
)
from rover_bus.node.port import (
    Incarnation,
    Observe,
    Spare,
    SpareGone,
    SpareKey,
    SpareReady,
    SpareSpawned,
    StartOrder,
    WorkerLoaded,
)
from rover_bus.node.users import acting, open_to

READY = "ready"
CLEAR_AGAIN_S = 1.0
How = Literal["used", "dropped", "ended"]
log = get_logger("rover.node")


class LoadedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is read here of a worker's list; the launcher reads the rest."""

    start_s: float


@dataclass(slots=True)
class Taken:
    """What a spare leaves to the member that it becomes."""

    directory: IncarnationDirectory
    was: SpareRecord
    shim: int
    pid: int
    pidfd: int
    said: socket.socket
    environment: Mapping[str, str]

    def admit(self, environment: Mapping[str, str]) -> None:
        """Tell the process which member it is. One that is dead by now ends like a member that was killed."""
        news = {key: value for key, value in environment.items() if self.environment.get(key) != value}
        with suppress(OSError):
            self.said.send(json.dumps(news).encode() + b"\n")
        self.said.close()


@dataclass(slots=True)
class _Warm:
    spare: Spare
    name: str
    directory: IncarnationDirectory
    said: socket.socket
    born_s: float
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    shim: int = 0
    pidfd: int = -1
    ready: bool = False
    how: How = "ended"


def _ending_of(directory: IncarnationDirectory) -> str:
    """How a spare ended, and the last line that it wrote."""
    ended, said = directory.ended(), read_tail(directory.path / "log")
    how = describe_ending(ended.status, ended.signal, said) if ended is not None else last_line(said)
    return f"{how} ({ended.detail})" if ended is not None and ended.detail else how


class WarmSpares:
    """All spares of a daemon, and what workers said that they had loaded."""

    def __init__(
        self, place: StateDirectory, settings: MemberSettings, groups: CoreGroups, observe: Observe
    ) -> None:
        self._layout, self._settings, self._groups, self._observe = place, settings, groups, observe
        self._loop = asyncio.get_running_loop()
        self._me = uuid.uuid4().hex[:8]  # a spare of a former daemon may live for a moment
        self._loaded: dict[tuple[str, str], bytes] = {}
        self._warm: dict[SpareKey, _Warm] = {}
        self._clearing: asyncio.TimerHandle | None = None

    # -- what workers had loaded ---------------------------------------------------------------------------------------

    def could_be(self, incarnation: Incarnation) -> bool:
        """Whether this is a worker whose program can have spares."""
        if incarnation.member.role != "worker" or not incarnation.desired.command:
            return False
        return bool(launch_command(own_python(self._settings, incarnation.desired.command), Path()))

    def read(self, incarnation: Incarnation) -> bool:
        """Whether a worker has said what it had loaded; observed once it has."""
        directory = self._layout.incarnation(incarnation.job, incarnation.uid, incarnation.member)
        run = incarnation.uid or incarnation.job
        with acting(self._settings.users, run):  # a link leads where its member may go
            body = proctree.read_bytes(str(directory.written_by_member / LOADED), layout.MAX_RECORD_BYTES)
        try:
            record = msgspec.json.decode(body, type=LoadedRecord)
        except (msgspec.DecodeError, RecursionError):
            return False
        self._loaded[incarnation.job, incarnation.uid] = body
        self._observe(WorkerLoaded(incarnation.key, incarnation.uid, record.start_s, self._loop.time()))
        return True

    def forget(self, job: str) -> None:
        """Drop what workers of a job said, which has ended."""
        self._loaded = {run: body for run, body in self._loaded.items() if run[0] != job}

    # -- making --------------------------------------------------------------------------------------------------------

    def prepare(self, spare: Spare, command: list[str]) -> None:
        """Spawn a spare, by the program's own command line."""
        if spare.key in self._warm:
            return
        name = f"{file_name(spare.job)}.{spare.uid}.spare-{self._me}-{spare.number}"
        directory = IncarnationDirectory(self._layout.spare(name))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        warm = self._warm[spare.key] = _Warm(spare, name, directory, ours, self._loop.time())
        self._observe(SpareSpawned(spare, self._loop.time()))
        try:
            self._spawn(warm, launch_command(command, directory.path), theirs)
        except (OSError, RoverError) as error:
            self._end(warm, f"it cannot be started: {getattr(error, 'strerror', '') or error}")
            return
        finally:
            theirs.close()
        self._loop.add_reader(warm.pidfd, self._on_shim_gone, warm)
        self._loop.add_reader(warm.said, self._on_word, warm)

    def _spawn(self, warm: _Warm, command: list[str], stdin: socket.socket) -> None:
        spare, path = warm.spare, warm.directory.path
        loaded = self._loaded.get((spare.job, spare.uid))
        if not command or loaded is None:
            raise OSError(0, "no worker has said what it had loaded, or its program can have no spares")
        path.mkdir(parents=True)
        (path / LOADED).write_bytes(loaded)
        likeness = Incarnation(spare.job, spare.uid, spare.desired.replace(member=Member("worker", 0, 0)))
        user = self._settings.user_of(likeness)
        if user:
            make_own_place(path, user)
            os.chown(path / LOADED, -1, user)
            (path / LOADED).chmod(0o640)
        environment = environment_of(self._settings, likeness, path)
        warm.environment = {key: value for key, value in environment.items() if key not in LATER}
        warm.directory.write("limits", limits_of(self._settings, likeness))
        order = ShimOrder(
            directory=path,
            log=path / "log",
            desired=spare.desired,
            command=command,
            entrance=self._groups.entrance(warm.name, spare.desired.resources.cores),
            environment=warm.environment,
            stdin=stdin.fileno(),
            user=user,
        )
        warm.shim, report = spawn_shim(order, self._settings, self._layout.daemon_lock)
        os.close(report)
        warm.pidfd = os.pidfd_open(warm.shim)

    def _on_word(self, warm: _Warm) -> None:
        self._loop.remove_reader(warm.said)
        with suppress(OSError):
            if warm.said.recv(1) == b"r" and warm.how == "ended":
                warm.ready = True
                (warm.directory.path / READY).touch()
                self._observe(SpareReady(warm.spare.key))

    # -- taking and ending ---------------------------------------------------------------------------------------------

    def take(self, order: StartOrder) -> Taken | None:
        """Return the spare that an order names, as the member's from here on; None where it is not ready, or gone."""
        run = order.incarnation
        warm = self._warm.get((run.job, order.spare))
        if warm is None or not warm.ready or warm.how != "ended":
            return None
        member = self._layout.incarnation(run.job, run.uid, run.member)
        started = warm.directory.read("started", StartRecord)
        if started is None or member.is_alive():
            return None
        member.remove()
        age_s = self._loop.time() - warm.born_s
        try:
            write_order(warm.directory, run, limits_of(self._settings, run), SpareRecord(warm.name, age_s))
            self._move(warm.directory.path, member.path)
            if user := self._settings.user_of(run):
                open_to(member.path.parent, user)
        except OSError as error:
            log.warning("a spare is not used", job=run.job, why=str(error))
            return None
        self._forget(warm, "used", keep=True)
        return Taken(
            directory=member,
            was=SpareRecord(warm.name, age_s),
            shim=warm.shim,
            pid=started.pid,
            pidfd=warm.pidfd,
            said=warm.said,
            environment=warm.environment,
        )

    def _move(self, spare: Path, member: Path) -> None:
        """Move a spare's directory to its member's place; a link stays. What can fail comes before the move."""
        link = spare.with_name(f"{spare.name}.link")
        member.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(member)
        spare.rename(member)
        link.rename(spare)

    def drop(self, key: SpareKey) -> None:
        """End a spare; it is observed once it is dead."""
        warm = self._warm.get(key)
        if warm is not None and warm.how == "ended":
            warm.how = "dropped"
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(warm.pidfd, signal.SIGUSR1)

    def _on_shim_gone(self, warm: _Warm) -> None:
        with suppress(ChildProcessError):
            os.waitpid(warm.shim, os.WNOHANG)
        self._end(warm, _ending_of(warm.directory))

    def _end(self, warm: _Warm, why: str) -> None:
        """Observe that a spare is dead, and why. What its shim may have left, killed itself, is ended first."""
        for pid in proctree.bearing(str(warm.directory.path), only=True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._groups.remove(warm.name)
        if warm.how == "ended":
            log.warning("a spare ended by itself", job=warm.spare.job, why=why)
        self._forget(warm, warm.how, why=why)
        warm.directory.remove()

    def _forget(self, warm: _Warm, how: How, keep: bool = False, why: str = "") -> None:
        """Watch a spare no more. `keep`: its descriptors are another's from here on."""
        self._loop.remove_reader(warm.said)
        if warm.pidfd >= 0:
            self._loop.remove_reader(warm.pidfd)
        if not keep:
            warm.said.close()
            if warm.pidfd >= 0:
                os.close(warm.pidfd)
        self._warm.pop(warm.spare.key, None)
        self._observe(SpareGone(warm.spare.key, how, self._loop.time(), why))

    def clear_former(self) -> None:
        """Remove what spares of former daemons left; what lives of them is asked to end, and looked at again."""
        living = False
        for path in self._layout.spare("").glob("*"):
            if path.is_symlink():
                if not path.exists():
                    path.unlink(missing_ok=True)
            elif f".spare-{self._me}-" in path.name:
                continue
            elif IncarnationDirectory(path).is_alive():
                living = True
                self._ask_to_end(IncarnationDirectory(path))
            else:
                shutil.rmtree(path, ignore_errors=True)
        self._clearing = self._loop.call_later(CLEAR_AGAIN_S, self.clear_former) if living else None

    def _ask_to_end(self, directory: IncarnationDirectory) -> None:
        started = directory.read("started", StartRecord)
        if started is not None:
            with suppress(ProcessLookupError):
                os.kill(started.shim, signal.SIGUSR1)

    def release(self) -> None:
        """Let go: the launchers see their sockets close, and end."""
        if self._clearing:
            self._clearing.cancel()
        for warm in self._warm.values():
            self._loop.remove_reader(warm.said)
            self._loop.remove_reader(warm.pidfd)
            if not warm.ready:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(warm.pidfd, signal.SIGUSR1)
            warm.said.close()
            os.close(warm.pidfd)
        self._warm.clear()
