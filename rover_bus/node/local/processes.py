"""The adapter between the platform's decisions and real processes: starts shims, adopts them, signals them, buries the dead.

Fed by the daemon with lives to start, stop and adjust; answers with observations, called on the event loop. Death is learnt from
a pidfd of the shim, within milliseconds and without polling, for our children and for shims of a former daemon alike.
Nothing is reported as ended before the whole group is proven dead: by the shim's own record, or by a search of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rover_bus.events.identity import IN_ORDER, DesiredMember, Exit, Resources
from rover_bus.events.last_words import read_tail
from rover_bus.events.logs import get_logger
from rover_bus.events.programs import OWN_PYTHON, ProgramRequest
from rover_bus.node.affinity import threads
from rover_bus.node.local import layout, locks, proctree
from rover_bus.node.local.layout import Layout, Order, Started
from rover_bus.node.local.shim import HURRY_S
from rover_bus.node.local.trials import Answer, Trials
from rover_bus.node.port import Adjusted, Ended, Key, Life, Observation, Running, Spawned, Told

ROOT = str(Path(__file__).resolve().parents[3])
BOOT = f"import sys; sys.path.append({ROOT!r}); from rover_bus.node.local.shim import main; main()"
SHIM_SIGNALS = [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
SWEEP_AGAIN_S = 0.02
ADOPT_AGAIN_S = 0.05
STUCK_SHIM_S = (
    3.0  # after the grace: a shim that does not end its group itself (stopped by a signal) is killed
)

Observe = Callable[[Observation], None]
log = get_logger("rover.node")


class MemberProcesses(Protocol):
    """The port that the daemon drives; processes of a simulation implement it too."""

    def start(self, life: Life) -> None:
        """Start a life; answers Spawned, then Running or Ended."""

    def stop(self, life: Life, hurried: bool = False) -> None:
        """Ask a life to leave, and end it after its grace, `hurried`: after `shim.HURRY_S`; answers Told, later Ended."""

    def adjust(self, life: Life, resources: Resources, cpus: Mapping[int, float]) -> None:
        """Change the limits of a running life; answers Adjusted."""

    def try_program(self, request: ProgramRequest, answer: Answer, anew: bool = False) -> None:
        """Find out whether a worker's program would start here, without running it; `answer` is called once, later.

        What runs a role is the platform's to know, so it is asked and not looked up. anew: nothing remembered counts.
        """

    def adopt(self) -> None:
        """Take over what a former daemon left: answers Spawned and Running for the living, Ended for the dead."""

    def mark_reported(self, ended: Ended) -> None:
        """Note for successors that the fact of this end is stored."""

    def forget(self, job: str) -> None:
        """Drop the records of a job of which nothing lives."""

    def erase(self, job: str, uid: str) -> None:
        """Remove all files of a run of a job that was forgotten."""

    def release(self) -> None:
        """Let go of everything; members live on under their shims."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all members of a daemon share. `environment` is the base of theirs."""

    environment: Mapping[str, str]
    allowed: tuple[int, ...]
    orphan_s: float = 30.0  # P23: without a daemon for this long a group is drained; 0: never
    oom_path: str = "/proc/vmstat"
    python: str = sys.executable  # of shims, and what `python` means as the first word of a program
    server_command: tuple[
        str, ...
    ] = ()  # what runs a parameter server on this host; empty: what desired state says


@dataclass(slots=True)
class _Held:
    """A shim that we watch."""

    life: Life
    directory: layout.Life
    pid: int = 0
    pidfd: int = -1
    report: int = -1
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    told: bool = False


class Processes:
    """Members as processes of this host, under shims."""

    def __init__(self, place: Layout, settings: Settings, observe: Observe) -> None:
        self._layout = place
        self._settings = settings
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._boot = layout.boot_id()
        self._held: dict[Key, _Held] = {}
        self._trials = Trials(settings.python, self._environment_of_program)

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self, life: Life) -> None:
        if life.key in self._held:
            return
        held = _Held(life, self._layout.life(life.job, life.uid, life.desired.member))
        self._held[life.key] = held
        self._observe(Spawned(life))
        if held.directory.lives():
            self._adopt(held)
            return
        try:
            held.pid, held.report = self._spawn(held)
            held.pidfd = os.pidfd_open(held.pid)
        except OSError as error:
            self._end(
                held, layout.Ended(reason="never_started", detail=f"{error.filename or ''} {error.strerror}")
            )
            return
        self._loop.add_reader(held.report, self._on_report, held)
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)

    def _spawn(self, held: _Held) -> tuple[int, int]:
        """Write the order, then start the shim with the lock that proves its life. Returns its pid and the report pipe."""
        life, directory = held.life, held.directory
        log = self._layout.log(life.job, life.uid, life.desired.member)
        directory.remove()
        directory.path.mkdir(parents=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._layout.prune_logs(life.job, life.uid, life.desired.member.place)
        self._write_order(held)
        lock = locks.hold(str(directory.path / "life"))
        report, reported = os.pipe()
        try:
            if lock is None:
                raise OSError(0, "its former life is not proven dead", str(directory.path))
            for fd in (lock, reported):
                os.set_inheritable(fd, True)
            return self._posix_spawn(held, log, lock, reported), report
        except OSError:
            os.close(report)
            raise
        finally:
            os.close(reported)
            if lock is not None:
                os.close(lock)

    def _write_order(self, held: _Held) -> None:
        life = held.life
        held.directory.write("limits", self._limits(life.desired.resources, life.cpus))
        order = Order(job=life.job, uid=life.uid, desired=life.desired, cpus=dict(life.cpus), boot=self._boot)
        held.directory.write("order", order)

    def _posix_spawn(self, held: _Held, log: Path, lock: int, reported: int) -> int:
        desired = held.life.desired
        command = [self._settings.python, "-I", "-S", "-c", BOOT]
        command += [f"dir={held.directory.path}", f"life={lock}", f"report={reported}"]
        command += [
            f"lock={self._layout.daemon_lock}",
            f"cwd={desired.directory}",
            f"grace={desired.grace_s}",
        ]
        command += [
            f"orphan={self._settings.orphan_s}",
            f"oom={self._settings.oom_path}",
            "--",
            *self._command(desired),
        ]
        return os.posix_spawn(
            command[0],
            command,
            self.environment(held.life),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=SHIM_SIGNALS,  # a word that comes before the shim can listen waits
            setsigdef=[*SHIM_SIGNALS, signal.SIGPIPE],
        )

    def _command(self, desired: DesiredMember) -> list[str]:
        """Return what runs a member here. Which interpreter has our code is this host's to know, not the log's of another host."""
        if desired.member.role == "ps" and self._settings.server_command:
            return list(self._settings.server_command)
        first, *rest = desired.command
        return [self._settings.python if first == OWN_PYTHON else first, *rest]

    def try_program(self, request: ProgramRequest, answer: Answer, anew: bool = False) -> None:
        self._trials.ask(request, answer, anew)

    def _environment_of_program(self, request: ProgramRequest) -> dict[str, str]:
        """Return what a worker with this program finds around it. The marker ends a trial with its host."""
        marker = {"ROVER_LIFE": str(self._layout.root / "trial")}
        return {**self._settings.environment, **request.environment, **marker}

    def environment(self, life: Life) -> dict[str, str]:
        """Return a member's environment: ours, the threads for its cores, what desired state says, who it is."""
        member = life.desired.member
        return {
            **self._settings.environment,
            **threads(life.desired.resources.cores, member.role),
            **life.desired.environment,
            "ROVER_JOB": life.job,
            "ROVER_ROLE": member.role,
            "ROVER_INDEX": str(member.index),
            "ROVER_INCARNATION": str(member.incarnation),
            "ROVER_LIFE": self._life_name(life),
            "ROVER_GRACE_S": f"{life.desired.grace_s / 2:g}",  # the other half is for its last words and its end
        }

    def _life_name(self, life: Life) -> str:
        return str(self._layout.life(life.job, life.uid, life.desired.member).path)

    def _limits(self, resources: Resources, cpus: Mapping[int, float]) -> str:
        chosen = sorted(cpus) or self._settings.allowed
        return " ".join(str(number) for number in (resources.memory_bytes, *chosen))

    def _on_report(self, held: _Held) -> None:
        said = os.read(held.report, 1)
        self._unwatch_report(held)
        started = held.directory.read("started", Started)
        if said == b"s" and started:
            self._observe(Running(held.life.key, started.pid))

    # -- adopt ---------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        for directory, order in self._layout.lives():
            ended = directory.ended()
            life = Life(order.job, order.uid, order.desired, order.cpus)
            held = _Held(life, directory)
            if ended:
                self._end(held, ended)
                continue
            self._held[life.key] = held
            self._observe(Spawned(life))
            self._adopt(held)

    def _adopt(self, held: _Held) -> None:
        """Watch a shim of a former daemon; one that has not written yet is looked at again; one that is gone is buried."""
        started = held.directory.read("started", Started)
        if not held.directory.lives():
            self._bury(held)
            return
        if started is None:
            held.timers.append(self._loop.call_later(ADOPT_AGAIN_S, self._adopt, held))
            return
        try:
            held.pid, held.pidfd = started.shim, os.pidfd_open(started.shim)
        except OSError:
            self._bury(held)
            return
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)
        self._observe(Running(held.life.key, started.pid, adopted=True))
        if held.told:
            self.stop(held.life)

    # -- change and stop -----------------------------------------------------------------------------------------------

    def adjust(self, life: Life, resources: Resources, cpus: Mapping[int, float]) -> None:
        held = self._held.get(life.key)
        self._observe(Adjusted(life.key, resources, cpus))
        if held:
            held.life = replace(held.life, desired=life.desired.replace(resources=resources), cpus=cpus)
            try:
                self._write_order(held)
            except OSError as error:
                log.warning("limits are not changed", life=held.directory.path.name, why=str(error))
                return
            self._signal(held, signal.SIGHUP)

    def stop(self, life: Life, hurried: bool = False) -> None:
        held = self._held.get(life.key)
        self._observe(Told(life.key, hurried))
        if held is None:
            return
        held.told = True
        self._signal(held, signal.SIGUSR1 if hurried else signal.SIGTERM)
        patience_s = (HURRY_S if hurried else life.desired.grace_s) + STUCK_SHIM_S
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
        with contextlib.suppress(ChildProcessError):  # adopted: whoever inherited it reaps it
            os.waitpid(held.pid, os.WNOHANG)
        self._bury(held)

    def _bury(self, held: _Held) -> None:
        """Report how a life without a shim ended. Without its record the shim was killed itself: end what it left first."""
        ended = held.directory.ended()
        if ended is None:
            order, started = held.directory.read("order", Order), held.directory.read("started", Started)
            if order and order.boot != self._boot:
                ended = layout.Ended(reason="host_lost", detail="the machine was started anew")
            elif self._sweep(held, started):
                held.timers.append(self._loop.call_later(SWEEP_AGAIN_S, self._bury, held))
                return
            else:
                ran_s = _age_s(started.pid_started) if started else 0.0
                ended = layout.Ended(reason="killed", signal=9, detail="its shim was killed", ran_s=ran_s)
        self._end(held, ended)

    def _sweep(self, held: _Held, started: Started | None) -> bool:
        """Kill what is left of a group whose shim is gone; False when nothing is."""
        marker = f"ROVER_LIFE={self._life_name(held.life)}\0".encode()
        left = set(proctree.bearing(marker))
        if started and proctree.start_ticks(started.pid) in (0, started.pid_started):
            processes = proctree.snapshot()
            left |= {pid for pid, each in processes.items() if started.pid in (pid, each[1], each[2])}
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(left)

    def _end(self, held: _Held, ended: layout.Ended) -> None:
        life = held.life
        self._unwatch(held)
        if self._held.get(life.key) is held:
            del self._held[life.key]
        with contextlib.suppress(OSError):  # a full disk: the fact is sent all the same, from memory
            if held.directory.path.is_dir() and held.directory.ended() is None:
                held.directory.write("exit", ended)
        self._observe(
            Ended(
                job=life.job,
                uid=life.uid,
                member=life.desired.member,
                exit=self._exit(held, ended),
                ran_s=ended.ran_s,
                at_s=self._loop.time(),
                reported=held.directory.is_reported(),
                cpu_s=max(ended.cpu_s, 0.0),
                peak_memory_bytes=max(ended.peak_memory_bytes, 0),
            )
        )

    def _exit(self, held: _Held, ended: layout.Ended) -> Exit:
        """How it ended, with its last words where it did not end in order: what it wrote is the one trace of a fault."""
        said = ended.exit()
        if said.reason in IN_ORDER:
            return said
        life = held.life
        return said.replace(stderr=read_tail(self._layout.log(life.job, life.uid, life.desired.member)))

    def mark_reported(self, ended: Ended) -> None:
        with contextlib.suppress(OSError):  # a full disk: it is sent once more after a restart
            self._layout.mark_reported(ended.job, ended.uid, ended.member)

    def forget(self, job: str) -> None:
        self._layout.forget(job)

    def erase(self, job: str, uid: str) -> None:
        self._layout.erase(job, uid)

    # -- letting go ----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        self._trials.close()
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
