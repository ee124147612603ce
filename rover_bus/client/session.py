"""A worker's session with its job: the asyncio shell around `worker`, over any Bus. The asynchronous API of this library.

Fed by a Bus; feeds training loops, simulated ones directly, real ones through `connected`. It finds the master, joins, registers
the data set, keeps one lease ahead, beats, obeys, leaves; take-overs and broker restarts are its affair alone. It has no thread and
no wall clock of its own: time and sleep are the loop's, so that the same class runs under virtual_time.

    session = Session(bus, "movielens", worker)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(session.run())
        await session.register(dataset)
        while (assigned := await session.take()) is not None:
            ...
            session.finish(assigned)
        await session.leave()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rover_bus.client.lease import NO_REMARK, Assigned, Work
from rover_bus.client.spans import HighWater
from rover_bus.client.worker import Worker
from rover_bus.events import subjects
from rover_bus.events.asking import Master
from rover_bus.events.bus import Bus, Message, Subscription
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import BadMessage, BusError, Refused
from rover_bus.events.facts import MasterElected
from rover_bus.events.job import Dataset
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.requests import (
    ElectReply,
    ElectRequest,
    FailureRequest,
    LeaseRequest,
    RefusedReply,
    Reply,
    RoutingTable,
)

LEAVE_PATIENCE_S = 5.0  # for the last answers when no master leads; then the master learns of our end by our exit or our silence


class Session:
    """One incarnation of a worker on the bus.

    `guard` is held around every use of `worker`, where another thread takes batches; `changed` is called (in the loop, under no
    guard) after every answer that was taken in. Both are for `connected`; simulations leave them alone.
    """

    def __init__(
        self,
        bus: Bus,
        job: str,
        worker: Worker,
        *,
        guard: AbstractContextManager[Any] | None = None,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.worker = worker
        self.job = job
        self._bus = bus
        self._master = Master(bus, job)
        self._guard = guard or nullcontext()
        self._changed = changed
        self._clock = clock or asyncio.get_running_loop().time
        self._woken = asyncio.Event()
        self._news = asyncio.Event()
        self._elected: dict[str, int] = {}  # by task: the generation that it was given in
        self._succeeded = False  # another master leads since the request on its way was sent

    # -- the conversation ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Converse with the master until this incarnation ends: it left, failed, was replaced, or the job ended.

        Raises what no repetition can mend: AccessDenied, UnknownVersion.
        """
        worker = self.worker
        elections = await self._watch_elections()
        try:
            while not worker.over:
                with self._guard:
                    request = worker.next_request(self._clock())
                    wake_s = worker.wake_s()
                if request is None:
                    await self._sleep_until(wake_s)
                    continue
                if isinstance(request, LeaseRequest):
                    reply = await self._ask_for_work(request)
                else:
                    reply = await self._master.ask(request)
                with self._guard:
                    if reply is not None:
                        worker.receive(request, reply, self._clock())
                self._notify()
        finally:
            worker.over = True
            self._notify()
            if elections is not None:
                await elections.stop()

    async def _ask_for_work(self, request: LeaseRequest) -> Reply | None:
        """Return the master's answer, which it may hold back; None when the request was given up for something more urgent."""
        asking = asyncio.create_task(self._master.ask(request))
        asking.add_done_callback(lambda _: self.wake())
        self._succeeded = False
        try:
            while not asking.done():
                with self._guard:
                    if self._succeeded or self.worker.interrupts(request, self._clock()):
                        self.worker.give_up()
                        return None
                    wake_s = self.worker.wake_s()
                await self._sleep_until(wake_s)
            return asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _watch_elections(self) -> Subscription | None:
        """Ask a new master at once what the former held. Only a hint: without it the next heartbeat finds the new one."""

        def observe(message: Message) -> None:
            try:
                elected = decode(message.body, MasterElected)
            except BadMessage:
                return
            if self._master.succeeded(elected.term):
                self._succeeded = True
                self.wake()

        try:
            return await self._bus.subscribe(subjects.job_facts(self.job, "master.elected"), observe)
        except BusError:
            return None

    async def _sleep_until(self, wake_s: float) -> None:
        if self._woken.is_set():
            self._woken.clear()
            return
        try:
            async with asyncio.timeout(max(wake_s - self._clock(), 0.001)):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    def wake(self) -> None:
        """Look again at once what is to be said. From another thread: `loop.call_soon_threadsafe(session.wake)`."""
        self._woken.set()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        self._changed()

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds, or this incarnation has ended."""
        while not true() and not self.worker.over:
            await self._news.wait()

    # -- work ----------------------------------------------------------------------------------------------------------------

    async def joined(self) -> bool:
        """Wait for admission; False when it was refused for good (`worker.end` says why)."""
        await self._until(lambda: self.worker.joined)
        return self.worker.joined

    async def register(self, dataset: Dataset, file: str = "") -> None:
        """State the data set. Raises Refused with the difference when other workers read other data (S6)."""
        self.worker.want(dataset, file)
        self.wake()
        await self._until(lambda: self.worker.registered or self.worker.resting)
        if not self.worker.registered and self.worker.end is not None:
            raise self.worker.end

    def see(self, seen: HighWater) -> None:
        """Tell with the next lease request what of a stream is readable. Its batches say of which `records` they are."""
        with self._guard:
            news = self.worker.see(seen)
        if news:
            self.wake()

    async def take(self) -> Assigned | None:
        """Return the next batch to train, waiting for one; None when there will be none (`worker.end` says why, if not closed)."""
        while True:
            assigned = self.worker.take()
            if self.worker.hungry:
                self.wake()
            if assigned is not None or self.worker.resting:
                return assigned
            await self._news.wait()

    def finish(
        self, assigned: Assigned, work: Work = NO_REMARK, servers: tuple[int, ...] | None = None
    ) -> None:
        """Say that a batch is done: every server has its update."""
        if self.worker.finish(assigned, self._clock(), work, servers):
            self.wake()

    async def routing(self, after: RoutingTable | None = None) -> RoutingTable | None:
        """Return a routing table that replaces `after`, waiting for one; None when this incarnation ends first."""
        while not (newer := self.worker.newer_routing(after)) and not self.worker.over:
            self.worker.want_routing()
            self.wake()
            await self._news.wait()
        return newer

    # -- what one worker does for all ------------------------------------------------------------------------------------------

    async def elect(self, task: str) -> bool:
        """Return True when this worker shall do `task` for all; False when it is done, or no longer our affair. Waits meanwhile."""
        reply = await self._vote(lambda: ElectRequest(**self.worker.who(), task=task))
        if reply is None or reply.outcome != "yours":
            return False
        self._elected[task] = reply.generation
        return True

    async def conclude(self, task: str, values: dict[str, Any]) -> bool:
        """Hand in the result of a task this worker was elected for; False when it was no longer ours to do.

        A result is of the model of the generation in which the election was: where the job went back since, it is of none.
        """
        generation = self._elected.pop(task, self.worker.generation)

        def result() -> ElectRequest | None:
            if self.worker.generation != generation:
                return None
            return ElectRequest(**self.worker.who(), task=task, done=True, values=values)

        reply = await self._vote(result, wait=False)
        return reply is not None and reply.outcome == "done"

    async def _vote(self, make: Callable[[], ElectRequest | None], wait: bool = True) -> ElectReply | None:
        while not (self.worker.over or self.worker.draining):
            if not await self.joined() or (request := make()) is None:
                return None
            reply = await self._master.ask(request)
            if isinstance(reply, ElectReply):
                if reply.outcome != "wait" or not wait:
                    return reply
                await asyncio.sleep(reply.delay_s)
            elif isinstance(reply, RefusedReply):
                with self._guard:
                    self.worker.want_routing()  # the conversation shall learn by a heartbeat what this refusal means
                self.wake()
                await asyncio.sleep(max(reply.retry_s, 0.1))
        return None

    # -- ends --------------------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more work; `leave` follows when the batch in hand is done."""
        with self._guard:
            self.worker.drain()
        self._notify()

    async def leave(self, reason: str = "done", patience_s: float = LEAVE_PATIENCE_S) -> bool:
        """Commit what is done, give back the rest, say goodbye. False when none answered in time: our silence tells it, too."""
        with self._guard:
            self.worker.leave(reason)
        return await self._end(patience_s)

    async def fail(self, failure: FailureRequest, patience_s: float = LEAVE_PATIENCE_S) -> bool:
        """Report an exception of user code with the last progress. False when no master answered in time."""
        with self._guard:
            self.worker.fail(failure)
        return await self._end(patience_s)

    async def _end(self, patience_s: float) -> bool:
        self._notify()
        self.wake()
        try:
            async with asyncio.timeout(patience_s):
                await self._until(lambda: False)
        except TimeoutError:
            return False
        return True

    # -- samples -----------------------------------------------------------------------------------------------------------------

    async def publish(self, profile: WorkerProfile) -> None:
        """Send a sample of how this worker fares; lost when the broker is away, because nothing exact may rest on it."""
        member = self.worker.member
        try:
            await self._bus.publish(
                subjects.member_profile(self.job, member.role, member.index), encode(profile)
            )
        except BusError:
            return


def reason_to_stop(worker: Worker) -> Refused | None:
    """Return why a training loop must not go on as if nothing had happened, None when its end is in order.

    In order: everything is trained, it was asked to leave, its name was given to another incarnation (S3), the job ended.
    """
    if worker.end is None or worker.end.code in ("job_ended", "stale_incarnation"):
        return None
    return worker.end
