"""Streams and buckets of the Bus over JetStream's API: the half of nats_bus.py that needs no client, only requests.

Fed by services through the port (bus.py), of which it is a part; feeds requests to the connection that nats_bus.py keeps
(nats_wire.py) and readers to nats_follow.py. Timeouts, errors and retries of the connection stay there.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from rover_bus.events import nats_jetstream as jetstream
from rover_bus.events.bus import MESSAGE_ID, NO_HEADERS, Entry, Headers, Start, Stored, Subscription
from rover_bus.events.codec import decode
from rover_bus.events.codec import encode as encode_event
from rover_bus.events.errors import BusError, BusTimeout, NoResponders, WrongSequence
from rover_bus.events.looks import watched_entries
from rover_bus.events.nats_follow import NatsFollower, NatsWatch
from rover_bus.events.nats_wire import CALL_TIMEOUT_S, NatsWire, Raw, next_raw
from rover_bus.events.purge_requests import PurgeReply, PurgeRequest
from rover_bus.events.served import AGAIN_S, served
from rover_bus.events.streams import BucketSpec, StreamSpec

PURGE_TIMEOUT_S = 20.0  # it goes over many messages
READ_BATCH = 256
LEAST_BYTES = 1 << 20


class NatsStorage(NatsWire):
    """JetStream as the port wants it."""

    def __init__(self) -> None:
        super().__init__()
        self._declared: tuple[dict[str, StreamSpec], dict[str, BucketSpec]] = ({}, {})

    # What the connection gives besides

    @abstractmethod
    def message_id(self, name: str) -> str:
        """Return the id of a message that has this name in an account."""

    @abstractmethod
    def send(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish soon."""

    @property
    @abstractmethod
    def replicas(self) -> int:
        """On how many servers a stream is kept that is created now."""

    def delivery_inbox(self) -> str:
        """Return a subject of its own for what a consumer delivers."""
        return self.new_inbox()

    @abstractmethod
    def mend(self, reader: NatsFollower) -> None:
        """Attach a reader again, and again until it succeeds."""

    @abstractmethod
    async def keep_reader(self, reader: NatsFollower) -> Subscription:
        """Attach a reader, and again on every new connection until it is stopped."""

    # Streams

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
        written = jetstream.write_headers(headers, stream=stream, expected_last=expected_last)
        if MESSAGE_ID in written:
            # Copies of all accounts share the control account's streams: an id must be of its account, and of its writer alone.
            written[MESSAGE_ID] = self.message_id(f"{self.into}{written[MESSAGE_ID]}")
        return await self._store(subject, body, written, timeout_s, f"append to {subject}")

    async def read(self, stream: str, subject: str, *, first: int = 1) -> AsyncIterator[Stored]:
        if self.ways.direct:
            async for each in self.read_directly(stream, subject, first):
                yield each
            return
        what, sequence = f"read {subject}", max(first, 1)
        end, silent = await self.newest(stream, subject), 0
        while end is not None and sequence <= end.sequence:
            began = sequence
            try:
                async with aclosing(self._read_by_consumer(stream, subject, sequence, what)) as reading:
                    async for each in reading:
                        if each.sequence > end.sequence:
                            return
                        yield each
                        sequence = each.sequence + 1
            except BusTimeout:
                silent = silent + 1 if sequence == began else 0
                if silent > 1:
                    raise
            if sequence > end.sequence:
                return
            # The consumer lies on a replica that may lag: the leader says whether more is there, and gives the next.
            missed = await self.next_of_leader(stream, subject, sequence, what)
            if missed is None or missed.sequence > end.sequence:
                return  # purged or expired meanwhile
            yield missed
            sequence = missed.sequence + 1

    async def _read_by_consumer(
        self, stream: str, subject: str, first: int, what: str
    ) -> AsyncGenerator[Stored, None]:
        """Iterate what the replica has on which the consumer comes to lie."""
        created = await self._open_reader(stream, subject, first, what)
        left = created.num_pending
        inbox = self.delivery_inbox()
        batch: asyncio.Queue[Raw | None] = asyncio.Queue()
        self._readings[inbox] = batch
        unlisten = await self.listen(inbox, batch.put_nowait)
        try:
            while left > 0:
                wanted = min(left, READ_BATCH)
                await self.post(
                    f"{self.root}{jetstream.API}.CONSUMER.MSG.NEXT.{stream}.{created.name}",
                    jetstream.encode({"batch": wanted, "no_wait": True}),
                    inbox,
                )
                for _ in range(wanted):
                    stored = await _next_stored(batch, what, created.num_pending - left + 1)
                    if stored is None:  # purged or expired meanwhile, one was lost, or the consumer is gone
                        return
                    left -= 1
                    yield stored
        finally:
            del self._readings[inbox]
            await unlisten()
            self._close_reader(stream, created)

    async def _open_reader(self, stream: str, subject: str, first: int, what: str) -> jetstream.ApiAnswer:
        config = jetstream.consumer_config(
            [subject], deliver_policy="by_start_sequence", opt_start_seq=max(first, 1)
        )
        config["inactive_threshold"] = 60_000_000_000  # its reader may be slow between two batches
        return await self._make_reader(stream, config, what)

    async def _make_reader(self, stream: str, config: dict[str, Any], what: str) -> jetstream.ApiAnswer:
        call, body = f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}
        try:
            return await self.api(call, body, what)
        except BusTimeout:  # one that was made all the same delivers nothing unasked, and ends by itself
            return await self.api(call, body, what)

    def _close_reader(self, stream: str, created: jetstream.ApiAnswer) -> None:
        self.send(f"{self.root}{jetstream.API}.CONSUMER.DELETE.{stream}.{created.name}", b"")

    async def count(self, stream: str, subject: str, *, first: int = 1) -> int:
        if self.ways.direct:
            wanted = {"seq": max(first, 1), "next_by_subj": subject}
            return await self.count_directly(stream, wanted, f"count {subject}")
        created = await self._open_reader(stream, subject, first, f"count {subject}")
        self._close_reader(stream, created)
        return created.num_pending

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        found: dict[str, int] = {}
        while True:
            body = {"subjects_filter": subject, "offset": len(found)}
            page = (await self.api(f"STREAM.INFO.{stream}", body, f"list {subject}")).state.subjects or {}
            found |= page
            if len(page) < jetstream.SUBJECTS_A_PAGE:
                return found

    async def last(self, stream: str, subject: str) -> Stored | None:
        return await self.newest(stream, subject)

    async def follow(
        self,
        stream: str,
        subjects: list[str],
        handler: Callable[[Stored], None],
        *,
        start: Start | int = "new",
    ) -> Subscription:
        reader = NatsFollower(self, stream, subjects, handler, start)
        return await self.keep_reader(reader)

    async def purge(self, stream: str, subject: str, *, before: int | None = None) -> None:
        if self.ways.keeper:
            request = PurgeRequest(stream=stream, subject=subject, before=before or 0)
            asked = encode_event(request)
            answer = await served(lambda: self.ask(self.ways.keeper, asked, PURGE_TIMEOUT_S))
            if problem := decode(answer.data, PurgeReply).problem:
                raise BusError(f"{subject} was not purged: {problem}")
            return
        body = {"filter": subject} if before is None else {"filter": subject, "seq": before}
        await self.api(f"STREAM.PURGE.{stream}", body, f"purge {subject}")

    async def size(self, stream: str) -> int:
        return (await self.api(f"STREAM.INFO.{stream}", None, f"look at {stream}")).state.bytes

    async def usage(self) -> jetstream.StoreUsage:
        """Return what is stored in all streams on disk, and the limit where the account has one (`rover doctor`)."""
        answer = await self.api("INFO", None, "look at the store")
        return jetstream.StoreUsage(answer.storage, max(int(answer.limits.get("max_storage", 0)), 0))

    async def growth(self, stream: str, within_s: float) -> float:
        """Return how many bytes a second a stream took in of late, from the messages of so many seconds and its mean message."""
        info = await self.api(f"STREAM.INFO.{stream}", None, f"look at {stream}")
        since = datetime.now(UTC) - timedelta(seconds=within_s)
        what, stored = f"look at {stream}", 0
        if self.ways.direct:
            stored = await self.count_directly(stream, {"start_time": since.isoformat()}, what)
        else:
            policy = {"deliver_policy": "by_start_time", "opt_start_time": since.isoformat()}
            created = await self._make_reader(stream, jetstream.consumer_config([">"], **policy), what)
            self._close_reader(stream, created)
            stored = created.num_pending
        return stored * info.state.bytes / max(info.state.messages, 1) / within_s

    async def ensure(self, streams: Iterable[StreamSpec], buckets: Iterable[BucketSpec]) -> None:
        """Create the streams and buckets that are not there; again after every reconnection, since memory forgets.

        One that exists with another configuration stays as it is: `differences` tells.
        """
        for stream in streams:
            self._declared[0][stream.name] = stream
        for bucket in buckets:
            self._declared[1][bucket.name] = bucket
        await self._ensure_declared()

    async def differences(self, streams: Iterable[StreamSpec], buckets: Iterable[BucketSpec]) -> list[str]:
        """Return what is missing or configured otherwise, one line each, for `rover doctor`."""
        found: list[str] = []
        for config in _configs(streams, buckets, self.replicas):
            answer = await self._api(f"STREAM.INFO.{config['name']}", None, CALL_TIMEOUT_S)
            found += jetstream.compare(config, None if answer.error else answer.config)
        return found

    # Buckets

    async def get(self, bucket: str, key: str) -> Entry | None:
        newest = (
            self.last_directly
            if self.ways.direct or self._is_of_control(jetstream.bucket_stream(bucket))
            else self.newest
        )
        stored = await newest(jetstream.bucket_stream(bucket), f"$KV.{bucket}.{key}")
        entry = None if stored is None else jetstream.read_entry(bucket, stored)
        return entry if entry is not None and entry.value is not None else None

    async def put(
        self, bucket: str, key: str, value: bytes, *, expected: int | None = None, ttl_s: float | None = None
    ) -> int:
        headers = {} if ttl_s is None else {jetstream.TTL: jetstream.write_ttl(ttl_s)}
        try:
            return await self._write(bucket, key, value, headers, expected)
        except WrongSequence:
            marker = await self._marker(bucket, key) if expected == 0 else None
            if marker is None:
                raise
            return await self._write(bucket, key, value, headers, marker)

    async def delete(self, bucket: str, key: str, *, expected: int | None = None) -> None:
        await self._write(bucket, key, b"", {jetstream.OPERATION: "DEL"}, expected)

    async def entries(self, bucket: str, key: str) -> dict[str, Entry]:
        stream, subject = jetstream.bucket_stream(bucket), f"$KV.{bucket}.{key}"
        if not (self.ways.direct or self._is_of_control(stream)):
            return await watched_entries(self.watch, bucket, key)
        # A bucket keeps the last message of each key, and no other.
        reading = self.read_directly(stream, subject, 1)
        found = [jetstream.read_entry(bucket, each) async for each in reading]
        return {each.key: each for each in found if each.value is not None}

    async def watch(self, bucket: str, key: str, handler: Callable[[Entry], None]) -> Subscription:
        reader = NatsWatch(self, bucket, key, handler)
        kept = await self.keep_reader(reader)
        try:
            await reader.present()
        except BaseException:
            await kept.stop()
            raise
        return kept

    async def newest(self, stream: str, subject: str) -> Stored | None:
        # Asked of the stream's leader: a direct get may be answered by a replica that lags, and a tail must be the tail (P16).
        return await self.stored(stream, {"last_by_subj": subject}, f"read the tail of {subject}")

    async def _store(
        self, subject: str, body: bytes, headers: dict[str, str], timeout_s: float, what: str
    ) -> int:
        try:
            # What has an id is stored once however often it is sent.
            again_s = AGAIN_S if MESSAGE_ID in headers else 0.0
            msg = await served(
                lambda: self.ask(f"{self.into}{subject}", body, timeout_s, headers, again_s=again_s)
            )
        except NoResponders as error:
            raise BusError(
                f"{what}: no stream takes this subject: call ensure first (is JetStream on?)"
            ) from error
        answer = jetstream.read_answer(msg.data)
        if answer.error is not None:
            jetstream.refuse(answer.error, what)
        return answer.seq

    async def _write(
        self, bucket: str, key: str, value: bytes, headers: dict[str, str], expected: int | None
    ) -> int:
        written = jetstream.write_headers(
            headers, stream=jetstream.bucket_stream(bucket), expected_last=expected
        )
        return await self._store(
            f"$KV.{bucket}.{key}", value, written, CALL_TIMEOUT_S, f"write {bucket} {key}"
        )

    async def _marker(self, bucket: str, key: str) -> int | None:
        """Return the sequence of the deletion that stands where a key was, so that "absent" can be expected of it."""
        stored = await self.newest(jetstream.bucket_stream(bucket), f"$KV.{bucket}.{key}")
        if stored is None:
            return 0
        return stored.sequence if jetstream.read_entry(bucket, stored).value is None else None

    async def _ensure_declared(self) -> None:
        for config in _configs(self._declared[0].values(), self._declared[1].values(), self.replicas):
            await self._create(config)

    async def _create(self, config: dict[str, Any]) -> None:
        """Create a stream unless it exists.

        JetStream reserves `max_bytes` in advance. A stream that may drop its oldest makes do with less on a small store.
        """
        while True:
            answer = await self._api(f"STREAM.CREATE.{config['name']}", config, CALL_TIMEOUT_S)
            if answer.error is None or answer.error.err_code == jetstream.NAME_IN_USE:
                return
            full = answer.error.err_code in jetstream.FULL
            if not (full and config["discard"] == "old" and config["max_bytes"] > LEAST_BYTES):
                jetstream.refuse(answer.error, f"create {config['name']}")
            config = {**config, "max_bytes": config["max_bytes"] // 4}


def _configs(
    streams: Iterable[StreamSpec], buckets: Iterable[BucketSpec], replicas: int
) -> list[dict[str, Any]]:
    return [
        *(jetstream.stream_config(stream, replicas) for stream in streams),
        *(jetstream.bucket_config(bucket, replicas) for bucket in buckets),
    ]


async def _next_stored(batch: asyncio.Queue[Raw | None], what: str, number: int) -> Stored | None:
    """Return what a consumer delivers as its `number`th message; None where it delivers something else, or nothing."""
    msg = await next_raw(batch, what)
    if msg.headers and jetstream.STATUS in msg.headers:
        return None
    ack = jetstream.Ack(msg.reply)
    if ack.consumer_sequence != number:
        return None
    return Stored(ack.stream_sequence, msg.subject, msg.data, msg.headers or {}, ack.time_ms)
