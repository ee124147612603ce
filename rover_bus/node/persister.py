"""The persister of a node daemon: staged parts of this host to storage, off the training path (protocol P12, P14).

Fed by the FACTS stream (staged parts, the master's orders) and by a look at the shared memory when it starts; asks the pure
decider after each; runs its tasks on two threads at the lowest priority; posts what came of them through the daemon's outbox.
What it knows is rebuilt from the stream and the shared memory: after a SIGKILL its successor answers the newest order again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.codec import decode
from rover_bus.events.errors import BadMessage, BusError, InputError, RoverError
from rover_bus.events.facts import HostFact, JobEnded, JobFact, JobSubmitted
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import job_facts, name, parse
from rover_bus.flash.places import job_directory, parts_in
from rover_bus.flash.sweep import sweep
from rover_bus.node import persisting
from rover_bus.node.persisting import CallOff, Do, GiveUp, JobCheckpoints, Persisting, Task

if TYPE_CHECKING:
    from rover_bus.node.storage_tasks import Tasks

FOLLOWED: dict[str, type[JobFact]] = {
    cls.kind(): cls
    for cls in (
        JobSubmitted,
        JobEnded,
        cuts.PartStaged,
        cuts.CheckpointPersistOrdered,
        cuts.CheckpointManifestOrdered,
        cuts.CheckpointReady,
        cuts.CheckpointSuperseded,
        cuts.CheckpointFailed,
    )
}
LOWEST_PRIORITY = 19
AGAIN_S = 0.5
Post = Callable[[HostFact, str, str], None]  # fact, what makes its message id, job
log = get_logger("rover.node")


@dataclass(frozen=True, slots=True)
class Places:
    """Where this host stages (`shm`), and where checkpoints go that name no path of their own."""

    shm: Path
    storage: Path


class Persister:
    """One daemon's persister. `daemon` is the incarnation, stamped on every fact."""

    def __init__(self, bus: Bus, host: str, daemon: str, places: Places, post: Post) -> None:
        self._bus, self._places, self._post = bus, places, post
        self._host, self._daemon = host, daemon
        self._state = Persisting(host)
        self._loop = asyncio.get_running_loop()
        self._lanes = {lane: _lane(lane) for lane in ("memory", "storage")}
        self._called_off: dict[Task, threading.Event] = {}
        self._loaded: Tasks | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._deciding = self._caught_up = self._closing = False
        self._seen = 0
        self.bad_messages = 0

    @property
    def state(self) -> Persisting:
        return self._state

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow, decide, act, for ever."""
        subjects = [job_facts("*", kind) for kind in FOLLOWED]
        while True:
            try:
                subscription = await self._bus.follow(
                    FACTS, subjects, self._on_fact, start="last_per_subject"
                )
                break
            except BusError as error:
                log.warning("cannot read what shall be stored yet", why=str(error))
                await asyncio.sleep(AGAIN_S)
        try:
            while not self._caught_up:
                self._caught_up = await self._reached_the_end(subjects)
                await asyncio.sleep(0 if self._caught_up else AGAIN_S)
            await asyncio.to_thread(self._sweep)
            self._look()
            self._decide_soon()
            await asyncio.Event().wait()
        finally:
            await subscription.stop()

    async def _reached_the_end(self, subjects: list[str]) -> bool:
        """Whether the newest stored fact has reached us: half a history would sweep what its other half keeps."""
        try:
            lasts = [await self._bus.last(FACTS, subject) for subject in subjects]
        except BusError:
            return False
        return self._seen >= max((last.sequence for last in lasts if last), default=0)

    async def close(self) -> None:
        """Call everything off; what was not finished has no name yet, and its remains are pruned later."""
        self._closing = True
        if self._wake:
            self._wake.cancel()
        for event in self._called_off.values():
            event.set()
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.shutdown, cancel_futures=True)

    @property
    def _tasks(self) -> Tasks:
        """Loaded by the first task: a host that stages nothing has no use for numpy."""
        if self._loaded is None:
            from rover_bus.node.storage_tasks import Tasks

            self._loaded = Tasks(self._host, self._daemon, self._places.shm, self._places.storage)
        return self._loaded

    def _look(self) -> None:
        """Observe what lies in shared memory: a former life of the daemon may have known of it."""
        for about in self._state.jobs.values():
            directory = job_directory(self._places.shm, about.uid) if about.uid else None
            if about.ended or directory is None or not directory.is_dir():
                continue
            from rover_bus.flash.staged import find_staged

            for part in parts_in(directory):
                with suppress(RoverError):
                    for found in find_staged(directory, part)[:1]:
                        seal = found.seal
                        self._observe(persisting.Found(about.uid, part, seal.cut, seal.generation))

    def _sweep(self) -> None:
        """Take away what jobs left in shared memory that are over, or that the stream does not know."""
        keep = [about.uid for about in self._state.jobs.values() if not about.ended]
        for uid in sweep(self._places.shm, keep):
            log.info("shared memory of a job that is over is free again", uid=uid)

    # -- facts and decisions -------------------------------------------------------------------------------------------

    def _on_fact(self, stored: Stored) -> None:
        self._seen = max(self._seen, stored.sequence)
        at = parse(stored.subject)
        if at is None or at.kind not in FOLLOWED:
            return
        try:
            fact = decode(stored.body, FOLLOWED[at.kind])
            if name(fact.job, "job") != at.job:
                raise BadMessage(f"a fact of job {fact.job} on {stored.subject}")
            if getattr(fact, "uid", ""):
                name(fact.uid, "uid")  # type: ignore[attr-defined]
        except (BadMessage, InputError) as error:
            self.bad_messages += 1
            log.warning("a fact cannot be used", subject=stored.subject, why=str(error))
            return
        if isinstance(fact, cuts.CheckpointFailed) and self._loaded:
            self._loaded.forget_chains(fact.uid)
        self._state = persisting.evolve(self._state, fact)
        self._decide_soon()

    def _observe(self, observation: persisting.Observation) -> None:
        self._state = persisting.evolve(self._state, observation)
        self._decide_soon()

    def _decide_soon(self) -> None:
        if not self._deciding and self._caught_up and not self._closing:
            self._deciding = True
            self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        self._deciding = False
        if self._closing:
            return
        if self._wake:
            self._wake.cancel()
        for action in persisting.decide(self._state, self._loop.time()):
            match action:
                case Do(task):
                    self._begin(task)
                case CallOff(task):
                    self._called_off[task].set()
                case GiveUp(task, reason):
                    log.error("a cut is not stored", job=task.job, cut=task.cut, step=task.step, why=reason)
                    self._say_failed(task, reason)
                    self._observe(persisting.Done(task))
        wake_s = persisting.next_wake_s(self._state)
        self._wake = self._loop.call_at(wake_s, self._decide_soon) if wake_s is not None else None

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        about = self._state.jobs[task.job]
        self._called_off[task] = threading.Event()
        self._observe(persisting.Begun(task))
        running = self._loop.run_in_executor(
            self._lanes[task.lane], self._carry_out, task, about, self._called_off[task]
        )
        running.add_done_callback(lambda future: self._ended(task, future))

    def _ended(self, task: Task, future: asyncio.Future[HostFact | None]) -> None:
        called_off = self._called_off.pop(task).is_set()
        if self._closing or future.cancelled():
            return
        if future.exception() is not None and called_off:
            self._observe(persisting.CalledOff(task))
            return
        former = self._state.troubles.get(task)
        try:
            fact = future.result()
        except RoverError as error:
            if former is None and error.retry:
                log.warning("will be tried again", job=task.job, cut=task.cut, step=task.step, why=str(error))
            self._observe(persisting.Failed(task, str(error), error.retry, self._loop.time()))
            return
        if former is not None:
            log.info("goes on", job=task.job, cut=task.cut, step=task.step)
        if fact is not None:
            self._say(task.step, task, fact)
        self._observe(persisting.Done(task))
        if task.step == "sweep":
            self._state = persisting.forget(self._state, task.job)

    def _carry_out(self, task: Task, about: JobCheckpoints, called_off: threading.Event) -> HostFact | None:
        return self._tasks.carry_out(task, about, called_off)

    def _say_failed(self, task: Task, reason: str) -> None:
        if task.step in ("digest", "persist", "manifest"):
            fact = cuts.HostPartFailed(step=task.step, reason=reason, **self._tasks.stamp(task))
            self._say(f"{task.step}_failed", task, fact)

    def _say(self, what: str, task: Task, fact: HostFact) -> None:
        """Post a fact. A later life of the daemon says it again, under an id of its own."""
        which = f"{task.uid}.{task.generation}.{task.cut}.{task.part}"
        self._post(fact, f"{what}.{self._daemon}.{which}", task.job)


def _lane(lane: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"rover-{lane}", initializer=_be_humble)


def _be_humble() -> None:
    """Linux sets the priority of a thread alone: training on this host goes first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
