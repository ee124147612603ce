"""The outbox: what leaves after a log append, in order, until it has really left (protocol P18).

Used by shell.py. Facts carry the (log sequence, index) they came from; a successor reads the last one published and goes on after
it. Buckets are written with absolute values, so repeating is safe. Nothing here is decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.envelope import MESSAGE_ID, Envelope, read_envelope
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import Fact, JobFact, Position
from rover_bus.events.leadership import Deposed
from rover_bus.events.logs import get_logger
from rover_bus.events.reading import digest, event_id, read_fact
from rover_bus.events.streams import FACTS

PATIENCE_S = 1.0  # for one answer; the same id makes a repeat harmless
log = get_logger("rover.outbox")


@dataclass(frozen=True, slots=True)
class FactOut:
    """A fact, and the place in the log that it comes from, with the term that wrote it there: its id is made of them."""

    fact: JobFact
    position: Position
    term: int = 0


@dataclass(frozen=True, slots=True)
class PutValue:
    """Write an absolute value into a bucket."""

    bucket: str
    key: str
    value: bytes


Outgoing = FactOut | PutValue


class Outbox:
    """Publishes in order, one at a time, and waits for the bus as long as it takes."""

    def __init__(self, bus: Bus, origin: str, source: str) -> None:
        self.bus, self.origin, self.source = bus, origin, source
        self.history = 0
        self._last: tuple[str, int] | None = None  # subject and sequence of the last fact that was stored
        self._doubtful = False
        self._queue: deque[Outgoing] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, items: list[Outgoing]) -> None:
        if items:
            self._queue.extend(items)
            self._idle.clear()
            self._wake.set()

    async def drained(self) -> None:
        """Wait until everything has left."""
        await self._idle.wait()

    async def run(self) -> None:
        """Publish for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._send(self._queue[0])
                self._queue.popleft()
            self._idle.set()

    def recall(self, told: Told) -> None:
        """This is what left last, by whoever led before."""
        if told.subject:
            self._last = told.subject, told.sequence

    def doubt(self) -> None:
        """There is a new connection: before anything more leaves, look whether what left last is still there (P21)."""
        self._doubtful = True

    async def _send(self, item: Outgoing) -> None:
        delay = 0.02
        while True:
            try:
                await self._look_back()
                await self._once(item)
                return
            except BusError as error:
                log.info("fact waits for the bus", origin=self.origin, why=str(error))
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def _once(self, item: Outgoing) -> None:
        if isinstance(item, PutValue):
            await self.bus.put(item.bucket, item.key, item.value)
            return
        fact = item.fact
        body = encode(fact)
        headers = write_headers(item, body, self.origin, self.history, self.source)
        subject = subjects.job_fact(fact.job, fact.kind())
        sequence = await self.bus.append(
            FACTS, subject, body, headers=headers, message_id=headers[MESSAGE_ID], timeout_s=PATIENCE_S
        )
        self._last = (subject, sequence)

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
        if self._last is None:
            return True
        subject, sequence = self._last
        newest = await self.bus.last(FACTS, subject)
        return newest is not None and newest.sequence >= sequence


def write_headers(item: FactOut, body: bytes, origin: str, history: int, source: str) -> dict[str, str]:
    """Return the headers of a fact out of a log: its place there and what its body is (checked by `reading.read_fact`)."""
    fact = item.fact
    return Envelope(
        id=event_id(origin, history, item.term, item.position),
        type=fact.tag(),
        source=source,
        job=fact.job,
        term=item.term,
        cause=fact.cause,
        digest=digest(body),
    ).headers()


class Told(NamedTuple):
    """A published fact: the term whose record made it, where in the log that is, and where it is stored."""

    term: int = 0
    position: Position = (0, 0)
    subject: str = ""
    sequence: int = 0


async def last_told(bus: Bus, subject: str, position_of: Callable[[Fact], Position | None]) -> Told:
    """Return the newest published fact that came out of a log; one of term 0 when there is none.

    Terms come first: where a log lost its tail in a power cut, later facts bear lower positions (P21). `position_of` tells the
    facts of that log from those of others. Facts are few (not a lease each), so reading them is cheap.
    """
    while True:
        greatest = Told()
        try:
            async for stored in bus.read(FACTS, subject):
                try:
                    fact = read_fact(stored)
                except RoverError:
                    continue
                if (position := position_of(fact)) is not None:
                    term = read_envelope(stored.headers).term
                    greatest = max(greatest, Told(term, position, stored.subject, stored.sequence))
            return greatest
        except BusError:
            await asyncio.sleep(0.05)
