"""The outbox: what leaves after a log append, in order, until it has really left (protocol P18).

Used by shell.py. Facts carry the (log sequence, index) they came from; a successor reads the last one published and goes on after
it. Buckets are written with absolute values, so repeating is safe. Nothing here is decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import BusError, RoverError
from rover_bus.events.facts import JobFact, Position
from rover_bus.events.streams import FACTS

log = structlog.get_logger("rover.outbox")


@dataclass(frozen=True, slots=True)
class PutValue:
    """Write an absolute value into a bucket."""

    bucket: str
    key: str
    value: bytes


Outgoing = JobFact | PutValue


class Outbox:
    """Publishes in order, one at a time, and waits for the bus as long as it takes."""

    def __init__(self, bus: Bus, job: str, source: str) -> None:
        self.bus, self.job, self.source = bus, job, source
        self.history = 0
        self.term = 0
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

    async def _send(self, item: Outgoing) -> None:
        delay = 0.02
        while True:
            try:
                await self._once(item)
                return
            except BusError as error:
                log.info("fact waits for the bus", job=self.job, why=str(error))
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def _once(self, item: Outgoing) -> None:
        if isinstance(item, PutValue):
            await self.bus.put(item.bucket, item.key, item.value)
            return
        position = item.position or (0, 0)
        event_id = f"{self.job}/{self.history}/{position[0]}/{position[1]}"
        headers = Envelope(
            id=event_id, type=item.tag(), source=self.source, job=self.job, term=self.term, cause=item.cause
        ).headers()
        subject = subjects.job_fact(self.job, item.kind())
        await self.bus.append(FACTS, subject, encode(item), headers=headers, message_id=event_id)


async def last_position(bus: Bus, job: str) -> Position:
    """Return the position of the job's last published fact that came out of its log, (0, 0) when there is none.

    Facts are few (not a lease each), so reading the job's own subjects is cheap; the last positioned one is the greatest.
    """
    greatest: Position = (0, 0)
    while True:
        try:
            async for stored in bus.read(FACTS, subjects.job_facts(job)):
                try:
                    fact = decode_any(stored.body)
                except RoverError:
                    continue
                if isinstance(fact, JobFact) and fact.position is not None:
                    greatest = max(greatest, fact.position)
            return greatest
        except BusError:
            await asyncio.sleep(0.05)
