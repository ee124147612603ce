"""Readers that outlive their consumers: followers of streams and watches of buckets over plain push consumers.

Fed by nats_bus.py with a `Wire` and told to `attach` at every new connection; feed handlers. The server's consumer is a
throwaway: after a lost connection, a gap or silence a new one starts behind the last message that was handed over, so that
none comes twice and none is lost (nats-py's own ordered consumers and KV watches resume 12 to 19 s after a restart).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from rover_bus.events.bus import Entry, Start, Stored
from rover_bus.events.errors import BusTimeout, RoverError
from rover_bus.events.nats_jetstream import (
    STATUS,
    TTL,
    Ack,
    ApiAnswer,
    bucket_stream,
    consumer_config,
    heartbeat,
    read_entry,
    read_ttl,
)
from rover_bus.events.nats_wire import Raw, StoredBatch, Ways
from rover_bus.events.subjects import matches

HEARTBEAT_S = 5.0
SILENT_TICKS = 12  # this many ticks of about a second without a heartbeat: the consumer is gone
FIRST_LOOK_S = 0.02  # after the end of a time to live, and twice as long each time up to LAST_LOOK_S
LAST_LOOK_S = 0.25
SNAPSHOT_TIMEOUT_S = 5.0
LOOK_S = 0.25  # between looks for what is new, where no consumer tells


class Wire(Protocol):
    """What a reader needs of the connection."""

    @property
    def ways(self) -> Ways:
        """Whether it reads without consumers."""

    def delivery_inbox(self) -> str:
        """Return a subject of its own for what a consumer delivers."""

    async def listen(self, subject: str, callback: Callable[[Raw], None]) -> Callable[[], Awaitable[None]]:
        """Subscribe on the present connection only; return what ends it."""

    async def api(self, call: str, body: dict[str, Any] | None, what: str) -> ApiAnswer:
        """Call JetStream's API."""

    async def stored(self, stream: str, wanted: dict[str, Any], what: str) -> Stored | None:
        """Return the one stored message that is wanted."""

    async def batch(self, stream: str, wanted: dict[str, Any], what: str) -> StoredBatch:
        """Return stored messages in order, without a consumer."""

    async def newest(self, stream: str, subject: str) -> Stored | None:
        """Return the last message on a subject."""

    def send(self, subject: str, body: bytes) -> None:
        """Publish soon."""

    def mend(self, reader: NatsFollower) -> None:
        """Attach the reader again, and again until it succeeds."""


class NatsFollower:
    """Hands over the messages of a stream in order. `position` is the sequence of the last one handed over."""

    def __init__(
        self,
        wire: Wire,
        stream: str,
        subjects: list[str],
        handler: Callable[[Stored], None],
        start: Start | int,
    ) -> None:
        self.silent_ticks = 0
        self.position = start - 1 if isinstance(start, int) else 0
        self._wire = wire
        self._stream = stream
        self._subjects = subjects
        self._handler = handler
        self._start: Start | int = start
        self._attempt = 0  # counts consumers: what a former one still delivers is void
        self._expected = 1  # the consumer's own next sequence: a gap in it is a lost message
        self._unlisten: Callable[[], Awaitable[None]] | None = None

    async def attach(self) -> None:
        """Create a consumer that starts behind what was handed over. Raises BusError; may be repeated."""
        await self.stop()
        if self.position > 0 and "opt_start_seq" in self._policy():
            await self._step_back()
        self._expected, self.silent_ticks = 1, 0
        if self._wire.ways.direct:
            await self._attach_directly()
            return
        try:
            self._attached(await self._make_consumer())
        except BusTimeout:  # it may be there: what it delivers is not listened to any more
            await self.stop()
            self._attached(await self._make_consumer())

    async def _make_consumer(self) -> ApiAnswer:
        inbox = self._wire.delivery_inbox()
        self._unlisten = await self._wire.listen(inbox, partial(self._receive, self._attempt))
        config = consumer_config(
            self._subjects, deliver_subject=inbox, **self._policy(), **heartbeat(HEARTBEAT_S)
        )
        return await self._wire.api(
            f"CONSUMER.CREATE.{self._stream}",
            {"stream_name": self._stream, "config": config},
            f"follow {', '.join(self._subjects)}",
        )

    async def stop(self) -> None:
        """Let go of the consumer; the server removes it when it has no listener."""
        self._attempt += 1
        unlisten, self._unlisten = self._unlisten, None
        if unlisten is not None:
            await unlisten()

    def _policy(self) -> dict[str, Any]:
        start = self._start
        if start == "new" or (start == "last_per_subject" and self.position == 0):
            return {"deliver_policy": start}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.position + 1}

    def _attached(self, created: ApiAnswer) -> None:
        if self._start == "new":
            # From here on a place, not "new" again: what is stored while we are away must come.
            self.position = max(self.position, created.delivered.stream_seq)
        if self._start != "last_per_subject":
            self._start = self.position + 1

    async def _step_back(self) -> None:
        """A power cut may have taken messages that were already handed over; their numbers will be used again."""
        present = await self._wire.api(f"STREAM.INFO.{self._stream}", None, f"look at {self._stream}")
        self.position = min(self.position, present.state.last_seq)

    async def _attach_directly(self) -> None:
        """Look again and again: no consumer is made, which would deliver to whatever subject its maker names."""
        if self._start == "new":
            present = await self._wire.api(f"STREAM.INFO.{self._stream}", None, f"look at {self._stream}")
            self._start = self.position = present.state.last_seq
        await self._catch_up(self._attempt)
        looking = asyncio.get_running_loop().create_task(self._go_on_looking(self._attempt))

        async def end() -> None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

        self._unlisten = end

    async def _go_on_looking(self, attempt: int) -> None:
        while attempt == self._attempt:
            await asyncio.sleep(LOOK_S)
            try:
                await self._catch_up(attempt)
            except RoverError:
                if attempt == self._attempt:
                    self._give_up()

    async def _catch_up(self, attempt: int) -> None:
        """Hand over what was stored behind the last one, to the leader's end: batches come from replicas that may lag."""
        what, filtered = f"follow {', '.join(self._subjects)}", covering(self._subjects)
        while attempt == self._attempt:
            first = await self._wire.stored(self._stream, self._behind(filtered), what)
            if first is None:
                break
            self._take_found(attempt, [first])
            found, _ = await self._wire.batch(self._stream, self._behind(filtered), what)
            self._take_found(attempt, found)
        if attempt == self._attempt:
            self.silent_ticks = 0
            self._complete()

    def _behind(self, filtered: str) -> dict[str, Any]:
        return {"seq": self.position + 1, "next_by_subj": filtered}

    def _take_found(self, attempt: int, found: list[Stored]) -> None:
        for stored in found:
            if attempt == self._attempt and stored.sequence > self.position:
                self.position = stored.sequence
                if any(matches(each, stored.subject) for each in self._subjects):
                    self._take(stored)

    def _receive(self, attempt: int, raw: Raw) -> None:
        if attempt != self._attempt:
            return
        self.silent_ticks = 0
        if raw.headers and STATUS in raw.headers:
            self._receive_status(raw, raw.headers)
            return
        ack = Ack(raw.reply)
        if ack.consumer_sequence != self._expected:
            self._give_up()
            return
        self._expected += 1
        if ack.stream_sequence > self.position:
            self.position = ack.stream_sequence
            self._take(Stored(ack.stream_sequence, raw.subject, raw.data, raw.headers or {}, ack.time_ms))
        if ack.pending == 0:
            self._complete()

    def _receive_status(self, raw: Raw, headers: dict[str, str]) -> None:
        if headers[STATUS] != "100":  # consumer deleted, leadership changed, ...
            self._give_up()
        elif raw.reply:
            self._wire.send(raw.reply, b"")  # flow control
        elif headers.get("Nats-Last-Consumer", str(self._expected - 1)) != str(self._expected - 1):
            self._give_up()
        else:
            if stalled := headers.get("Nats-Consumer-Stalled"):
                self._wire.send(stalled, b"")
            self._complete()  # the consumer is idle: it has delivered all there is

    def _give_up(self) -> None:
        self._attempt += 1
        self._wire.mend(self)

    def _take(self, stored: Stored) -> None:
        self._handler(stored)

    def _complete(self) -> None:
        """All that was stored has been delivered."""


def covering(subjects: list[str]) -> str:
    """Return one filter that takes all that any of these takes: a direct get knows one."""
    if len(subjects) == 1:
        return subjects[0]
    split = [subject.split(".") for subject in subjects]
    least = min(len(tokens) for tokens in split) - 1
    common = next((place for place in range(least) if len({tokens[place] for tokens in split}) > 1), least)
    return ".".join([*split[0][:common], ">"])


class NatsWatch(NatsFollower):
    """Hands over the entries of a bucket. It always starts from the present values and says what has gone.

    Expiries are silent (buckets carry no markers), so it looks for itself when a time to live is over.
    """

    def __init__(self, wire: Wire, bucket: str, key: str, handler: Callable[[Entry], None]) -> None:
        super().__init__(wire, bucket_stream(bucket), [f"$KV.{bucket}.{key}"], self._note, "last_per_subject")
        self._bucket = bucket
        self._notify = handler
        self._known: dict[
            str, tuple[int, int]
        ] = {}  # key -> (revision, time): a bucket made again repeats revisions
        self._seen: set[str] | None = set()  # keys of the present snapshot, None once it is complete
        self._ready = asyncio.Event()
        self._due: dict[str, float] = {}  # key -> loop time at which to look whether it has expired
        self._patience: dict[str, float] = {}
        self._alarm: asyncio.Handle | None = None
        self._alarm_s = math.inf  # its loop time: uvloop's handle of a time that has passed does not say it
        self._looking: asyncio.Task[None] | None = None
        self._confirming: asyncio.Task[None] | None = None

    async def attach(self) -> None:
        self.position, self._seen = 0, set()
        await super().attach()

    async def present(self) -> None:
        """Wait until the present values have been handed over."""
        try:
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise BusTimeout(
                f"bucket {self._bucket} did not show its values within {SNAPSHOT_TIMEOUT_S:g} s: "
                "its broker starts, or elects a leader, so repeat it"
            ) from None

    async def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for task in (self._looking, self._confirming):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        await super().stop()

    def _policy(self) -> dict[str, Any]:
        return {"deliver_policy": "last_per_subject"}

    def _attached(self, created: ApiAnswer) -> None:
        if created.num_pending == 0 and created.delivered.consumer_seq == 0:
            self._complete()
        self._set_alarm()

    def _note(self, stored: Stored) -> None:
        entry = read_entry(self._bucket, stored)
        if self._seen is not None:
            self._seen.add(entry.key)
        if entry.value is None:
            self._forget(entry)
            return
        mark = (entry.revision, stored.time_ms)
        if self._known.get(entry.key) == mark:
            return
        self._known[entry.key] = mark
        self._expect_end(entry.key, stored)
        self._notify(entry)

    def _forget(self, entry: Entry) -> None:
        self._due.pop(entry.key, None)
        self._patience.pop(entry.key, None)
        if self._known.pop(entry.key, None) is not None:
            self._notify(entry)

    def _complete(self) -> None:
        if self._seen is None:
            return
        if self._wire.ways.direct:  # the leader has been asked
            self._settle()
        elif self._confirming is None or self._confirming.done():
            self._confirming = asyncio.get_running_loop().create_task(self._confirm(self._attempt))

    async def _confirm(self, attempt: int) -> None:
        """Settle once all that the stream's leader has is here: the replica on which the consumer lies may lag."""
        while attempt == self._attempt and self._seen is not None:
            try:
                newest = await self._wire.newest(self._stream, self._subjects[0])
            except RoverError:
                await asyncio.sleep(LAST_LOOK_S)
                continue
            if newest is None or newest.sequence <= self.position:
                break
            await asyncio.sleep(FIRST_LOOK_S)
        if attempt == self._attempt:
            self._settle()

    def _settle(self) -> None:
        """Say what has gone, and that the present values are here."""
        if self._seen is None:
            return
        seen, self._seen = self._seen, None
        for key in [key for key in self._known if key not in seen]:
            self._forget(Entry(key, None, self._known[key][0]))
        self._ready.set()

    # Expiry

    def _expect_end(self, key: str, stored: Stored) -> None:
        self._due.pop(key, None)
        self._patience.pop(key, None)
        ttl_s = read_ttl(stored.headers.get(TTL, ""))
        if ttl_s is None:
            return
        # The broker's clock may differ from ours: never later than a whole time to live from now, and looking early costs little.
        left_s = min(ttl_s, max(0.0, ttl_s - (time.time() - stored.time_ms / 1000)))
        self._due[key] = asyncio.get_running_loop().time() + left_s
        if self._alarm is None or self._due[key] < self._alarm_s:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        first_s = min(self._due.values(), default=math.inf)
        self._alarm, self._alarm_s = None, first_s
        if self._due:
            self._alarm = asyncio.get_running_loop().call_at(first_s, self._look)

    def _look(self) -> None:
        self._alarm = None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_at_overdue())

    async def _look_at_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        for key in [key for key, due in self._due.items() if due <= loop.time()]:
            known = self._known.get(key)
            patience = self._patience.get(key, FIRST_LOOK_S)
            try:
                present = await self._wire.newest(self._stream, f"$KV.{self._bucket}.{key}")
            except RoverError:
                patience, present = LAST_LOOK_S, None
            else:
                if present is None and known is not None and self._known.get(key) == known:
                    self._forget(Entry(key, None, known[0]))
            if key in self._due and self._known.get(key) == known:
                self._due[key] = loop.time() + patience
                self._patience[key] = min(2 * patience, LAST_LOOK_S)
        self._set_alarm()
