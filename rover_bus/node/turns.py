"""What the shells of this room share: when a decider is asked, and when the facts that it stands on are all there.

Used by the daemon and its persister, each with a pure decider of its own. Apart from both, because half a history and a decision
asked for twice are the same mistake in either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from rover_bus.events import positions
from rover_bus.events.bus import Bus, ConnectionState, Start, Stored, Subscription
from rover_bus.events.consumed import LastObserved, newest_since
from rover_bus.events.deciding import Decider, Turn
from rover_bus.events.errors import BusError
from rover_bus.events.host_facts import HostFact, HostTurnFailed
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import matches, of_tenant

AGAIN_S = 0.5
_HEARD: ContextVar[float | None] = ContextVar("heard", default=None)
E = TypeVar("E")
T = TypeVar("T")
log = get_logger("rover.node")


def heard_s() -> float | None:
    """Return when the first fact of the present turn was received, in seconds of the loop; None: it is of none."""
    return _HEARD.get()


class Turns:
    """Asks a decider once for all that arrives in one turn of the loop, and again at the second that it named.

    `decide` acts, and returns the monotonic second at which it is to be asked again; None: only an event can change anything.
    """

    def __init__(self, decide: Callable[[], float | None]) -> None:
        self._decide = decide
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.TimerHandle | None = None
        self._open = self._asked = False
        self._heard_s: float | None = None

    def begin(self) -> None:
        """From here on there is something to decide on; asks at once."""
        self._open = True
        self.soon()

    def end(self) -> None:
        """Ask nothing any more."""
        self._open = False
        self._sleep()

    def soon(self, heard_s: float | None = None) -> None:
        """Something happened: ask at the end of this turn of the loop. heard_s: when a fact of it was received."""
        if self._open and self._heard_s is None:
            self._heard_s = heard_s
        if self._open and not self._asked:
            self._asked = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._asked = False
        if not self._open:
            return
        self._sleep()
        heard_s, self._heard_s = self._heard_s, None
        token = _HEARD.set(heard_s)
        try:
            wake_s = self._decide()
        finally:
            _HEARD.reset(token)
        if wake_s is not None and self._open:
            self._wake = self._loop.call_at(wake_s, self._take)

    def _sleep(self) -> None:
        if self._wake:
            self._wake.cancel()
            self._wake = None


class Following:
    """The newest fact of each subject, then all that follow. `caught_up`: all that was stored when we began has been received.

    `on_loss`: the broker has forgotten a tail of what it delivered (P21). Seen at a new connection, when the newest received is
    not there any more, or when numbers come again: before the first fact that bears one of them. Then the newest of each subject
    that is left is received once more: what was forgotten must not be obeyed any longer.
    """

    start: Start = "last_per_subject"

    def __init__(
        self,
        bus: Bus,
        subjects: Sequence[str],
        receive: Callable[[Stored], None],
        on_loss: Callable[[], None],
        name: str,
    ) -> None:
        """`name`: under which it reports how far it is, so that nothing goes that it has not received (events/positions.py)."""
        self._name = name
        self._bus, self._subjects, self._receive, self._on_loss = bus, list(subjects), receive, on_loss
        self._newest = LastObserved()
        self._subscription: Subscription | None = None
        self._returned = asyncio.Event()
        self._works: list[asyncio.Task[None]] = []
        self._lost = False
        self.caught_up = False

    async def begin(self) -> None:
        """Follow until everything stored has been received; bus errors are waited out."""
        self._bus.on_connection(self._on_connection)
        reporting = positions.report_for_ever(self._bus, positions.of_all(self._name), self._read_to)
        self._works = [asyncio.create_task(work) for work in (self._look_back_for_ever(), reporting)]
        await self._follow()
        while not self.caught_up:
            self.caught_up = self._newest[0] >= await insist(self._end)
            await asyncio.sleep(0 if self.caught_up else AGAIN_S)

    async def stop(self) -> None:
        """Receive nothing any more."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        if self._subscription:
            await self._subscription.stop()

    async def _follow(self) -> None:
        if self._subscription:
            await self._subscription.stop()
        self._newest = LastObserved()
        self._subscription = await insist(
            lambda: self._bus.follow(FACTS, self._subjects, self._on_fact, start=self.start)
        )

    def _read_to(self) -> positions.FollowerPosition:
        return positions.FollowerPosition(
            stream=FACTS, subjects=self._subjects, position=self._newest.sequence
        )

    async def _end(self) -> int:
        """Return the newest of what is followed. Of a stack without tenants there is nothing under half of the subjects."""
        asked = self._subjects
        if await self._bus.last(FACTS, of_tenant("*", ">")) is None:
            asked = [each for each in asked if not matches(of_tenant("*", ">"), each)]
        lasts = [await self._bus.last(FACTS, subject) for subject in asked]
        return max((last.sequence for last in lasts if last), default=0)

    def _on_fact(self, stored: Stored) -> None:
        if stored.sequence <= self._newest[0]:
            self._lose(stored.sequence)
            self._lost = True
            self._returned.set()
        self._newest = LastObserved(stored.sequence, stored.subject, stored.time_ms)
        self._receive(stored)

    def _on_connection(self, state: ConnectionState) -> None:
        if state == "connected":
            self._returned.set()

    async def _look_back_for_ever(self) -> None:
        """A tail goes as a whole: while the newest that we received is there, so is everything before it."""
        while True:
            await self._returned.wait()
            self._returned.clear()
            if self._lost or not await self._is_there():
                self._lost = False
                await self._follow()

    async def _is_there(self) -> bool:
        """Whether the newest fact that we received is still there; reports it when it is not."""
        while True:
            newest = self._newest
            if not newest.subject:
                return True
            there, present = await insist(lambda newest=newest: newest_since(self._bus, newest))  # type: ignore[misc]
            if self._newest != newest:
                continue  # something newer was received meanwhile
            if not there:
                self._lose(present)
            return there

    def _lose(self, present: int) -> None:
        log.warning("the broker has forgotten facts (a power cut?)", known=self._newest[0], now=present)
        self._on_loss()


def decide_turn(
    decider: Decider[object, Turn, E], now_s: float, jobs: Iterable[str], failing: FailingJobs
) -> Sequence[E]:
    """Return the effects of a Turn. Jobs on which the decider raises are reported and left out, each asked alone.

    Raises what the decider raises where no job alone is to blame. States are frozen: what raised has changed nothing, and such a
    job is decided on again in the next turn.
    """
    try:
        return decider.decide(Turn(), now_s).effects
    except Exception:  # noqa: BLE001 - whose it is, is found now
        names, left_out = list(dict.fromkeys(jobs)), list[str]()
        for job in names:
            try:
                decider.decide(Turn(frozenset(names) - {job}), now_s)
            except Exception as error:  # noqa: BLE001 - it is reported, and takes no other job with it
                left_out.append(job)
                failing.note(job, error)
        return decider.decide(Turn(frozenset(left_out)), now_s).effects


class FailingJobs:
    """Jobs that a decider could not decide on: each is published once an error, and tried again in every turn."""

    def __init__(self, host: str, what: str, post: Callable[[HostFact, str, str], None]) -> None:
        """`what`: begins the message ids. `post`: fact, what makes its message id, job."""
        self._host, self._what, self._post = host, what, post
        self._known: dict[str, str] = {}

    def note(self, job: str, error: Exception) -> None:
        if self._known.get(job) == repr(error):
            return
        self._known[job] = repr(error)
        log.error("cannot decide on a job: it stays as it is", job=job, why=repr(error))
        fact = HostTurnFailed(host=self._host, job=job, why=repr(error)[:500])
        self._post(fact, f"{self._what}.{job}.{len(self._known)}", job)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the bus answers it."""
    while True:
        try:
            return await call()
        except BusError as error:
            log.warning("the bus does not answer yet", why=str(error))
            await asyncio.sleep(AGAIN_S)


async def ends_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do a work; False where `stop` came first: it is called off then. Raises what it raised."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


async def run_until(stop: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Let tasks that never end run until `stop`. Raises what one of them raised."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()  # a task that ends is an error of ours: say it instead of living on without it
    finally:
        stopped.cancel()
