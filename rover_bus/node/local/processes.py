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
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rover_bus.events import traces
from rover_bus.events.errors import RoverError
from rover_bus.events.identity import IN_ORDER, Exit, Member, Resources
from rover_bus.events.last_words import read_tail
from rover_bus.events.logs import get_logger
from rover_bus.events.programs import ProgramRequest
from rover_bus.events.subjects import file_name
from rover_bus.node.exits import HURRY_S, STUCK_S
from rover_bus.node.local import layout, proctree
from rover_bus.node.local.cores import CoreGroups
from rover_bus.node.local.launching import LOADED
from rover_bus.node.local.layout import OrderRecord, SpareRecord, StartRecord, StateDirectory
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
from rover_bus.node.local.warm import Taken, WarmSpares
from rover_bus.node.port import (
    Adjusted,
    Exited,
    Incarnation,
    Key,
    Leaving,
    Observe,
    Running,
    Spare,
    Spawned,
    StartOrder,
)
from rover_bus.node.users import hand_over, keep_for, open_to

SWEEP_AGAIN_S = 0.02
LOADED_FIRST_S, LOADED_MOST_S = 0.5, 10.0  # between looks at what a worker says that it had loaded
ADOPT_AGAIN_S = 0.05
log = get_logger("rover.node")


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
    spare: SpareRecord | None = None  # the one that became it

    @property
    def group(self) -> str:
        """Name of its control group."""
        return (
            self.spare.name
            if self.spare
            else f"{file_name(self.incarnation.job)}.{self.incarnation.uid}.{self.incarnation.member}"
        )


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
        self._warm = WarmSpares(place, settings, groups, observe)

    def running(self) -> list[tuple[str, Member, int]]:
        """Return the members that run: job, member, pid."""
        held = [each for each in self._held.values() if each.member_pid]
        return [(each.incarnation.job, each.incarnation.member, each.member_pid) for each in held]

    def used_s(self) -> dict[tuple[str, Member], float]:
        """Return the processor seconds of the members that have a control group of their own, by job and member."""
        held = [each for each in self._held.values() if each.member_pid]
        used = {
            (each.incarnation.job, each.incarnation.member): self._groups.used_s(each.group) for each in held
        }
        return {member: seconds for member, seconds in used.items() if seconds is not None}

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self, order: StartOrder) -> None:
        incarnation = order.incarnation
        if incarnation.key in self._held:
            return
        if order.spare and (taken := self._warm.take(order)):
            self._continue(order, taken)
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
        except (OSError, RoverError) as error:
            self._end(held, layout.ExitRecord(reason="never_started", detail=_why(error)))
            return
        self._loop.add_reader(held.report, self._on_report, held)
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)

    def _continue(self, order: StartOrder, taken: Taken) -> None:
        """A spare is this member from here on: its directory, its log and its words are the member's."""
        run = order.incarnation
        held = _Held(run, taken.directory, taken.shim, taken.pid, taken.pidfd, spare=taken.was)
        self._held[run.key] = held
        self._observe(Spawned(run))
        with contextlib.suppress(OSError):  # a full disk: its log stays where it is
            (taken.directory.path / "log").rename(self._open_log(run))
        self._signal(held, signal.SIGHUP)
        taken.admit(self.environment(run, order.credential))
        self._loop.add_reader(held.pidfd, self._on_shim_gone, held)
        self._observe(Running(run.key, held.member_pid, warm=True))

    def _spawn(self, held: _Held, credential: str) -> tuple[int, int]:
        """Write the order, then start the shim. Returns its pid and the pipe on which it reports."""
        incarnation, directory = held.incarnation, held.directory
        directory.remove()
        directory.path.mkdir(parents=True)
        user = self._settings.user_of(incarnation)
        if user:
            self._give_places(incarnation, user)
        order = ShimOrder(
            directory=directory.path,
            log=self._open_log(incarnation),
            desired=incarnation.desired,
            command=self._command(incarnation),
            entrance=self._groups.entrance(held.group, incarnation.desired.resources.cores),
            environment=self.environment(incarnation, credential)
            | (
                {"ROVER_LOADED_FILE": str(directory.written_by_member / LOADED)}
                if self._warm.could_be(incarnation)
                else {}
            ),
            user=user,
        )
        self._write_order(held)
        return spawn_shim(order, self._settings, self._layout.daemon_lock)

    def _give_places(self, incarnation: Incarnation, user: int) -> None:
        """Make what the user of a run passes through, and what it owns."""
        directory = self._directory(incarnation).path
        open_to(directory.parent, user)
        make_own_place(directory, user)
        if incarnation.member.role == "ps":
            hand_over(layout.parts_directory(self._layout.root, incarnation.job), user)

    def _open_log(self, incarnation: Incarnation) -> Path:
        log = self._layout.log(incarnation.job, incarnation.uid, incarnation.member)
        log.parent.mkdir(parents=True, exist_ok=True)
        if user := self._settings.user_of(incarnation):
            keep_for(log.parent, user)
        self._layout.prune_logs(incarnation.job, incarnation.uid, incarnation.member.name)
        return log

    def _write_order(self, held: _Held) -> None:
        limits = limits_of(self._settings, held.incarnation)
        write_order(held.directory, held.incarnation, limits, held.spare)

    def _command(self, incarnation: Incarnation) -> list[str]:
        return own_python(self._settings, self._settings.commands.of(incarnation.job, incarnation.desired))

    def environment_of_program(self, request: ProgramRequest) -> dict[str, str]:
        """Return what a worker with this program finds around it. The marker ends a trial with its host."""
        marker = {proctree.MARK: str(self._layout.root / "trial")}
        return {**self._settings.environment, **request.environment, **marker}

    def environment(self, incarnation: Incarnation, credential: str = "") -> dict[str, str]:
        directory = self._directory(incarnation).path
        return environment_of(self._settings, incarnation, directory, credential) | traces.environment()

    def _directory(self, incarnation: Incarnation) -> layout.IncarnationDirectory:
        return self._layout.incarnation(incarnation.job, incarnation.uid, incarnation.member)

    def _on_report(self, held: _Held) -> None:
        report = os.read(held.report, 1)
        self._unwatch_report(held)
        started = held.directory.read("started", StartRecord)
        if report == b"s" and started:
            held.member_pid = started.pid
            self._observe(Running(held.incarnation.key, started.pid))
            self._await_loaded(held)

    def _await_loaded(self, held: _Held, wait_s: float = LOADED_FIRST_S) -> None:
        """Look for what a worker had loaded when it joined, until it is there."""
        if self._warm.could_be(held.incarnation) and not self._warm.read(held.incarnation):
            next_s = min(1.5 * wait_s, LOADED_MOST_S)
            held.timers.append(self._loop.call_later(wait_s, self._await_loaded, held, next_s))

    # -- adopt ---------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        self._warm.clear_former()
        for directory, order in self._layout.incarnations():
            ended = directory.ended()
            incarnation = Incarnation(order.job, order.uid, order.desired, order.cpus)
            held = _Held(incarnation, directory, spare=order.spare)
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
        self._await_loaded(held)
        if held.asked:
            self.stop(held.incarnation)

    # -- spares --------------------------------------------------------------------------------------------------------

    def prepare(self, spare: Spare) -> None:
        command = own_python(self._settings, spare.desired.command)
        self._warm.prepare(spare, command)

    def drop(self, spare: Spare) -> None:
        self._warm.drop(spare.key)

    def forget(self, job: str) -> None:
        self._warm.forget(job)

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
                ended = layout.ExitRecord(reason="host_lost", detail="the machine was started again")
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
        if held.spare:
            left |= set(proctree.bearing(str(self._layout.spare(held.spare.name)), only=True))
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
        if held.spare:
            self._layout.spare(held.spare.name).unlink(missing_ok=True)
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
                ran_s=max(ended.ran_s - (held.spare.age_s if held.spare else 0.0), 0.0),
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
        self._warm.release()
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


def _why(error: OSError | RoverError) -> str:
    return f"{error.filename or ''} {error.strerror}" if isinstance(error, OSError) else str(error)


def _age_s(started_ticks: int) -> float:
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / ticks_a_second)
