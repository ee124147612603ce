"""What streams and buckets need of a connection to NATS: requests to JetStream's API, and stored messages without a consumer.

Fed by nats_bus.py and nats_tenant.py, which implement it; feeds nats_storage.py and the readers of nats_follow.py. A consumer
delivers to a subject that its maker names, whatever the maker's rights, so a role that only looks has no right to one: direct gets
answer to the account that asked, and no further (docs/design/0047).
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rover_bus.events import nats_jetstream as jetstream
from rover_bus.events.bus import Stored
from rover_bus.events.errors import BusError, BusTimeout, NoResponders, NotConnected
from rover_bus.events.served import AGAIN_S, served
from rover_bus.events.streams import LOOKED_UP, OF_CONTROL
from rover_bus.events.subjects import CONTROL, DEFAULT_TENANT

CALL_TIMEOUT_S = 5.0
DIRECT_BATCH = 256  # messages of one answer
_NOT_TWICE = "CONSUMER.CREATE."  # each one that is made delivers
_ONE_BY_ONE = frozenset(jetstream.bucket_stream(bucket) for bucket in LOOKED_UP)
_STREAMS_OF_CONTROL = frozenset(jetstream.bucket_stream(bucket) for bucket in OF_CONTROL)
Written = dict[str, str] | None  # headers of a message that is sent


class Raw(Protocol):
    """A message as the client gives it."""

    @property
    def subject(self) -> str: ...
    @property
    def reply(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> dict[str, str] | None: ...


class StoredBatch(NamedTuple):
    """Stored messages in order, and how many more there were on the same subjects."""

    found: list[Stored]
    pending: int


@dataclass(frozen=True, slots=True)
class Ways:
    """How a process whose rights are few does what others ask of the stream API itself (docs/design/0047).

    `direct`: it reads without consumers. `keeper`: where it asks for purges. `tenant`: whose account it is in; "": the control
    account. `replicas`: on how many servers it keeps what it creates; 0: in a cluster on `IN_CLUSTER`, else on one.
    """

    direct: bool = False
    keeper: str = ""
    tenant: str = ""
    replicas: int = 0


IN_CLUSTER = 3
PLAIN = Ways()


class NatsWire(ABC):
    """One account over one connection. `url` is for error messages.

    `root`, `into`: what stands before the API's subjects, and before subjects that are stored, where both are another account's.
    """

    url: str
    ways: Ways = PLAIN
    root: str = ""
    into: str = ""

    def __init__(self) -> None:
        self._readings: dict[str, asyncio.Queue[Raw | None]] = {}

    # What the connection gives

    @abstractmethod
    async def ask(
        self, subject: str, body: bytes, timeout_s: float, headers: Written = None, again_s: float = 0.0
    ) -> Raw:
        """Request and wait; `again_s`: as `Questions.ask`. Raises NoResponders, BusTimeout, NotConnected, AccessDenied."""

    @abstractmethod
    async def post(self, subject: str, body: bytes, reply: str) -> None:
        """Publish with a reply subject."""

    @abstractmethod
    def new_inbox(self) -> str:
        """Return a subject of its own for answers."""

    @abstractmethod
    async def listen(self, subject: str, callback: Callable[[Raw], None]) -> Callable[[], Awaitable[None]]:
        """Subscribe on the present connection only; return what ends it."""

    # The API

    async def api(self, call: str, body: dict[str, Any] | None, what: str) -> jetstream.ApiAnswer:
        answer = await self._api(call, body, CALL_TIMEOUT_S)
        if answer.error is not None:
            jetstream.refuse(answer.error, what)
        return answer

    async def _api(self, call: str, body: dict[str, Any] | None, timeout_s: float) -> jetstream.ApiAnswer:
        subject = f"{self.root}{jetstream.API}.{call}"
        asked = b"" if body is None else jetstream.encode(body)
        again_s = 0.0 if call.startswith(_NOT_TWICE) else AGAIN_S

        async def ask() -> jetstream.ApiAnswer:
            return jetstream.read_answer((await self.ask(subject, asked, timeout_s, again_s=again_s)).data)

        try:
            return await served(ask, not_now=jetstream.is_electing)
        except NoResponders as error:
            raise BusError(
                f"JetStream does not answer on {self.url}: is it switched on, is its disk full?"
            ) from error

    async def stored(self, stream: str, wanted: dict[str, Any], what: str) -> Stored | None:
        """Return the one stored message that is wanted, as the stream's leader has it; None when there is none."""
        answer = await self._api(f"STREAM.MSG.GET.{stream}", wanted, CALL_TIMEOUT_S)
        if answer.error is not None and answer.error.err_code != jetstream.NO_MESSAGE:
            jetstream.refuse(answer.error, what)
        return None if answer.message is None else jetstream.read_stored(answer.message)

    # Direct gets

    async def last_directly(self, stream: str, subject: str) -> Stored | None:
        """Return the last message on a subject as any replica has it: for readers to whom an old one does no harm."""
        if stream in _ONE_BY_ONE and not self._is_of_control(stream):
            return await self.stored(stream, {"last_by_subj": subject}, f"read {subject}")
        try:
            wanted = f"{self._direct(stream)}.{subject}"
            msg = await served(lambda: self.ask(wanted, b"", CALL_TIMEOUT_S, again_s=AGAIN_S))
        except NoResponders as error:
            raise BusError(f"{stream} cannot be read on {self.url}: it is not there yet") from error
        return jetstream.read_direct(msg.headers or {}, msg.data, f"read {subject}")

    async def batch(self, stream: str, wanted: dict[str, Any], what: str) -> StoredBatch:
        """Return stored messages in order: one request, many answers. `wanted`: as the API has it, `seq`, `next_by_subj`, ..."""
        if stream in _ONE_BY_ONE and not self._is_of_control(stream):
            # The broker imports no direct gets of these (auth/accounts.py); each holds a few entries.
            one = await self.stored(stream, wanted, what)
            return StoredBatch([] if one is None else [one], pending=one is not None)
        try:
            return await served(lambda: self._batch(stream, wanted, what))
        except BusTimeout:  # some of its answers were lost
            return await served(lambda: self._batch(stream, wanted, what))

    async def _batch(self, stream: str, wanted: dict[str, Any], what: str) -> StoredBatch:
        inbox, found, answers = self.new_inbox(), list[Stored](), asyncio.Queue[Raw | None]()
        self._readings[inbox] = answers
        unlisten = await self.listen(inbox, answers.put_nowait)
        try:
            await self.post(self._direct(stream), jetstream.encode({"batch": DIRECT_BATCH, **wanted}), inbox)
            while True:
                msg = await next_raw(answers, what)
                headers = msg.headers or {}
                if headers.get(jetstream.STATUS) == jetstream.END_OF_BATCH:
                    return StoredBatch(found, int(headers.get(jetstream.PENDING, "0")))
                if headers.get(jetstream.STATUS) == jetstream.NOT_THERE:
                    raise NoResponders(f"{what}: {stream} cannot be read on {self.url}: it is not there yet")
                stored = jetstream.read_direct(headers, msg.data, what)
                if stored is None:
                    return StoredBatch(found, 0)
                found.append(stored)
        finally:
            del self._readings[inbox]
            await unlisten()

    async def read_directly(self, stream: str, subject: str, first: int) -> AsyncIterator[Stored]:
        """Iterate what is stored now, as `Bus.read`."""
        what, sequence = f"read {subject}", max(first, 1)
        end = await self._present_end(stream, what)
        while sequence <= end:
            found = await self._next_found(stream, subject, sequence, what)
            for stored in found:
                if stored.sequence <= end:
                    yield stored
            if not found:
                return
            sequence = found[-1].sequence + 1

    async def _next_found(self, stream: str, subject: str, first: int, what: str) -> list[Stored]:
        """Return the next of what is stored; nothing only where the stream's leader has nothing more, however far replicas lag."""
        found, _ = await self.batch(stream, {"seq": first, "next_by_subj": subject}, what)
        if found or self._is_of_control(stream):  # a tenant may not ask the leader of these
            return found
        missed = await self.next_of_leader(stream, subject, first, what)
        return [] if missed is None else [missed]

    async def next_of_leader(self, stream: str, subject: str, first: int, what: str) -> Stored | None:
        """Return the first message on a subject from a place on, as the stream's leader has it."""
        return await self.stored(stream, {"seq": first, "next_by_subj": subject}, what)

    async def _present_end(self, stream: str, what: str) -> float:
        if self._is_of_control(stream):
            return math.inf  # a tenant may ask for the entries, and not about their stream
        return (await self.api(f"STREAM.INFO.{stream}", None, what)).state.last_seq

    async def count_directly(self, stream: str, wanted: dict[str, Any], what: str) -> int:
        """Return how many messages there are from a place or a time on."""
        batch = await self.batch(stream, {**wanted, "batch": 1}, what)
        return len(batch.found) + batch.pending

    def _direct(self, stream: str) -> str:
        """Return where a stream is looked up: a tenant looks up some of the control account's."""
        root = CONTROL if self._is_of_control(stream) else self.root
        return f"{root}{jetstream.API}.DIRECT.GET.{stream}"

    def _is_of_control(self, stream: str) -> bool:
        """Whether this is a tenant's account, and the stream the control account's."""
        return self.ways.tenant not in ("", DEFAULT_TENANT) and stream in _STREAMS_OF_CONTROL


async def next_raw(answers: asyncio.Queue[Raw | None], what: str) -> Raw:
    """Return the next of many answers. Raises BusTimeout, NotConnected."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            msg = await answers.get()
    except TimeoutError:
        raise BusTimeout(f"{what}: the broker fell silent for {CALL_TIMEOUT_S} s: read again") from None
    if msg is None:
        raise NotConnected(f"{what}: the connection to the broker broke: read again")
    return msg
