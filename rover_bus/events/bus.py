"""The Bus: what a service may do to the outside. A port with two adapters, NATS (nats_bus.py) and in memory (memory_bus.py).

Handlers are plain functions, called in order on the event loop; they must be quick (put the message into an inbox, return).
Subscriptions, followers, watches and services survive reconnects: the adapter restores them. Subjects come from subjects.py,
streams and buckets from streams.py. All errors are `BusError`s or `AccessDenied`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Headers = Mapping[str, str]
NO_HEADERS: Headers = {}
MESSAGE_ID = "Nats-Msg-Id"  # a header: what a stream has stored under it is not stored again


@dataclass(slots=True)
class Message:
    """A core message. `respond` answers a request; None where no answer is wanted."""

    subject: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    respond: Callable[[bytes], None] | None = None


@dataclass(slots=True, frozen=True)
class Stored:
    """A message of a stream. `sequence` is the stream's; `time_ms` is the broker's clock (Unix milliseconds)."""

    sequence: int
    subject: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    time_ms: int = 0


@dataclass(slots=True, frozen=True)
class Entry:
    """A current value of a bucket. value None: deleted or expired. `revision` grows with each change of the bucket.

    `expires`: it was written with a time to live.
    """

    key: str
    value: bytes | None
    revision: int
    expires: bool = False


class Subscription(Protocol):
    """Anything that delivers until it is stopped. `stop` may be called twice."""

    async def stop(self) -> None: ...


ConnectionState = Literal["connected", "disconnected", "closed"]
Start = Literal["first", "new", "last_per_subject"]


class Bus(Protocol):
    """One connection. Every method may raise NotConnected, BusTimeout or BusError unless it says otherwise."""

    @property
    def connected(self) -> bool:
        """True while the broker answers."""

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the broker takes, headers counted. Larger ones raise InputError."""

    @property
    def tenant(self) -> str:
        """Whose account this is; `default`: the control account."""

    def of(self, tenant: str) -> Bus:
        """Return this connection as a tenant's account: its subjects, streams and buckets by their names there.

        For processes of the control account; `default`: the account itself.
        """

    def on_connection(self, listener: Callable[[ConnectionState], None]) -> None:
        """Call `listener` at every change of the connection; after "connected" everything has been restored."""

    async def publish(self, subject: str, body: bytes, headers: Headers = NO_HEADERS) -> None:
        """Send once, at most once, without a trace: heartbeats, profiles."""

    async def subscribe(
        self, subject: str, handler: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        """Deliver core messages; members of one `queue` share them."""

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        """Ask and wait. Raises NoResponders at once when no service has the subject, BusTimeout after timeout_s."""

    async def serve(
        self,
        service: str,
        endpoints: Mapping[str, Callable[[Message], None]],
        /,
        *,
        metadata: Headers = NO_HEADERS,
    ) -> Subscription:
        """Answer requests as a NATS micro service (`nats micro ls | info | stats`): subject -> handler, exactly these subjects."""

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
        """Store durably and return the stream sequence.

        `expected_last` is the sequence of the last message on this subject (0: none); a difference raises WrongSequence
        (protocol P16: read the tail before believing it). A full stream or disk raises StreamFull. A repeat of the same
        MESSAGE_ID among the headers within the dedupe window returns the first one's sequence. BusTimeout: it may be stored.
        """

    def read(self, stream: str, subject: str, *, first: int = 1) -> AsyncIterator[Stored]:
        """Iterate what is stored now on a subject (wildcards allowed) from stream sequence `first` on; ends at the present end."""

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last stored message on a subject (wildcards allowed), None when there is none."""

    async def count(self, stream: str, subject: str, *, first: int = 1) -> int:
        """Return how many messages are stored on a subject (wildcards allowed) from stream sequence `first` on."""

    async def subjects(self, stream: str, subject: str) -> dict[str, int]:
        """Return the subjects under which something is stored that `subject` takes (wildcards allowed), and how much."""

    async def follow(
        self,
        stream: str,
        subjects: list[str],
        handler: Callable[[Stored], None],
        *,
        start: Start | int = "new",
    ) -> Subscription:
        """Deliver stored and coming messages in order, none twice, across reconnects. An int starts at that stream sequence."""

    async def purge(self, stream: str, subject: str, *, before: int | None = None) -> None:
        """Delete messages on a subject, those below sequence `before` or all."""

    async def size(self, stream: str) -> int:
        """Return the bytes that a stream holds."""

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Return the present value, None when absent, deleted or expired."""

    async def put(
        self, bucket: str, key: str, value: bytes, *, expected: int | None = None, ttl_s: float | None = None
    ) -> int:
        """Write a value and return its revision. `expected` is the entry's present revision (0: absent); else WrongSequence."""

    async def delete(self, bucket: str, key: str, *, expected: int | None = None) -> None:
        """Remove a value; with `expected`, only if it still has that revision (else WrongSequence)."""

    async def entries(self, bucket: str, key: str) -> dict[str, Entry]:
        """Return the present values by their keys (wildcards allowed)."""

    async def watch(self, bucket: str, key: str, handler: Callable[[Entry], None]) -> Subscription:
        """Deliver present values (wildcards allowed), then every change; expired and deleted ones as value None.

        A value is a state, not a history: after a lost connection only the newest of each key is delivered.
        """

    async def close(self) -> None:
        """Stop everything and leave; nothing of this connection remains."""
