"""The simulated platform: members as coroutines, so that whole clusters run on a virtual clock.

A `SimulatedHost` is the machine: its members go on when their daemon is killed, and the next daemon adopts them. A member is a
coroutine that gets its order and an event that says "leave", and returns its exit code; a cancelled one was killed. The platform
of one daemon is `SimulatedPlatform`: once another daemon is attached it observes nothing and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from rover_bus.events.identity import Exit, HostCapacity, Resources, Role
from rover_bus.events.profiles import HostProfile, ProcessSample, SpareSample
from rover_bus.events.programs import STARTS, ProgramReply, ProgramRequest
from rover_bus.node.exits import HURRY_S, classify
from rover_bus.node.port import (
    EVERY_ROLE,
    Adjusted,
    Answer,
    Exited,
    Incarnation,
    Key,
    Leaving,
    Observation,
    Observe,
    Running,
    Spare,
    SpareGone,
    SpareKey,
    SpareReady,
    SpareSpawned,
    Spawned,
    StartOrder,
    WorkerLoaded,
)

TRIAL_S = 0.03  # what a trial of a program takes
FOUR_CORES = HostCapacity(cores=4, memory_bytes=1 << 34, cores_bind=True)
Program = Callable[[StartOrder, asyncio.Event], Coroutine[Any, Any, int]]


@dataclass(slots=True)
class _Running:
    order: StartOrder
    incarnation: Incarnation
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    pid: int = 0
    task: asyncio.Task[None] | None = None
    killed: str = ""
    warm: bool = False
    start_s: float = 0.0  # as it said when it joined


class SimulatedHost:
    """One machine of a simulation. `start_s` is what a start takes."""

    def __init__(self, program: Program, start_s: float = 0.05, capacity: HostCapacity = FOUR_CORES) -> None:
        self.refuses = ""  # why programs of jobs do not start here
        self.capacity = capacity
        self._program = program
        self._start_s = start_s
        self._attached: SimulatedPlatform | None = None
        self._processes: dict[Key, _Running] = {}
        self._spares: dict[SpareKey, asyncio.TimerHandle | None] = {}  # None: it is ready
        self._loaded: set[tuple[str, str]] = set()  # runs of jobs of which a worker said what it had loaded
        self._ends: list[Exited] = []  # kept until the job is forgotten
        self.erased: list[tuple[str, str]] = []  # runs of jobs of which nothing is kept
        self._pids = 1000

    def attach(self, observe: Observe) -> SimulatedPlatform:
        """Return the platform of a new daemon; what a former daemon still does has no effect from here on.

        A daemon's spares die with it.
        """
        self._end_spares()
        self._attached = SimulatedPlatform(self, observe)
        return self._attached

    def detach(self) -> None:
        """The daemon is killed: it observes nothing and can do nothing any more."""
        self._attached = None
        self._end_spares()

    @property
    def members(self) -> dict[Key, Incarnation]:
        """What runs now."""
        return {key: process.incarnation for key, process in self._processes.items() if process.pid}

    def kill(self, key: Key) -> None:
        """SIGKILL a member."""
        self._end(self._processes[key], "")

    def lose_power(self) -> None:
        """Kill everything; no daemon observes it."""
        self.detach()
        for process in list(self._processes.values()):
            self._end(process, "")

    # -- what its platform asks of it ----------------------------------------------------------------------------------

    def is_attached(self, platform: SimulatedPlatform) -> bool:
        return self._attached is platform

    def start(self, order: StartOrder) -> None:
        key = order.incarnation.key
        if key in self._processes:
            return
        warm = self._take_spare((key[0], order.spare))
        process = self._processes[key] = _Running(order, order.incarnation, warm=warm)
        self._observe(Spawned(order.incarnation))
        process.task = asyncio.get_running_loop().create_task(self._run(process))

    def prepare(self, spare: Spare) -> None:
        if spare.key in self._spares:
            return
        loop = asyncio.get_running_loop()
        self._spares[spare.key] = loop.call_later(self._start_s, self._ready, spare.key)
        self._observe(SpareSpawned(spare, loop.time()))
        if (spare.job, spare.uid) not in self._loaded:
            self._end_spare(spare.key, "ended")

    def drop(self, key: SpareKey) -> None:
        """End a spare at once."""
        self._end_spare(key, "dropped")

    def kill_spare(self, key: SpareKey) -> None:
        """SIGKILL a spare."""
        self._end_spare(key, "ended")

    def tell_loaded(self, key: Key, start_s: float) -> None:
        """A worker says what it had loaded when it joined."""
        process = self._processes[key]
        process.start_s = start_s
        self._loaded.add((key[0], process.incarnation.uid))
        self._observe(_loaded(process))

    def try_program(self, request: ProgramRequest, answer: Answer) -> None:
        refused = ProgramReply(state="refused", path=request.program[-1], problem=self.refuses)
        reply = refused if self.refuses else STARTS
        asyncio.get_running_loop().call_later(TRIAL_S, answer, reply)

    def stop(self, incarnation: Incarnation, hurried: bool) -> None:
        process = self._processes.get(incarnation.key)
        self._observe(Leaving(incarnation.key, hurried))
        if process:
            process.leave.set()
            patience_s = HURRY_S if hurried else incarnation.desired.grace_s
            asyncio.get_running_loop().call_later(patience_s, self._end, process, "grace: too slow")

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        process = self._processes.get(incarnation.key)
        if process:
            desired = process.incarnation.desired.replace(resources=resources)
            process.incarnation = replace(process.incarnation, desired=desired, cpus=cpus)
        self._observe(Adjusted(incarnation.key, resources, cpus))

    def samples(self) -> list[ProcessSample]:
        """Each member that runs; it uses what it may use."""
        return [
            ProcessSample(
                job=each.incarnation.job,
                member=each.incarnation.member,
                pid=each.pid,
                cores_used=each.incarnation.desired.resources.cores,
                memory_bytes=each.incarnation.desired.resources.memory_bytes,
                threads=1,
            )
            for each in self._processes.values()
            if each.pid
        ]

    def spares(self) -> list[SpareSample]:
        """Each spare that waits, or loads."""
        return [
            SpareSample(
                job=job,
                number=number,
                pid=0,
                state="loading" if timer is not None else "ready",
                age_s=0.0,
                memory_bytes=0,
            )
            for (job, number), timer in self._spares.items()
        ]

    def observations(self) -> list[Observation]:
        """Return what a new daemon finds: what has ended, then what runs."""
        found: list[Observation] = list(self._ends)
        for process in self._processes.values():
            found.append(Spawned(process.incarnation))
            if process.pid:
                found.append(Running(process.incarnation.key, process.pid, adopted=True))
            found += [_loaded(process)] if process.start_s else []
        return found

    def mark_reported(self, ended: Exited) -> None:
        self._ends = [replace(each, reported=each.reported or _same(each, ended)) for each in self._ends]

    def forget(self, job: str) -> None:
        self._ends = [each for each in self._ends if each.job != job]
        self._loaded = {run for run in self._loaded if run[0] != job}

    def erase(self, job: str, uid: str) -> None:
        self._ends = [each for each in self._ends if (each.job, each.uid) != (job, uid)]
        self.erased.append((job, uid))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _observe(self, observation: Observation) -> None:
        if isinstance(observation, Exited):
            self._ends.append(observation)
        if self._attached:
            self._attached.observe(observation)

    def _ready(self, key: SpareKey) -> None:
        self._spares[key] = None
        self._observe(SpareReady(key))

    def _take_spare(self, key: SpareKey) -> bool:
        """Whether a spare that was ready becomes a member; it is none any more."""
        if self._spares.get(key, self) is not None:
            return False
        self._end_spare(key, "used")
        return True

    def _end_spare(self, key: SpareKey, how: Literal["used", "dropped", "ended"]) -> None:
        if key not in self._spares:
            return
        timer = self._spares.pop(key)
        if timer is not None:
            timer.cancel()
        self._observe(SpareGone(key, how, asyncio.get_running_loop().time()))

    def _end_spares(self) -> None:
        for timer in self._spares.values():
            if timer is not None:
                timer.cancel()
        self._spares.clear()

    def _end(self, process: _Running, why: str) -> None:
        if process.task and not process.task.done():
            process.killed = why
            process.task.cancel()

    async def _run(self, process: _Running) -> None:
        incarnation, loop = process.incarnation, asyncio.get_running_loop()
        born_s = loop.time()
        try:
            await asyncio.sleep(0.0 if process.warm else self._start_s)
            self._pids += 1
            process.pid = self._pids
            self._observe(Running(incarnation.key, process.pid, warm=process.warm))
            code = await self._program(process.order, process.leave)
        except asyncio.CancelledError:
            code = -9
        del self._processes[incarnation.key]
        asked = "asked to leave" if process.leave.is_set() else ""
        now_s = loop.time()
        end = _exit(code, asked, process.killed)
        self._observe(
            Exited(incarnation.job, incarnation.uid, incarnation.member, end, now_s - born_s, now_s)
        )


def _same(one: Exited, other: Exited) -> bool:
    return (one.job, one.uid, one.member) == (other.job, other.uid, other.member)


def _loaded(process: _Running) -> WorkerLoaded:
    run, now_s = process.incarnation, asyncio.get_running_loop().time()
    return WorkerLoaded(run.key, run.uid, process.start_s, now_s)


def _exit(code: int, asked: str, killed: str) -> Exit:
    reason, status, signal, detail = classify(code, asked=asked, killed=killed)
    return msgspec.convert({"reason": reason, "status": status, "signal": signal, "detail": detail}, Exit)


class SimulatedPlatform:
    """The platform of one daemon on a SimulatedHost."""

    def __init__(self, host: SimulatedHost, observe: Observe) -> None:
        self._host = host
        self.observe = observe
        self._measured_s: float | None = None

    @property
    def capacity(self) -> HostCapacity:
        return self._host.capacity

    async def capacity_changes(self) -> None:
        await asyncio.Event().wait()

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(range(int(self._host.capacity.cores)))

    @property
    def roles(self) -> frozenset[Role]:
        return EVERY_ROLE

    def start(self, order: StartOrder) -> None:
        if self._host.is_attached(self):
            self._host.start(order)

    def prepare(self, spare: Spare) -> None:
        if self._host.is_attached(self):
            self._host.prepare(spare)

    def drop(self, spare: Spare) -> None:
        if self._host.is_attached(self):
            self._host.drop(spare.key)

    def try_program(
        self, request: ProgramRequest, answer: Answer, _anew: bool = False, _of: tuple[str, str] = ("", "")
    ) -> None:
        def answer_attached(reply: ProgramReply) -> None:
            if self._host.is_attached(self):
                answer(reply)

        if self._host.is_attached(self):
            self._host.try_program(request, answer_attached)

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        if self._host.is_attached(self):
            self._host.stop(incarnation, hurried)

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        if self._host.is_attached(self):
            self._host.adjust(incarnation, resources, cpus)

    async def measure(self, host: str) -> HostProfile | None:
        now_s = asyncio.get_running_loop().time()
        before_s, self._measured_s = self._measured_s, now_s
        if before_s is None:
            return None
        samples = self._host.samples()
        return HostProfile(
            window_s=max(now_s - before_s, 1e-9),
            host=host,
            cores=self.capacity.cores,
            cores_used=sum(each.cores_used for each in samples),
            memory_bytes=self.capacity.memory_bytes,
            memory_used_bytes=sum(each.memory_bytes for each in samples),
            processes=samples,
            spares=self._host.spares(),
        )

    async def adopt(self) -> None:
        for observation in self._host.observations():
            self.observe(observation)

    def mark_reported(self, ended: Exited) -> None:
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
