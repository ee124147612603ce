"""The local platform: the port of node/port.py on the processes, files and figures of this machine.

Built by service.py for one daemon. Members are processes.py's, trials of programs trials.py's, what the machine has and what is
used of it capacity.py's and sampling.py's; what is kept of members lies in the state directory (layout.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from rover_bus.events.identity import HostCapacity, Member, Resources, Role
from rover_bus.events.peaks import Peaks, follow
from rover_bus.events.profiles import HostProfile
from rover_bus.events.programs import ProgramRequest
from rover_bus.node.local.capacity import Machine
from rover_bus.node.local.cores import CoreGroups
from rover_bus.node.local.layout import StateDirectory, list_spares
from rover_bus.node.local.processes import Processes
from rover_bus.node.local.sampling import MachineSampler
from rover_bus.node.local.spawning import MemberSettings
from rover_bus.node.local.trials import Trials
from rover_bus.node.port import Answer, Exited, Incarnation, Observe, Spare, StartOrder


class LocalPlatform:
    """Members of one state directory on this machine."""

    def __init__(
        self, directory: StateDirectory, machine: Machine, settings: MemberSettings, observe: Observe
    ) -> None:
        self._directory, self._machine, self._settings = directory, machine, settings
        self._groups = CoreGroups.below(machine.cgroup, directory.root)
        self._processes = Processes(directory, settings, self._groups, observe)
        self._capacity, self._tried = machine.capacity, False
        self._trials = Trials(settings.python, self._processes.environment_of_program, settings.users)
        self._sampler = MachineSampler(machine)
        self._peaks = Peaks[tuple[str, Member]]()
        self._following: asyncio.Task[None] | None = None

    @property
    def capacity(self) -> HostCapacity:
        return self._capacity

    async def capacity_changes(self) -> None:
        """Whether cores bind is tried once, in a thread; nothing else changes here."""
        if not self._tried:
            self._tried = True
            if await asyncio.to_thread(self._groups.try_whether_they_bind):
                self._capacity = self._capacity.replace(cores_bind=True)
                return
        await asyncio.Event().wait()

    @property
    def cpus(self) -> tuple[int, ...]:
        return self._machine.cpus

    @property
    def roles(self) -> frozenset[Role]:
        return self._settings.commands.roles

    def start(self, order: StartOrder) -> None:
        self._processes.start(order)

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        self._processes.stop(incarnation, hurried)

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        self._processes.adjust(incarnation, resources, cpus)

    def prepare(self, spare: Spare) -> None:
        self._processes.prepare(spare)

    def drop(self, spare: Spare) -> None:
        self._processes.drop(spare)

    def try_program(
        self, request: ProgramRequest, answer: Answer, anew: bool = False, _of: tuple[str, str] = ("", "")
    ) -> None:
        self._trials.ask(request, answer, anew)

    async def measure(self, host: str) -> HostProfile | None:
        if self._following is None and self._capacity.cores_bind:
            self._following = asyncio.create_task(follow(self._peaks, self._processes.used_s))
        sample = self._sampler.take(host, self._capacity, self._processes.running(), self._peaks.take())
        return sample.replace(spares=list_spares(self._directory.root)) if sample else None

    async def adopt(self) -> None:
        self._processes.adopt()

    def mark_reported(self, ended: Exited) -> None:
        with contextlib.suppress(OSError):  # a full disk: it is sent once more after a restart
            self._directory.mark_reported(ended.job, ended.uid, ended.member)

    def forget(self, job: str) -> None:
        self._directory.forget(job)
        self._processes.forget(job)

    def erase(self, job: str, uid: str) -> None:
        self._directory.erase(job, uid)

    def release(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._trials.close()
        self._processes.release()
        self._groups.remove_empty()
