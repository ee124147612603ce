"""The outbox: what leaves after a log append, in order, until it has really left (protocol P18).

Used by shell.py. Facts carry the (log sequence, index) they came from; the log remembers the last one that has left, and a
successor goes on behind it. What waits in memory while FACTS is full or refuses is bounded: facts beyond that are made again from
the log when their turn comes. Buckets are written with absolute values, so repeating is safe, and wait for no fact. Nothing here is
decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from rover_bus.events import subjects
from rover_bus.events.batch import Published
from rover_bus.events.bus import MESSAGE_ID, Bus
from rover_bus.events.codec import encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import BusError, InputError, NotConnected
from rover_bus.events.facts import Fact, JobFact, Position
from rover_bus.events.host_facts import HostFact
from rover_bus.events.later_forms import as_written
from rover_bus.events.leadership import Deposed
from rover_bus.events.logs import get_logger
from rover_bus.events.reading import digest, event_id
from rover_bus.events.streams import FACTS
from rover_bus.events.tenancy import TenantStores, of_account
from rover_bus.events.traces import HEADER as TRACEPARENT

PATIENCE_S = 1.0  # for one answer; the same id makes a repeat harmless
MAX_WAITING = 1_000  # facts held in memory until they can leave; what is behind them is in the log
log = get_logger("rover.outbox")


@dataclass(frozen=True, slots=True)
class FactOut:
    """A fact, and the place in the log that it comes from, with the term that wrote it there: its id is made of them."""

    fact: Fact
    position: Position
    term: int = 0


@dataclass(frozen=True, slots=True)
class PutValue:
    """Write an absolute value into a bucket."""

    bucket: str
    key: str
    value: bytes


Outgoing = FactOut | PutValue


FactsAfter = Callable[[Published, int], AsyncGenerator[FactOut, None]]


class Outbox:
    """Publishes in order, one at a time, and waits for the bus as long as it takes.

    `traceparent`: of which span a fact is part, "" of none.
    `facts_after(left, until)` makes facts again from the log: those behind the last one that has left, up to a batch.
    """

    def __init__(self, bus: Bus, origin: str, source: str, facts_after: FactsAfter) -> None:
        self.bus, self.origin, self.source = bus, origin, source
        self.timeline = 0
        self.writes = 1  # the stack's format: what leaves is in it
        self.traceparent: Callable[[Fact], str] = lambda _: ""
        self.left = Published()  # the last fact that has left
        self._left_on = ""  # its subject
        self._facts_after = facts_after
        self._doubtful = self._troubled = False
        self._tenants = TenantStores()
        self._queue: deque[FactOut] = deque()
        self._owed_until = 0  # facts of batches up to this one wait in the log only; 0: none do
        self._owed = self._making = 0  # so many at least wait there, or are made again just now
        self._values: dict[tuple[str, str], bytes] = {}
        self._wake, self._wake_values = asyncio.Event(), asyncio.Event()

    @property
    def waiting(self) -> int:
        """Facts that have not left, as far as they were counted; 0 only where all have."""
        return len(self._queue) + max(self._owed, int(self._owed_until > 0)) + self._making

    def put(self, items: Sequence[Outgoing]) -> None:
        """Take what leaves because of one batch."""
        for item in items:
            if isinstance(item, PutValue):
                self._values[item.bucket, item.key] = item.value
                self._wake_values.set()
            else:
                self._put_fact(item)

    def _put_fact(self, item: FactOut) -> None:
        if not self._owed_until and len(self._queue) < MAX_WAITING:
            self._queue.append(item)
            self._wake.set()
            return
        if not self._owed and len(self._queue) >= MAX_WAITING:
            log.warning("more facts wait than memory holds: they stay in the log", origin=self.origin)
        self._owed += 1
        self.owe(item.position[0])

    def owe(self, until: int) -> None:
        """Facts behind `left` are to be made again from the log, up to those of batch `until`."""
        self._owed_until = max(self._owed_until, until)
        self._wake.set()

    def recall(self, left: Published, subject: str) -> None:
        """This is what left last, by the leader before."""
        self.left, self._left_on = left, subject

    def doubt(self) -> None:
        """There is a new connection: before anything more leaves, look whether what left last is still there (P21)."""
        self._doubtful = True

    async def run(self) -> None:
        """Publish for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_for_ever())
            tasks.create_task(self._write_values_for_ever())

    # -- facts -----------------------------------------------------------------------------------------------------------

    async def _publish_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.waiting:
                if self._queue:
                    await self._insist(lambda: self._publish(self._queue[0]))
                    self._queue.popleft()
                else:
                    await self._catch_up()

    async def _catch_up(self) -> None:
        """Publish what waits in the log only. What is decided meanwhile comes behind it, and waits in memory again."""
        until, self._owed_until = self._owed_until, 0
        self._making, self._owed = max(self._owed, 1), 0
        log.info("facts are made again from the log", origin=self.origin, after=self.left.batch, until=until)
        await self._insist(lambda: self._publish_from_log(until))
        self._making = 0

    async def _publish_from_log(self, until: int) -> None:
        async with aclosing(self._facts_after(self.left, until)) as facts:
            async for fact in facts:
                await self._insist(lambda fact=fact: self._publish(fact))  # type: ignore[misc]
                self._making = max(self._making - 1, 1)

    async def _publish(self, item: FactOut) -> None:
        await self._look_back()
        bus, fact = of_account(self.bus, item.fact)
        written = as_written(fact, self.writes)
        body = encode(written)
        headers = write_headers(replace(item, fact=written), body, self.origin, self.timeline, self.source)
        if traceparent := self.traceparent(item.fact):
            headers[TRACEPARENT] = traceparent
        subject, name = subject_of(fact), headers[MESSAGE_ID]
        store = partial(bus.append, FACTS, subject, body, headers=headers, timeout_s=PATIENCE_S)
        # The number of a tenant's fact is another stream's: its copy in ours lies behind what left before.
        sequence = self.left.sequence
        try:
            if bus is self.bus:
                sequence = await store()
                self._left_on = subject
            elif not await self._tenants.store(item.fact, store):
                log.error("fact passed over: its tenant's store takes none", id=name, kind=fact.kind())
        except InputError as error:
            log.error("fact passed over: no message holds it", id=name, kind=fact.kind(), why=str(error))
            return
        self.left = Published(item.term, *item.position, sequence)

    # -- values ----------------------------------------------------------------------------------------------------------

    async def _write_values_for_ever(self) -> None:
        while True:
            await self._wake_values.wait()
            self._wake_values.clear()
            while self._values:
                place, value = next(iter(self._values.items()))
                await self._insist(lambda place=place, value=value: self.bus.put(*place, value))  # type: ignore[misc]
                if self._values[place] is value:
                    del self._values[place]

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        delay = 0.02
        while True:
            try:
                await call()
            except BusError as error:
                if not self._troubled and not isinstance(error, NotConnected):
                    log.error(
                        "facts wait: the job goes on",
                        origin=self.origin,
                        waiting=self.waiting,
                        why=str(error),
                    )
                    self._troubled = True
            else:
                if self._troubled:
                    log.warning("facts leave again", origin=self.origin, waiting=self.waiting)
                self._troubled = False
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    # -- what may be lost ------------------------------------------------------------------------------------------------

    async def _look_back(self) -> None:
        """A fact that leaves now would hide that others before it are lost. Raises Deposed, BusError."""
        while self._doubtful:
            self._doubtful = False
            try:
                there = await self.still_there()
            except BusError:
                self._doubtful = True
                raise
            if not there:
                raise Deposed(f"facts of {self.origin} are lost (a power cut?): starting again as a standby")

    async def still_there(self) -> bool:
        """Say whether the broker still has the last fact that we published (P21). Raises BusError."""
        if not self._left_on:
            return True
        sequence = self.left.sequence
        newest = await self.bus.last(FACTS, self._left_on)
        return newest is not None and newest.sequence >= sequence


def write_headers(item: FactOut, body: bytes, origin: str, timeline: int, source: str) -> dict[str, str]:
    """Return the headers of a fact out of a log: its place there and what its body is (checked by `reading.read_fact`)."""
    fact = item.fact
    return Envelope(
        id=event_id(origin, timeline, item.term, item.position),
        type=fact.tag(),
        source=source,
        job=fact.job if isinstance(fact, JobFact) else "",
        term=item.term,
        cause=fact.cause,
        digest=digest(body),
    ).headers()


def subject_of(fact: Fact) -> str:
    """Return where a fact out of a log leaves: by its host, or by its job."""
    if isinstance(fact, HostFact):
        return subjects.host_fact(fact.host, fact.kind())
    assert isinstance(fact, JobFact)
    return subjects.job_fact(fact.job, fact.kind())


class ReadyFacts:
    """Facts that a standby keeps ready, in case the leader dies before they are out. `whole`: none that may wait is missing."""

    def __init__(self) -> None:
        self._facts: deque[FactOut] = deque()
        self.whole = False

    def begin(self, whole: bool) -> None:
        """The log is read from here on; `whole`: from its true beginning."""
        self._facts.clear()
        self.whole = whole

    def learn(self, left: Published, waiting: int) -> None:
        """A batch says what had left when it was written, and how much had not."""
        if not waiting:
            self.begin(whole=True)
        while self._facts and (self._facts[0].term, self._facts[0].position) <= left.place:
            self._facts.popleft()

    def note(self, items: Sequence[Outgoing]) -> None:
        """A batch makes these. Of too many none is kept: they are made again from the log."""
        self._facts.extend(item for item in items if isinstance(item, FactOut))
        if len(self._facts) > MAX_WAITING:
            self.begin(whole=False)

    def after(self, left: Published) -> list[FactOut]:
        """Return what has not left."""
        return [fact for fact in self._facts if (fact.term, fact.position) > left.place]
