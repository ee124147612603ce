"""Members as processes under shims: started, adopted after a daemon's restart, signalled, and reported with how they ended.

Fed by platform.py with incarnations to start, stop and adjust; answers with observations, called on the event loop. Death is learnt
from a pidfd of the shim, within milliseconds and without polling, for our children and for shims of a former daemon alike.
Nothing is reported as ended before the whole group is proven dead: by the shim's own record, or by a search of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rover_bus.events.identity import IN_ORDER, Exit, Member, Resources
from rover_bus.events.last_words import read_tail
from rover_bus.events.logs import get_logger
from rover_bus.events.programs import OWN_PYTHON, ProgramRequest
from rover_bus.node.affinity import threads
from rover_bus.node.exits import HURRY_S, STUCK_S
from rover_bus.node.local import layout, locks, proctree
from rover_bus.node.local.cores import CoreGroups
from rover_bus.node.local.layout import OrderRecord, StartRecord, StateDirectory
from rover_bus.node.port import (
    NO_MASTERS,
    Adjusted,
    Exited,
    Incarnation,
    Key,
    Leaving,
    Observe,
    RoleCommands,
    Running,
    Spawned,
    StartOrder,
)

ROOT = str(Path(__file__).resolve().parents[3])
BOOT = f"import sys; sys.path.append({ROOT!r}); from rover_bus.node.local.shim import main; main()"
SHIM_SIGNALS = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
SWEEP_AGAIN_S = 0.02
ADOPT_AGAIN_S = 0.05
log = get_logger("rover.node")


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What all members of a daemon share. `environment` is the base of theirs."""

    environment: Mapping[str, str]
    allowed: tuple[int, ...]
    orphan_s: float = 30.0  # P23: without a daemon for this long a group is drained; 0: never
    oom_path: str = "/proc/vmstat"
    python: str = sys.executable  # of shims, and what `python` means as the first word of a program
    commands: RoleCommands = NO_MASTERS


@dataclass(slots=True)
class _Held:
    """A shim that we watch."""

    incarnation: Incarnation
    directory: layout.IncarnationDirectory
    pid: int = 0  # of the shim
    member_pid: int = 0  # once it runs
    pidfd: int = -1
    report: int = -1
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    asked: bool = False  # to leave

    @property
    def group(self) -> str:
        """Name of its control group."""
        return f"{self.incarnation.job}.{self.incarnation.uid}.{self.incarnation.member}"


class Processes:
    """Members as processes of this host, under shims."""

    def __init__(
        self, place: StateDirectory, settings: MemberSettings, groups: CoreGroups, observe: Observe
    ) -> None:
        self._layout, self._groups = place, groups
        self._settings = settings
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._boot = layout.boot_id()
        self._held: dict[Key, _Held] = {}

    def running(self) -> list[tuple[str, Member, int]]:
        """Return the members that run: job, member, pid."""
        held = [each for each in self._held.values() if each.member_pid]
        return [(each.incarnation.job, each.incarnation.member, each.member_pid) for each in held]

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self, order: StartOrder) -> None:
        incarnation = order.incarnation
        if incarnation.key in self._held:
            return
        held = _Held(incarnation, self._directory(incarnation))
        self._held[incarnation.key] = held
        self._observe(Spawned(incarnation))
        if held.directory.is_alive():
            self._adopt(held)
            return
        try:
            held.pid, held.report = self._spawn(held, order.credential)
            held.pidfd = os.pidfd_open(held.pid)
        except OSError as error:
            self._end(
                held,
                layout.ExitRecord(reason="never_started", detail=f"{error.filename or ''} {error.strerror}"),
            )
            return
        self._loop.add_reader(held.report, self._on_report, held)
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)

    def _spawn(self, held: _Held, credential: str) -> tuple[int, int]:
        """Write the order, then start the shim with the lock that proves its life. Returns its pid and the report pipe."""
        incarnation, directory = held.incarnation, held.directory
        log = self._layout.log(incarnation.job, incarnation.uid, incarnation.desired.member)
        directory.remove()
        directory.path.mkdir(parents=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._layout.prune_logs(incarnation.job, incarnation.uid, incarnation.desired.member.name)
        self._write_order(held)
        lock = locks.hold(str(directory.path / "alive"))
        report, reported = os.pipe()
        try:
            if lock is None:
                raise OSError(0, "its former incarnation is not proven dead", str(directory.path))
            for fd in (lock, reported):
                os.set_inheritable(fd, True)
            return self._posix_spawn(
                held, self.environment(held.incarnation, credential), log, lock, reported
            ), report
        except OSError:
            os.close(report)
            raise
        finally:
            os.close(reported)
            if lock is not None:
                os.close(lock)

    def _write_order(self, held: _Held) -> None:
        incarnation = held.incarnation
        held.directory.write("limits", self._limits(incarnation.desired.resources, incarnation.cpus))
        order = OrderRecord(
            job=incarnation.job,
            uid=incarnation.uid,
            desired=incarnation.desired,
            cpus=dict(incarnation.cpus),
            boot=self._boot,
        )
        held.directory.write("order", order)

    def _posix_spawn(
        self, held: _Held, environment: Mapping[str, str], log: Path, lock: int, reported: int
    ) -> int:
        desired = held.incarnation.desired
        command = [self._settings.python, "-I", "-S", "-c", BOOT]
        command += [f"dir={held.directory.path}", f"alive={lock}", f"report={reported}"]
        command += [
            f"lock={self._layout.daemon_lock}",
            f"group={self._groups.entrance(held.group, desired.resources.cores)}",
            f"cwd={desired.directory}",
            f"grace={desired.grace_s}",
        ]
        command += [
            f"orphan={self._settings.orphan_s}",
            f"oom={self._settings.oom_path}",
            "--",
            *self._command(held.incarnation),
        ]
        return os.posix_spawn(
            command[0],
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=SHIM_SIGNALS,  # a word that comes before the shim can listen waits
            setsigdef=[*SHIM_SIGNALS, signal.SIGPIPE],
        )

    def _command(self, incarnation: Incarnation) -> list[str]:
        """Return what runs a member here. Which interpreter has our code is this host's to know, not the log's of another host."""
        first, *rest = self._settings.commands.of(incarnation.job, incarnation.desired)
        return [self._settings.python if first == OWN_PYTHON else first, *rest]

    def environment_of_program(self, request: ProgramRequest) -> dict[str, str]:
        """Return what a worker with this program finds around it. The marker ends a trial with its host."""
        marker = {proctree.MARK: str(self._layout.root / "trial")}
        return {**self._settings.environment, **request.environment, **marker}

    def environment(self, incarnation: Incarnation, credential: str = "") -> dict[str, str]:
        """Return a member's environment: ours, the threads for its cores, what desired state says, its identity, its secret."""
        member = incarnation.member
        own = {"ROVER_CREDENTIAL": credential} if credential else {}
        return {
            **self._settings.environment,
            **threads(incarnation.desired.resources.cores, member.role),
            **incarnation.desired.environment,
            "ROVER_JOB": incarnation.job,
            "ROVER_ROLE": member.role,
            "ROVER_INDEX": str(member.index),
            "ROVER_INCARNATION": str(member.incarnation),
            proctree.MARK: str(self._directory(incarnation).path),
            "ROVER_GRACE_S": f"{incarnation.desired.grace_s / 2:g}",  # the other half is for its last words and its end
            **own,
        }

    def _directory(self, incarnation: Incarnation) -> layout.IncarnationDirectory:
        return self._layout.incarnation(incarnation.job, incarnation.uid, incarnation.member)

    def _limits(self, resources: Resources, cpus: Mapping[int, float]) -> str:
        chosen = sorted(cpus) or self._settings.allowed
        return " ".join(str(number) for number in (resources.memory_bytes, *chosen))

    def _on_report(self, held: _Held) -> None:
        report = os.read(held.report, 1)
        self._unwatch_report(held)
        started = held.directory.read("started", StartRecord)
        if report == b"s" and started:
            held.member_pid = started.pid
            self._observe(Running(held.incarnation.key, started.pid))

    # -- adopt ---------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        for directory, order in self._layout.incarnations():
            ended = directory.ended()
            incarnation = Incarnation(order.job, order.uid, order.desired, order.cpus)
            held = _Held(incarnation, directory)
            if ended:
                self._end(held, ended)
                continue
            self._held[incarnation.key] = held
            self._observe(Spawned(incarnation))
            self._adopt(held)

    def _adopt(self, held: _Held) -> None:
        """Watch a shim of a former daemon. One that has not written yet is looked at again; one that is gone has ended."""
        started = held.directory.read("started", StartRecord)
        if not held.directory.is_alive():
            self._conclude(held)
            return
        if started is None:
            held.timers.append(self._loop.call_later(ADOPT_AGAIN_S, self._adopt, held))
            return
        try:
            held.pid, held.pidfd = started.shim, os.pidfd_open(started.shim)
        except OSError:
            self._conclude(held)
            return
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)
        held.member_pid = started.pid
        self._observe(Running(held.incarnation.key, started.pid, adopted=True))
        if held.asked:
            self.stop(held.incarnation)

    # -- change and stop -----------------------------------------------------------------------------------------------

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        held = self._held.get(incarnation.key)
        self._observe(Adjusted(incarnation.key, resources, cpus))
        if held:
            held.incarnation = replace(
                held.incarnation, desired=incarnation.desired.replace(resources=resources), cpus=cpus
            )
            try:
                self._write_order(held)
            except OSError as error:
                log.warning("limits are not changed", member=held.directory.path.name, why=str(error))
                return
            self._groups.limit(held.group, resources.cores)
            self._signal(held, signal.SIGHUP)

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        held = self._held.get(incarnation.key)
        self._observe(Leaving(incarnation.key, hurried))
        if held is None:
            return
        held.asked = True
        self._signal(held, signal.SIGUSR1 if hurried else signal.SIGTERM)
        patience_s = (HURRY_S if hurried else incarnation.desired.grace_s) + STUCK_S
        held.timers.append(self._loop.call_later(patience_s, self._signal, held, signal.SIGKILL))

    def _signal(self, held: _Held, number: signal.Signals) -> None:
        if held.pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(held.pidfd, number)
        except ProcessLookupError:
            return  # gone: its pidfd is about to say so

    # -- death ---------------------------------------------------------------------------------------------------------

    def _on_shim_gone(self, held: _Held) -> None:
        self._unwatch(held)
        with contextlib.suppress(ChildProcessError):  # adopted: its new parent reaps it
            os.waitpid(held.pid, os.WNOHANG)
        self._conclude(held)

    def _conclude(self, held: _Held) -> None:
        """Report how an incarnation without a shim ended. Without its record the shim was killed itself: end what it left first."""
        ended = held.directory.ended()
        if ended is None:
            order, started = (
                held.directory.read("order", OrderRecord),
                held.directory.read("started", StartRecord),
            )
            if order and order.boot != self._boot:
                ended = layout.ExitRecord(reason="host_lost", detail="the machine was started anew")
            elif self._sweep(held, started):
                held.timers.append(self._loop.call_later(SWEEP_AGAIN_S, self._conclude, held))
                return
            else:
                ran_s = _age_s(started.pid_started) if started else 0.0
                ended = layout.ExitRecord(
                    reason="killed", signal=9, detail="its shim was killed", ran_s=ran_s
                )
        self._end(held, ended)

    def _sweep(self, held: _Held, started: StartRecord | None) -> bool:
        """Kill what is left of a group whose shim is gone; False when nothing is."""
        left = set(proctree.bearing(str(held.directory.path), only=True))
        if started and proctree.start_ticks(started.pid) in (0, started.pid_started):
            processes = proctree.snapshot()
            left |= {pid for pid, each in processes.items() if started.pid in (pid, each[1], each[2])}
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(left)

    def _end(self, held: _Held, ended: layout.ExitRecord) -> None:
        incarnation = held.incarnation
        self._unwatch(held)
        self._groups.remove(held.group)
        if self._held.get(incarnation.key) is held:
            del self._held[incarnation.key]
        with contextlib.suppress(OSError):  # a full disk: the fact is sent all the same, from memory
            if held.directory.path.is_dir() and held.directory.ended() is None:
                held.directory.write("exit", ended)
        self._observe(
            Exited(
                job=incarnation.job,
                uid=incarnation.uid,
                member=incarnation.desired.member,
                exit=self._exit(held, ended),
                ran_s=ended.ran_s,
                at_s=self._loop.time(),
                reported=held.directory.is_reported(),
                cpu_s=max(ended.cpu_s, 0.0),
                peak_memory_bytes=max(ended.peak_memory_bytes, 0),
            )
        )

    def _exit(self, held: _Held, ended: layout.ExitRecord) -> Exit:
        """How it ended, with its last words where it did not end in order: what it wrote is the one trace of a fault."""
        exit = ended.exit()
        if exit.reason in IN_ORDER:
            return exit
        incarnation = held.incarnation
        return exit.replace(
            stderr=read_tail(self._layout.log(incarnation.job, incarnation.uid, incarnation.desired.member))
        )

    # -- letting go ----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        for held in self._held.values():
            self._unwatch(held)
        self._held.clear()

    def _unwatch(self, held: _Held) -> None:
        for timer in held.timers:
            timer.cancel()
        held.timers.clear()
        self._unwatch_report(held)
        if held.pidfd >= 0:
            self._loop.remove_reader(held.pidfd)
            os.close(held.pidfd)
            held.pidfd = -1

    def _unwatch_report(self, held: _Held) -> None:
        if held.report >= 0:
            self._loop.remove_reader(held.report)
            os.close(held.report)
            held.report = -1


def _age_s(started_ticks: int) -> float:
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / ticks_a_second)
