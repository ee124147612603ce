"""What the shells of this room share: when a decider is asked, and when the facts that it stands on are all there.

Used by the daemon and its persister, each with a pure decider of its own. Apart from both, because half a history and a decision
asked for twice are the same mistake in either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from rover_bus.events import places
from rover_bus.events.bus import Bus, ConnectionState, Stored, Subscription
from rover_bus.events.consumed import Heard, newest_since
from rover_bus.events.errors import BusError
from rover_bus.events.logs import get_logger
from rover_bus.events.streams import FACTS

AGAIN_S = 0.5
T = TypeVar("T")
log = get_logger("rover.node")


class Turns:
    """Asks a decider once for all that arrives in one turn of the loop, and again at the second that it named.

    `decide` acts, and returns the monotonic second at which it is to be asked again; None: only an event can change anything.
    """

    def __init__(self, decide: Callable[[], float | None]) -> None:
        self._decide = decide
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.TimerHandle | None = None
        self._open = self._asked = False

    def begin(self) -> None:
        """From here on there is something to decide on; asks at once."""
        self._open = True
        self.soon()

    def end(self) -> None:
        """Ask nothing any more."""
        self._open = False
        self._sleep()

    def soon(self) -> None:
        """Something happened: ask at the end of this turn of the loop."""
        if self._open and not self._asked:
            self._asked = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._asked = False
        if not self._open:
            return
        self._sleep()
        wake_s = self._decide()
        if wake_s is not None and self._open:
            self._wake = self._loop.call_at(wake_s, self._take)

    def _sleep(self) -> None:
        if self._wake:
            self._wake.cancel()
            self._wake = None


class Following:
    """The newest fact of each subject, then all that follow. `caught_up`: all that was stored when we began has been heard.

    `on_loss`: the broker has forgotten a tail of what it told us (P21). Seen at a new connection, when the newest that we heard is
    not there any more, or when numbers come again: before the first fact that bears one of them. Then the newest of each subject
    that is left is heard once more: what was forgotten must not be obeyed any longer.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Sequence[str],
        hear: Callable[[Stored], None],
        on_loss: Callable[[], None],
        name: str,
    ) -> None:
        """`name`: under which it says how far it is, so that nothing goes that it has not heard (events/places.py)."""
        self._name = name
        self._bus, self._subjects, self._hear, self._on_loss = bus, list(subjects), hear, on_loss
        self._newest = Heard()
        self._subscription: Subscription | None = None
        self._returned = asyncio.Event()
        self._works: list[asyncio.Task[None]] = []
        self._lost = False
        self.caught_up = False

    async def begin(self) -> None:
        """Follow until everything stored has been heard; bus errors are waited out."""
        self._bus.on_connection(self._on_connection)
        reporting = places.report_for_ever(self._bus, places.of_all(self._name), self._place)
        self._works = [asyncio.create_task(work) for work in (self._look_back_for_ever(), reporting)]
        await self._follow()
        while not self.caught_up:
            self.caught_up = self._newest[0] >= await insist(self._end)
            await asyncio.sleep(0 if self.caught_up else AGAIN_S)

    async def stop(self) -> None:
        """Hear nothing any more."""
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        if self._subscription:
            await self._subscription.stop()

    async def _follow(self) -> None:
        if self._subscription:
            await self._subscription.stop()
        self._newest = Heard()
        self._subscription = await insist(
            lambda: self._bus.follow(FACTS, self._subjects, self._on_fact, start="last_per_subject")
        )

    def _place(self) -> places.Place:
        return places.Place(stream=FACTS, subjects=self._subjects, position=self._newest.sequence)

    async def _end(self) -> int:
        lasts = [await self._bus.last(FACTS, subject) for subject in self._subjects]
        return max((last.sequence for last in lasts if last), default=0)

    def _on_fact(self, stored: Stored) -> None:
        if stored.sequence <= self._newest[0]:
            self._lose(stored.sequence)
            self._lost = True
            self._returned.set()
        self._newest = Heard(stored.sequence, stored.subject, stored.time_ms)
        self._hear(stored)

    def _on_connection(self, state: ConnectionState) -> None:
        if state == "connected":
            self._returned.set()

    async def _look_back_for_ever(self) -> None:
        """A tail goes as a whole: while the newest that we heard is there, so is everything before it."""
        while True:
            await self._returned.wait()
            self._returned.clear()
            if self._lost or not await self._is_there():
                self._lost = False
                await self._follow()

    async def _is_there(self) -> bool:
        """Whether the newest fact that we heard is still there; says so when it is not."""
        while True:
            heard = self._newest
            if not heard.subject:
                return True
            there, present = await insist(lambda heard=heard: newest_since(self._bus, heard))  # type: ignore[misc]
            if self._newest != heard:
                continue  # something newer was heard meanwhile
            if not there:
                self._lose(present)
            return there

    def _lose(self, present: int) -> None:
        log.warning("the broker has forgotten facts (a power cut?)", known=self._newest[0], now=present)
        self._on_loss()


def failing_jobs(
    jobs: Iterable[str],
    decide_without: Callable[[Collection[str]], object],
    report: Callable[[str, Exception], None],
) -> list[str]:
    """Return the jobs on which a decider raises, each reported; it is asked about each of them alone. Raises nothing.

    States are frozen: what raised has changed nothing, and such a job is decided on again in the next turn.
    """
    names, failing = list(jobs), []
    for job in names:
        try:
            decide_without([other for other in names if other != job])
        except Exception as error:  # noqa: BLE001 - it is reported, and takes no other job with it
            failing.append(job)
            report(job, error)
    return failing


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the bus answers it."""
    while True:
        try:
            return await call()
        except BusError as error:
            log.warning("the bus does not answer yet", why=str(error))
            await asyncio.sleep(AGAIN_S)
