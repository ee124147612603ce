"""The Bus in memory: what services use in simulations and in tests that need no real broker.

Fed by services through the port (bus.py); feeds the broker in memory_broker.py, where streams, weather and crashes are. It is
apart from it as a client is apart from a server: this half only waits for answers. Behaviour that a service can see
is the same as that of nats_bus.py; one suite of tests runs on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rover_bus.events.bus import (
    NO_HEADERS,
    ConnectionState,
    Entry,
    Headers,
    Message,
    Start,
    Stored,
    Subscription,
)
from rover_bus.events.errors import BusError, BusTimeout, InputError, NotConnected
from rover_bus.events.looks import watched_entries
from rover_bus.events.memory_broker import MemoryBroker, settle
from rover_bus.events.memory_links import CALM, Faults, Link, MemoryFollower, MemoryInterest, MemoryWatch
from rover_bus.events.memory_store import MemoryStream
from rover_bus.events.streams import BucketSpec, StreamSpec
from rover_bus.events.subjects import DEFAULT_TENANT, matches

__all__ = ["CALM", "Faults", "MemoryBroker", "MemoryBus"]

CALL_TIMEOUT_S = 5.0
MAX_PAYLOAD_BYTES = 8 << 20  # as the embedded broker is configured, headers counted
LEAST_TTL_S = 1.0  # the server's least time to live
T = TypeVar("T")


@dataclass(slots=True)
class _Stop:
    """Something that delivers until it is stopped."""

    end: Callable[[], None]

    async def stop(self) -> None:
        self.end()


class MemoryBus:
    """One connection to a MemoryBroker. Made by `MemoryBroker.connect`."""

    def __init__(self, broker: MemoryBroker, link: Link) -> None:
        self._broker = broker
        self._link = link

    @property
    def connected(self) -> bool:
        return self._link.state == "connected"

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def max_payload_bytes(self) -> int:
        return MAX_PAYLOAD_BYTES

    @property
    def tenant(self) -> str:
        return DEFAULT_TENANT

    def of(self, tenant: str) -> MemoryBus:
        """Return itself: there is one account. Raises InputError for a tenant that has another."""
        if tenant != DEFAULT_TENANT:
            raise InputError(f"there is no tenant {tenant!r} on a bus in memory")
        return self

    def on_connection(self, listener: Callable[[ConnectionState], None]) -> None:
        self._link.listeners.append(listener)

    async def ensure(self, streams: Iterable[StreamSpec], buckets: Iterable[BucketSpec]) -> None:
        """Create the streams and buckets that are not there yet."""
        declared = (list(streams), list(buckets))
        await self._call(lambda: self._broker.ensure(*declared), "ensure streams")

    async def publish(self, subject: str, body: bytes, headers: Headers = NO_HEADERS) -> None:
        self._require()
        _check_payload(subject, body, headers)
        self._broker.up(self._link, self._broker.publish, subject, body, headers)

    async def subscribe(
        self, subject: str, handler: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        self._require()
        link, broker = self._link, self._broker
        number = broker.add_interest(link, MemoryInterest(link, subject, queue, handler))
        return _Stop(lambda: broker.remove_interest(link, number))

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        self._require()
        _check_payload(subject, body, headers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._broker.up(self._link, self._broker.request, self._link, answer, subject, body, headers)
        return await self._wait(answer, timeout_s, subject)

    async def serve(
        self,
        _service: str,
        endpoints: Mapping[str, Callable[[Message], None]],
        *,
        metadata: Headers = NO_HEADERS,  # noqa: ARG002 - the port's keyword: tools ask a real broker for it
    ) -> Subscription:
        self._require()
        link, broker = self._link, self._broker
        numbers = [
            broker.add_interest(link, MemoryInterest(link, subject, "q", handler))
            for subject, handler in endpoints.items()
        ]

        def end() -> None:
            for number in numbers:
                broker.remove_interest(link, number)

        return _Stop(end)

    async def append(
        self,
        stream: str,
        subject: str,
        body: bytes,
        *,
        headers: Headers = NO_HEADERS,
        expected_last: int | None = None,
        timeout_s: float = 5.0,
    ) -> int:
        written = dict(headers)
        _check_payload(subject, body, written)

        def store() -> int:
            kept = self._stream(stream)
            if not any(matches(pattern, subject) for pattern in kept.spec.subjects):
                raise BusError(f"stream {stream} does not take {subject}: look at streams.py")
            sequence = self._broker.store(kept, subject, body, written, expected_last)
            self._broker.route(subject, body, written, None, None)
            return sequence

        return await self._call(store, f"append to {subject}", timeout_s=timeout_s, write=True)

    async def read(self, stream: str, subject: str, *, first: int = 1) -> AsyncIterator[Stored]:
        def select() -> list[Stored]:
            return list(self._stream(stream).select([subject], first))

        for message in await self._call(select, f"read {subject}"):
            yield message

    async def last(self, stream: str, subject: str) -> Stored | None:
        def newest() -> Stored | None:
            found = self._stream(stream).newest([subject])
            return found[-1] if found else None

        return await self._call(newest, f"read the tail of {subject}")

    async def count(self, stream: str, subject: str, *, first: int = 1) -> int:
        return await self._call(lambda: self._stream(stream).count(subject, first), f"count {subject}")

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        return await self._call(lambda: self._stream(stream).totals(subject), f"list {subject}")

    async def follow(
        self,
        stream: str,
        subjects: list[str],
        handler: Callable[[Stored], None],
        *,
        start: Start | int = "new",
    ) -> Subscription:
        def attach() -> int:
            kept = self._stream(stream)
            backlog = _backlog(kept, subjects, start)
            first = backlog[0].sequence if backlog else kept.last + 1
            if isinstance(start, int):
                first = max(start, 1)
            return self._broker.follow(MemoryFollower(self._link, stream, subjects, handler, first), backlog)

        return await self._attach(attach, f"follow {', '.join(subjects)}", self._link.followers)

    async def purge(self, stream: str, subject: str, *, before: int | None = None) -> None:
        await self._call(lambda: self._stream(stream).purge(subject, before), f"purge {subject}")

    async def size(self, stream: str) -> int:
        return await self._call(lambda: self._stream(stream).size_bytes, f"look at {stream}")

    async def get(self, bucket: str, key: str) -> Entry | None:
        return await self._call(lambda: self._bucket(bucket).entries.get(key), f"get {bucket} {key}")

    async def put(
        self, bucket: str, key: str, value: bytes, *, expected: int | None = None, ttl_s: float | None = None
    ) -> int:
        spec = self._broker.bucket_specs.get(bucket)
        if ttl_s is not None and spec and (ttl_s < LEAST_TTL_S or not spec.expires):
            raise InputError(
                f"bucket {bucket} cannot take a time to live of {ttl_s} s: 1 s at least, if it expires"
            )

        def write() -> int:
            self._bucket(bucket)
            return self._broker.put(bucket, key, value, expected, ttl_s)

        return await self._call(write, f"put {bucket} {key}", write=True)

    async def delete(self, bucket: str, key: str, *, expected: int | None = None) -> None:
        def remove() -> None:
            self._bucket(bucket)
            self._broker.delete(bucket, key, expected)

        await self._call(remove, f"delete {bucket} {key}", write=True)

    async def entries(self, bucket: str, key: str) -> dict[str, Entry]:
        return await watched_entries(self.watch, bucket, key)

    async def watch(self, bucket: str, key: str, handler: Callable[[Entry], None]) -> Subscription:
        def attach() -> int:
            self._bucket(bucket)
            return self._broker.watch(MemoryWatch(self._link, bucket, key, handler))

        return await self._attach(attach, f"watch {bucket} {key}", self._link.watches)

    async def close(self) -> None:
        if self._link.state in ("closed", "dead"):
            return
        self._broker.leave(self._link, "closed")
        self._link.notify("closed")

    # Waiting

    async def _attach(self, attach: Callable[[], int], what: str, known: dict[int, Any]) -> Subscription:
        """Let the broker begin to deliver. What it began ends where its answer did not come: its caller repeats it."""
        begun: list[int] = []
        waiting = True

        def begin() -> int:
            if not waiting:
                raise BusError(f"{what}: given up meanwhile")
            begun.append(attach())
            return begun[-1]

        try:
            number = await self._call(begin, what)
        except BaseException:
            waiting = False
            for each in begun:
                self._forget(known, each)
            raise
        return _Stop(lambda: self._forget(known, number))

    async def _call(
        self, work: Callable[[], T], what: str, *, timeout_s: float = CALL_TIMEOUT_S, write: bool = False
    ) -> T:
        """Let the broker do `work` and wait for its answer, which a fault may swallow when it is a write."""
        self._require()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._broker.up(self._link, self._work, answer, work, write)
        return await self._wait(answer, timeout_s, what)

    def _work(self, answer: asyncio.Future[T], work: Callable[[], T], write: bool) -> None:
        broker, faults = self._broker, self._broker.faults
        if write and broker.chance(faults.append_lost):
            return
        result: T | BusError
        try:
            result = work()
        except BusError as refusal:
            result = refusal
        if write and broker.chance(faults.ack_lost):
            return
        broker.down(self._link, settle, answer, result, extra=faults.ack_delay_s if write else (0.0, 0.0))

    async def _wait(self, answer: asyncio.Future[T], timeout_s: float, what: str) -> T:
        self._link.waiting[answer] = None
        silence = BusTimeout(
            f"no answer to {what} within {timeout_s} s: whether it happened is unknown, repeat it"
        )
        alarm = asyncio.get_running_loop().call_later(timeout_s, settle, answer, silence)
        try:
            return await answer
        finally:
            alarm.cancel()
            self._link.waiting.pop(answer, None)

    def _require(self) -> None:
        state = self._link.state
        if state == "connected":
            return
        if state == "dead":
            raise asyncio.CancelledError(f"the process {self._link.name} was killed")
        raise NotConnected(
            "this connection was closed"
            if state == "closed"
            else "the broker is away: wait for on_connection"
        )

    def _stream(self, name: str) -> MemoryStream:
        stream = self._broker.streams.get(name)
        if stream is None:
            raise BusError(f"there is no stream {name}: call ensure first")
        stream.expire(self._broker.now())
        return stream

    def _bucket(self, name: str) -> Any:
        bucket = self._broker.buckets.get(name)
        if bucket is None:
            raise BusError(f"there is no bucket {name}: call ensure first")
        return bucket

    def _forget(self, known: dict[int, Any], number: int) -> None:
        gone = known.pop(number, None)
        if gone is not None:
            gone.attempt += 1


def _check_payload(subject: str, body: bytes, headers: Headers) -> None:
    size = len(body) + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
    if size > MAX_PAYLOAD_BYTES:
        raise InputError(f"{subject}: {size} bytes are more than the broker takes in one message: pack less")


def _backlog(stream: MemoryStream, subjects: list[str], start: Start | int) -> list[Stored]:
    if start == "new":
        return []
    if start == "last_per_subject":
        return stream.newest(subjects)
    return list(stream.select(subjects, start if isinstance(start, int) else 0))
