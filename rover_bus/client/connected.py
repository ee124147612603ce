"""A session in a thread of its own: what a synchronous training loop talks to when its job is on a bus.

Fed by `session` (in the background thread, with its own event loop); feeds `job` and `reader`, whose threads take batches and say
what is done under one condition, without ever waiting for the loop. They touch the loop only to wake it, about twice a lease.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import msgspec

from rover_bus.client.environment import Environment
from rover_bus.client.group import TrainingGroup, group_of
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.loaded import SpareHost, keep_told, pack_loaded
from rover_bus.client.reader import Stream
from rover_bus.client.session import LEAVE_PATIENCE_S, Session, reason_to_stop
from rover_bus.client.worker import Worker
from rover_bus.events import credentials
from rover_bus.events.bus import Bus
from rover_bus.events.errors import AccessDenied, BusError, Refused, RoverError
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset, JobSpec
from rover_bus.events.own_cores import cores_held
from rover_bus.events.own_use import read_own_seconds, take_own_peak
from rover_bus.events.peaks import Peaks, follow
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.requests import FailureRequest, RoutingTable
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.shared_secret import SharedSecret
from rover_bus.ps.store import Parameters

T = TypeVar("T")
Connect = Callable[[], Awaitable[Bus]]
log = logging.getLogger("rover_bus.client")
REACH_BROKER_S = 30.0  # a member may be started while the broker restarts: that is no fault of the program
CLOSE_S = 2.0  # for the broker connection to be closed at the end
REGISTERED_S = 15.0  # after the submission of a job: the Brain's process tells the broker (cli/registrar.py)
LOOK_EVERY_S = 0.1  # between two looks at a stream that grows
LEAST_FAREWELL_S = 2.0  # a take-over fits in; what is not said in time is only trained again
WONDER_S = 10.0  # after so long without an answer the user is told what we wait for


class JobOver(Refused):
    """The job ended, or needs this worker no more, while the program still wanted something of it."""

    code = "job_ended"


class Connected:
    """One worker's place in a job on a bus. `connect` opens the bus, in our own loop."""

    def __init__(
        self, environment: Environment, nonce: str, pid: int, connect: Connect | None = None
    ) -> None:
        self.worker = Worker(
            environment.member,
            nonce,
            host=environment.host,
            pid=pid,
            external=environment.external,
            cores_held=cores_held(environment.cores),
        )
        self._environment = environment
        self._connect = connect or (lambda: _connect(environment))
        self._condition = threading.Condition()
        self._ready: Future[None] = Future()
        self._error: RoverError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rover-session", daemon=True)
        self._session: Session
        self._bus: Bus
        self._conversation: asyncio.Task[None]
        self._parameters: RemoteParameters | None = None
        self._stream: Stream | None = None
        self._look_at = 0.0
        self._peaks = Peaks[str]()
        self._beside: list[asyncio.Task[None]] = []
        self._leave_by: float | None = None  # how long a drain looks for servers

    # -- the background thread ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and wait for admission. Raises BrokerUnreachable, AccessDenied, Refused."""
        self._thread.start()
        self._ready.result()
        self._wait(lambda: self.worker.joined, f"admission to job {self._environment.job}")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._lose(error)
            if not self._ready.done():
                self._ready.set_exception(error)
            elif not isinstance(error, RoverError):
                raise
        finally:
            self._loop.close()

    def tell_loaded(self) -> None:
        """Have the platform know, over the bus, what is loaded now: spares of the job are made by it."""
        loaded, named = pack_loaded(), self._environment
        if loaded is None:
            return

        def begin() -> None:
            at = SpareHost(self._bus, named.spares_at, named.job, named.uid)
            self._beside.append(asyncio.create_task(keep_told(at, named.member, loaded)))

        self._soon(begin)

    async def _live(self) -> None:
        bus = self._bus = await self._connect()
        try:
            self._session = Session(
                bus,
                self._environment.job,
                self.worker,
                guard=self._condition,
                changed=self._notify,
                clock=time.monotonic,
            )
            self._conversation = asyncio.create_task(self._session.run())
            self._closing = asyncio.Event()
            self._beside.append(asyncio.create_task(follow(self._peaks, read_own_seconds)))
            self._ready.set_result(None)
            closing = asyncio.create_task(self._closing.wait())
            await asyncio.wait({self._conversation, closing}, return_when=asyncio.FIRST_COMPLETED)
            if self._conversation.done() and (error := self._conversation.exception()) is not None:
                self._lose(error)
            await closing
            self._conversation.cancel()
            for each in self._beside:
                each.cancel()
            await asyncio.gather(self._conversation, *self._beside, return_exceptions=True)
        finally:
            await bus.close()

    def _lose(self, error: BaseException) -> None:
        """The conversation broke off for good: what waits learns why."""
        with self._condition:
            self._error = error if isinstance(error, RoverError) else None
            self.worker.over = True
            self._condition.notify_all()

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _soon(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _wait(self, true: Callable[[], bool], what: str, patience_s: float | None = None) -> bool:
        """Wait until something holds; False when patience ends. Raises why this incarnation has ended, if it has."""
        began = time.monotonic()
        told = False
        with self._condition:
            while not true():
                if self.worker.over:
                    raise self._why()
                waited = time.monotonic() - began
                if patience_s is not None and waited >= patience_s:
                    return False
                if waited > WONDER_S and not told:
                    told = True
                    log.warning("still waiting for %s: does a master lead this job?", what)
                self._condition.wait(WONDER_S if patience_s is None else patience_s - waited)
        return True

    def _why(self) -> RoverError:
        end = self.worker.end
        if self._error is not None or (end is not None and reason_to_stop(self.worker) is not None):
            return self._error or end or JobOver("")
        return JobOver(str(end) if end is not None else "this worker was asked to leave its job")

    # -- what a job is made of ---------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> JobSpec:
        return msgspec.convert(self.worker.spec, JobSpec)

    @property
    def draining(self) -> bool:
        return self.worker.draining

    @property
    def retiring(self) -> bool:
        return self.worker.retiring

    @property
    def resting(self) -> bool:
        return self.worker.resting

    def parameters(self) -> Parameters | None:
        """Connect to the job's servers once they are routed; None for a job without servers."""
        self._wait(lambda: self.worker.routing is not None or self.worker.draining, "parameter servers")
        routing = self.worker.routing
        if routing is None:
            raise self._why()
        if not routing.servers:
            return None
        if self._parameters is None:
            secret = SharedSecret(partial(credentials.of_sockets, *_given(self._environment)))
            self._parameters = RemoteParameters(
                routing, secret, refresh=self._refresh, in_flight=self.spec.depth
            )
        return self._parameters

    def _refresh(self, after: RoutingTable, wait_s: float) -> RoutingTable:
        """Wait for routing that replaces `after` (the servers' client calls this). Raises when there will be none."""
        self._soon(self._ask_for_routing)
        with self._condition:
            self._condition.wait_for(lambda: self.worker.newer_routing(after) or self.worker.over, wait_s)
            if self.worker.over:
                raise self._why()
            if self.worker.draining and time.monotonic() >= self._begin_grace():
                raise JobOver(
                    "this worker was asked to leave, and no servers answer: batches that they have not applied are leased again"
                )
            return self.worker.newer_routing(after) or after

    def _begin_grace(self) -> float:
        """Return until when a drain looks for servers; it begins when it is first asked for."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self._environment.grace_s
        return self._leave_by

    def _ask_for_routing(self) -> None:
        with self._condition:
            self.worker.want_routing()
        self._session.wake()

    # -- Assignments ---------------------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Dataset | None:
        """What others had registered when this worker joined."""
        return self.worker.known

    def register(self, dataset: Dataset, file: str, stream: Stream | None = None) -> None:
        """State the data set. Raises Refused with the difference when other workers read other data (S6). `stream`: if it grows."""
        self._stream = stream
        self._look()
        with self._condition:
            self.worker.want(dataset, file)
        self._soon(self._session.wake)
        self._wait(lambda: self.worker.registered or self.worker.draining, "the registration of the data set")

    def take(self, cancelled: Callable[[], bool]) -> Assigned | None:
        worker = self.worker
        while not cancelled():
            self._look()
            with self._condition:
                assigned = worker.take()
                if worker.hungry:
                    self._soon(self._session.wake)
                if assigned is not None or worker.resting:
                    return assigned
                if not cancelled():
                    self._condition.wait(None if self._stream is None else LOOK_EVERY_S)
        return None

    def _look(self) -> None:
        """Learn, in the reader's thread and under no lock, how far a stream has grown: a scan must hold up no heartbeat."""
        if self._stream is None or time.monotonic() < self._look_at:
            return
        seen = self._stream.high_water()
        self._look_at = time.monotonic() + LOOK_EVERY_S
        with self._condition:
            if self.worker.see(seen):
                self._soon(self._session.wake)

    def holds(self, assigned: Assigned) -> bool:
        return self.worker.holds(assigned)

    def group_of(self, assigned: Assigned) -> TrainingGroup:
        return group_of(assigned.group, self.worker.member)

    def finish(self, assigned: Assigned, work: Work, servers: tuple[int, ...] | None) -> None:
        with self._condition:
            if self.worker.finish(assigned, time.monotonic(), work, servers):
                self._soon(self._session.wake)

    def wake(self) -> None:
        self._notify()

    # -- elections, ends -----------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more work. Callable from a signal handler: it only leaves word for the loop."""
        self._begin_grace()
        self._soon(lambda: self._session.drain())

    def elect(self, task: str) -> bool:
        return self._call(self._session.elect(task))

    def conclude(self, task: str, values: dict[str, Any]) -> None:
        if not self._call(self._session.conclude(task, values)) and not self.worker.over:
            log.warning(
                "the result of %r was not taken: since the election the job went back, or this worker is to leave",
                task,
            )

    def leave(self, reason: str) -> None:
        """Commit what is done and say goodbye, unless no master is there."""
        if not self.worker.over:
            self._call(self._session.leave(reason, self._farewell_s()))

    def fail(self, describe: Callable[[Worker], FailureRequest]) -> None:
        if not self.worker.over:
            self._call(self._session.fail(describe(self.worker), self._farewell_s()))

    def _farewell_s(self) -> float:
        """Return how long the last words may take: of a drain, what servers left of its grace."""
        if self._leave_by is None:
            return LEAVE_PATIENCE_S
        return min(max(self._leave_by - time.monotonic(), LEAST_FAREWELL_S), LEAVE_PATIENCE_S)

    def reason_to_stop(self) -> RoverError | None:
        return self._error or reason_to_stop(self.worker)

    def publish(self, make: Callable[[str, Member], WorkerProfile]) -> None:
        """Send a sample, some time soon."""
        profile = make(self._environment.job, self.worker.member)
        profile = profile.replace(cores_peak=take_own_peak(self._peaks))
        self._soon(lambda: self._keep(self._session.publish(profile)))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._sending = asyncio.ensure_future(work)

    def close(self) -> None:
        """End the thread and the connection."""
        if self._thread.is_alive() and self._ready.done() and not self._ready.exception():
            self._soon(lambda: self._closing.set())
        self._thread.join(CLOSE_S)


async def _connect(environment: Environment) -> Bus:
    from rover_bus.events.nats_bus import NatsBus  # only a job on a bus pays for importing nats
    from rover_bus.events.nats_wire import Ways

    began = time.monotonic()
    deadline = began + (0.0 if environment.external else REACH_BROKER_S)
    while True:
        try:
            return await NatsBus.connect(
                environment.url,
                secret=partial(credentials.of_process, *_given(environment)),
                secret_source=environment.secret_file or "ROVER_SECRET_FILE",
                name=f"{environment.job} {environment.member}",
                ways=Ways(direct=True),
            )
        except BusError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.1)
        except AccessDenied:  # of a run that the broker has not been told of yet
            if not environment.credential or time.monotonic() >= began + REGISTERED_S:
                raise
            await asyncio.sleep(0.1)


def _given(environment: Environment) -> tuple[dict[str, str], str]:
    """Return where it stands what this worker shows to its broker, and to its servers (events/credentials.py)."""
    own = {credentials.VARIABLE: environment.credential, credentials.DIRECTORY: environment.member_dir}
    return own, environment.secret_file
