"""Processes of a simulation: the port of the platform on coroutines, so that whole clusters run on a virtual clock.

A `SimulatedHost` is the machine: its members go on when their daemon is killed, and the next daemon adopts them. A member is a
coroutine that gets its life and an event that says "leave", and returns its exit code; a cancelled one was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rover_bus.events.identity import Exit, Resources
from rover_bus.events.programs import STARTS, ProgramReply, ProgramRequest
from rover_bus.node.exits import classify
from rover_bus.node.local.layout import Ended as Record
from rover_bus.node.local.shim import HURRY_S
from rover_bus.node.local.trials import Answer
from rover_bus.node.port import Adjusted, Ended, Key, Life, Observation, Running, Spawned, Told

TRIAL_S = 0.03  # what a trial of a program takes
Program = Callable[[Life, asyncio.Event], Coroutine[Any, Any, int]]
Observe = Callable[[Observation], None]


@dataclass(slots=True)
class _Process:
    life: Life
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    pid: int = 0
    task: asyncio.Task[None] | None = None
    killed: str = ""


class SimulatedHost:
    """One machine of a simulation. `start_s` is what a start takes."""

    def __init__(self, program: Program, start_s: float = 0.05) -> None:
        self.refuses = ""  # why programs of jobs do not start here
        self._program = program
        self._start_s = start_s
        self._attached: SimulatedProcesses | None = None
        self._processes: dict[Key, _Process] = {}
        self._ends: list[Ended] = []  # kept until the job is forgotten, as the state directory does
        self.erased: list[tuple[str, str]] = []  # runs of jobs whose files are gone
        self._pids = 1000

    def attach(self, observe: Observe) -> SimulatedProcesses:
        """Return the processes for a new daemon; what a former daemon still does has no effect from here on."""
        self._attached = SimulatedProcesses(self, observe)
        return self._attached

    def detach(self) -> None:
        """The daemon is killed: it observes nothing and can do nothing any more."""
        self._attached = None

    @property
    def members(self) -> dict[Key, Life]:
        """What runs now."""
        return {key: process.life for key, process in self._processes.items() if process.pid}

    def kill(self, key: Key) -> None:
        """SIGKILL a member."""
        self._end(self._processes[key], "")

    def lose_power(self) -> None:
        """Kill everything without a word to anybody."""
        self.detach()
        for process in list(self._processes.values()):
            self._end(process, "")

    # -- what its daemon asks of it ------------------------------------------------------------------------------------

    def is_attached(self, processes: SimulatedProcesses) -> bool:
        return self._attached is processes

    def start(self, life: Life) -> None:
        process = self._processes[life.key] = _Process(life)
        process.task = asyncio.get_running_loop().create_task(self._run(process))

    def try_program(self, answer: Answer) -> None:
        reply = (
            ProgramReply(state="refused", path="train.py", problem=self.refuses) if self.refuses else STARTS
        )
        asyncio.get_running_loop().call_later(TRIAL_S, answer, reply)

    def stop(self, life: Life, hurried: bool) -> None:
        process = self._processes.get(life.key)
        if process:
            process.leave.set()
            patience_s = HURRY_S if hurried else life.desired.grace_s
            asyncio.get_running_loop().call_later(patience_s, self._end, process, "grace: too slow")

    def observations(self) -> list[Observation]:
        """Return what a new daemon finds: the records of the dead, then the living."""
        found: list[Observation] = list(self._ends)
        for process in self._processes.values():
            found.append(Spawned(process.life))
            if process.pid:
                found.append(Running(process.life.key, process.pid, adopted=True))
        return found

    def mark_reported(self, ended: Ended) -> None:
        self._ends = [replace(each, reported=each.reported or each == ended) for each in self._ends]

    def forget(self, job: str) -> None:
        self._ends = [each for each in self._ends if each.job != job]

    def erase(self, job: str, uid: str) -> None:
        self.forget(job)
        self.erased.append((job, uid))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tell(self, observation: Observation) -> None:
        if isinstance(observation, Ended):
            self._ends.append(observation)
        if self._attached:
            self._attached.observe(observation)

    def _end(self, process: _Process, why: str) -> None:
        if process.task and not process.task.done():
            process.killed = why
            process.task.cancel()

    async def _run(self, process: _Process) -> None:
        life, loop = process.life, asyncio.get_running_loop()
        born_s = loop.time()
        try:
            await asyncio.sleep(self._start_s)
            self._pids += 1
            process.pid = self._pids
            self._tell(Running(life.key, process.pid))
            code = await self._program(life, process.leave)
        except asyncio.CancelledError:
            code = -9
        del self._processes[life.key]
        told = "asked to leave" if process.leave.is_set() else ""
        reason, status, signal, detail = classify(code, told=told, killed=process.killed)
        end = Record(reason=reason, status=status, signal=signal, detail=detail).exit()
        self._tell(self._ended(life, end, loop.time() - born_s, loop.time()))

    @staticmethod
    def _ended(life: Life, end: Exit, ran_s: float, at_s: float) -> Ended:
        return Ended(life.job, life.uid, life.desired.member, end, ran_s, at_s)


class SimulatedProcesses:
    """The port of one daemon on a SimulatedHost."""

    def __init__(self, host: SimulatedHost, observe: Observe) -> None:
        self._host = host
        self.observe = observe

    def start(self, life: Life) -> None:
        if self._host.is_attached(self):
            self.observe(Spawned(life))
            self._host.start(life)

    def try_program(self, request: ProgramRequest, answer: Answer, anew: bool = False) -> None:
        def tell(reply: ProgramReply) -> None:
            if self._host.is_attached(self):
                answer(reply)

        if self._host.is_attached(self):
            self._host.try_program(tell)

    def stop(self, life: Life, hurried: bool = False) -> None:
        if self._host.is_attached(self):
            self.observe(Told(life.key, hurried))
            self._host.stop(life, hurried)

    def adjust(self, life: Life, resources: Resources, cpus: Mapping[int, float]) -> None:
        if self._host.is_attached(self):
            self.observe(Adjusted(life.key, resources, cpus))

    def adopt(self) -> None:
        for observation in self._host.observations():
            self.observe(observation)

    def mark_reported(self, ended: Ended) -> None:
        if self._host.is_attached(self):
            self._host.mark_reported(ended)

    def forget(self, job: str) -> None:
        if self._host.is_attached(self):
            self._host.forget(job)

    def erase(self, job: str, uid: str) -> None:
        if self._host.is_attached(self):
            self._host.erase(job, uid)

    def release(self) -> None:
        if self._host.is_attached(self):
            self._host.detach()
