"""Spans of one log, beside its shell: records in as they are replayed or released, spans out once this process leads.

Used by shell.py where traces are on; the decider's neighbour (`SpanMaker`) knows what the records mean. A record that is replayed
makes no span: the process that appended it did. What began before the first record that is replayed (a snapshot hides it) is read
from the facts that the log made, once, beside everything else; what ends meanwhile waits for that, bounded. Spans may be lost with
the process that would have made them; none is made twice, and nothing waits for any.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self

from rover_bus.events import traces
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BadMessage, BusError
from rover_bus.events.fact import Fact, Position, Record
from rover_bus.events.logs import get_logger
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS
from rover_bus.events.traces import Context, TraceSpan

MOST_WAITING = 4096  # records that wait while older facts are read; more are passed over
SLACK_MS = 1000  # between the clocks of broker and writer, of what does not say where in a log it came from
AGAIN_S, TRIES = 0.5, 20  # to read older facts
log = get_logger("rover.traces")


class SpanMaker(Protocol):
    """What makes spans of the records of one log. Pure."""

    @property
    def recalled(self) -> list[str]:
        """The subjects of the facts that tell what is open."""

    def take(self, record: Record, time_ms: int) -> list[TraceSpan]:
        """Take a record in, behind its evolution; return what ended with it."""

    def older(self) -> Self:
        """Return a maker for what lies before the first record that was taken."""

    def recall(self, older: Any) -> None:
        """Take over what that one has open."""

    def context_of(self, fact: Fact) -> Context | None:
        """Return what a fact is part of, as it goes out."""


class LogTracer:
    """The spans of one log, as one process of its service makes them."""

    def __init__(self, bus: Bus, maker: SpanMaker, position_of: Callable[[Fact], Position | None]) -> None:
        """`position_of`: where in this log a fact came from, None when it came from elsewhere."""
        self._bus, self._maker, self._position_of = bus, maker, position_of
        self._first = (0, 0)  # the first batch that was read or written here, and when it was written
        self._recalled = False
        self._waiting = deque[tuple[Record, int]](maxlen=MOST_WAITING)
        self._broken = False

    def replayed(self, record: Record, sequence: int, time_ms: int) -> None:
        """Another process appended this, and made its spans."""
        self._first = self._first if self._first[0] else (sequence, time_ms)
        self._take(record, time_ms)

    def released(self, records: Sequence[Record], sequence: int, time_ms: int) -> None:
        """These are stored, and are ours."""
        self._first = self._first if self._first[0] else (sequence, time_ms)
        if not self._recalled:
            self._waiting.extend((record, time_ms) for record in records)
            return
        for record in records:
            self._let_go(record, time_ms)

    def _let_go(self, record: Record, time_ms: int) -> None:
        for span in self._take(record, time_ms):
            traces.emit(span)

    def _take(self, record: Record, time_ms: int) -> list[TraceSpan]:
        """A mistake of ours in here costs spans, and no job."""
        if self._broken:
            return []
        try:
            return self._maker.take(record, time_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on without spans
            log.error("makes no spans any more", of=type(record).__name__, why=repr(error))
            self._broken = True
            return []

    def traceparent(self, fact: Fact) -> str:
        """Return what the header of a fact says that goes out now, "" where it is part of nothing."""
        context = self._maker.context_of(fact)
        return "" if context is None else context.traceparent

    async def run(self) -> None:
        """Learn what is open since before the log's first record that was read, then let spans go; then there is nothing to do."""
        older = LogTracer(self._bus, self._maker.older(), self._position_of)
        for fact, time_ms in await self._read():
            older._take(fact, time_ms)
        self._maker.recall(older._maker)
        self._recalled = True
        while self._waiting:
            self._let_go(*self._waiting.popleft())

    async def _read(self) -> list[tuple[Fact, int]]:
        for _ in range(TRIES):
            try:
                stored = [
                    each
                    for subject in self._maker.recalled
                    async for each in self._bus.read(FACTS, subject)
                    if each.time_ms <= self._first[1] + SLACK_MS
                ]
            except BusError:
                await asyncio.sleep(AGAIN_S)
            else:
                return list(self._older(sorted(stored, key=lambda each: each.sequence)))
        log.warning("what spans are open is not known: the broker does not hand out facts")
        return []

    def _older(self, found: Sequence[Stored]) -> Iterator[tuple[Fact, int]]:
        """Those of facts that this log made before its first batch here, or that came from elsewhere before it."""
        for stored in found:
            with suppress(BadMessage):
                fact = read_fact(stored)
                position = self._position_of(fact)
                if position is None or position[0] < self._first[0]:
                    yield fact, stored.time_ms


def tracer_of(bus: Bus, make: Callable[[Any], SpanMaker] | None, decider: Any) -> LogTracer | None:
    """Return what traces a log; None where traces are off, or nothing makes spans of it."""
    return LogTracer(bus, make(decider), decider.position_of) if make is not None and traces.is_on() else None
