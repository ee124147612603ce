"""The Bus over NATS and JetStream, hardened: what nats-py leaves to its user is done here, once.

Fed by services through the port (bus.py); feeds their handlers. nats_storage.py knows streams and buckets, nats_follow.py their
readers, nats_micro.py the service protocol, nats_client.py a single client of nats-py, nats_questions.py
requests, nats_majority.py when a server is left. nats_py.py imports nats for these three, and callers import them lazily (0.1 s).

One way back: nats-py's own reconnection is switched off. Whatever ends a client (a broken connection, a credential that expired,
an unknown error of the server, a read loop that died and only looks alive) ends it for good, and one supervisor dials a new
one and restores subscriptions, services, streams and readers, in this order, before it says "connected".
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self, TypeVar

from rover_bus import __version__
from rover_bus.events import credentials
from rover_bus.events.bus import NO_HEADERS, Bus, ConnectionState, Headers, Message, Subscription
from rover_bus.events.errors import AccessDenied, BusError, NotConnected, RoverError
from rover_bus.events.formats import FORMAT
from rover_bus.events.nats_client import (
    BrokerAddress,
    Interest,
    cancel_all,
    check_payload,
    denial,
    dial,
    end,
    flush,
    forbidden_subject,
    is_in_cluster,
    known_by,
    lives,
    server_of,
    translate,
)
from rover_bus.events.nats_follow import SILENT_TICKS, NatsFollower
from rover_bus.events.nats_kept import KeptInterests, KeptReader
from rover_bus.events.nats_majority import ServerMajority
from rover_bus.events.nats_micro import ERROR, ERROR_CODE, QUEUE, Service, name_endpoints
from rover_bus.events.nats_py import Client, Msg, nats
from rover_bus.events.nats_questions import Questions
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.nats_tenant import NatsTenantBus
from rover_bus.events.nats_wire import IN_CLUSTER, PLAIN, Raw, Ways, Written
from rover_bus.events.refusals import BrokerRefusal
from rover_bus.events.subjects import DEFAULT_TENANT

T = TypeVar("T")

TICK_S = 1.0  # of the watchdog
DEAF_TICKS = 5  # ticks without an answer to a ping: the broker hangs, or our read loop died
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.25)  # between dials; the last one for ever
DENIED_PAUSE_S = 1.0
RESTORE_TIMEOUT_S = 2.0


class NatsBus(NatsStorage):
    """One connection. Made by `await NatsBus.connect(...)`."""

    replicas: int = 1

    def __init__(self, broker: BrokerAddress, secret: Callable[[], str]) -> None:
        super().__init__()
        self._broker, self.url, self._secret = broker, broker.url, secret
        self._client: Client | None = None
        self._max_payload_bytes = 0  # as the broker said when it was reached last
        self._gone = asyncio.Event()  # the client is
        self._state: ConnectionState = "disconnected"
        self._refusal = BrokerRefusal()
        self._listeners: list[Callable[[ConnectionState], None]] = []
        self._questions, self._majority = Questions(), ServerMajority(len(broker.url.split(",")))
        self._denied: set[str] = set()  # subjects, in the server's lower case
        self._interests: list[Interest] = []  # subscriptions and services, as every new client gets them
        self._readers: list[NatsFollower] = []  # followers and watches
        self._mending: dict[NatsFollower, asyncio.Task[None]] = {}
        self._outbox: list[tuple[str, bytes, dict[str, str] | None]] = []
        self._sender: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._of: dict[str, NatsTenantBus] = {}
        self._user = credentials.Credential()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        secret: str | Callable[[], str] = "",
        secret_source: str = "the secret given",
        name: str = "rover",
        timeout_s: float = 2.0,
        ways: Ways = PLAIN,
    ) -> Self:
        """Connect, or raise BrokerUnreachable within about `timeout_s`, or AccessDenied.

        `secret`: the text of a credential (credentials.py), or one word; or what returns it, asked before each connection.
        `secret_source`: what AccessDenied tells the user to check, for example the path of its file. `ways`: of a process with
        few rights. Later losses are mended for ever; calls raise NotConnected meanwhile.
        """
        ask = secret if callable(secret) else partial(str, secret)
        bus = cls(BrokerAddress(url, "", secret_source, name, timeout_s), ask)
        bus.ways = ways
        await bus._open()
        bus._spawn(bus._watch_over())
        return bus

    @property
    def connected(self) -> bool:
        return self._state == "connected"

    @property
    def max_payload_bytes(self) -> int:
        return self._max_payload_bytes

    @property
    def tenant(self) -> str:
        return self.ways.tenant or DEFAULT_TENANT

    def of(self, tenant: str) -> Bus:
        if tenant in (DEFAULT_TENANT, self.ways.tenant):
            return self
        if tenant not in self._of:
            self._of[tenant] = NatsTenantBus(self, tenant)
        return self._of[tenant]

    def on_connection(self, listener: Callable[[ConnectionState], None]) -> None:
        self._listeners.append(listener)

    async def turned_away(self) -> AccessDenied:
        """Wait until the broker has refused these credentials for good: revoked, or expired. No connection comes any more."""
        return await self._refusal.last()

    # Core messages

    async def publish(self, subject: str, body: bytes, headers: Headers = NO_HEADERS) -> None:
        client = self._require(subject)
        check_payload(client, subject, body, headers)
        try:
            await client.publish(subject, body, headers=dict(headers) if headers else None)
        except nats.errors.Error as error:
            raise translate(error, subject, len(body)) from error

    async def subscribe(
        self, subject: str, handler: Callable[[Message], None], *, queue: str = ""
    ) -> Subscription:
        async def deliver(msg: Msg) -> None:
            handler(Message(msg.subject, msg.data, msg.headers or {}, self._responder(msg)))

        return await self._keep([Interest(subject, queue, deliver)])

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        msg = await self.ask(subject, body, timeout_s, dict(headers) if headers else None)
        if msg.headers and ERROR_CODE in msg.headers:
            raise BusError(
                f"the service behind {subject} failed: {msg.headers.get(ERROR, 'it gave no reason')}"
            )
        return Message(msg.subject, msg.data, msg.headers or {})

    async def serve(
        self,
        service: str,
        endpoints: Mapping[str, Callable[[Message], None]],
        *,
        metadata: Headers = NO_HEADERS,
    ) -> Subscription:
        named = name_endpoints(endpoints)
        description = Service(
            id=f"{random.getrandbits(110):022X}",
            name=service,
            version=__version__,
            started=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            metadata={**metadata, "format": str(FORMAT)},
            endpoints=named,
        )
        served = [
            Interest(endpoint.subject, QUEUE, endpoint.serving(endpoints[endpoint.subject], self.send))
            for endpoint in named
        ]
        asked = [
            Interest(subject, "", description.describing(self.send)) for subject in description.questions()
        ]
        return await self._keep(served + asked)

    async def close(self) -> None:
        if self._state == "closed":
            return
        client, self._client = self._client, None
        self._gone.set()
        self._state = "closed"
        for reader in list(self._readers):
            with contextlib.suppress(BusError):
                await reader.stop()
        if client is not None:
            await self._send_out(client)
        await cancel_all([*self._tasks, *self._mending.values()])
        self._fail_waiting("this connection was closed while it waited for an answer")
        if client is not None:
            await end(client)
        self._notify("closed")

    # What readers need of the connection (nats_follow.Wire)

    def message_id(self, name: str) -> str:
        return self._user.message_id(name)

    def new_inbox(self) -> str:
        return self._require().new_inbox()

    async def listen(self, subject: str, callback: Callable[[Raw], None]) -> Callable[[], Awaitable[None]]:
        async def deliver(msg: Msg) -> None:
            callback(msg)

        client = self._require()
        interest = Interest(subject, "", deliver)
        await interest.attach(client)
        return interest.detach

    def send(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._outbox.append((subject, body, headers))
        if self._sender is None or self._sender.done():
            self._sender = self._spawn(self._send_soon())

    def mend(self, reader: NatsFollower) -> None:
        if reader not in self._mending and self._state != "closed":
            task = self._mending[reader] = asyncio.get_running_loop().create_task(self._mend(reader))
            task.add_done_callback(lambda _: self._mending.pop(reader, None))

    # Asking

    async def ask(
        self, subject: str, body: bytes, timeout_s: float, headers: Written = None, again_s: float = 0.0
    ) -> Msg:
        return await self._questions.ask(self._require(subject), subject, body, timeout_s, headers, again_s)

    async def post(self, subject: str, body: bytes, reply: str) -> None:
        client = self._require(subject)
        try:
            await client.publish(subject, body, reply=reply)
        except nats.errors.Error as error:
            raise translate(error, subject, len(body)) from error

    # Answering

    def _responder(self, msg: Msg) -> Callable[[bytes], None] | None:
        return partial(self.send, msg.reply) if msg.reply else None

    async def _send_soon(self) -> None:
        while self._outbox:
            await self._send_out(self._client)

    async def _send_out(self, client: Client | None) -> None:
        """Send what handlers have answered: one task for all answers of a batch, in order."""
        outbox, self._outbox = self._outbox, []
        if client is None:
            return  # the asker has been told that the connection broke
        for subject, body, headers in outbox:
            try:
                await client.publish(subject, body, headers=headers)
            except nats.errors.Error as error:
                self._report(translate(error, subject, len(body)))

    # Keeping

    async def _keep(self, interests: list[Interest]) -> Subscription:
        client = self._require()
        kept = KeptInterests(self, interests)
        try:
            for interest in interests:
                await interest.attach(client)
                self._interests.append(interest)
            await self._settle(client)  # from here on the broker routes to us, or has said that we may not
            for interest in interests:
                self._refuse_denied(interest.subject)
        except BaseException:
            with contextlib.suppress(RoverError, nats.errors.Error):
                await kept.stop()
            raise
        return kept

    async def keep_reader(self, reader: NatsFollower) -> Subscription:
        try:
            await reader.attach()
        except BaseException:  # the server may have made its consumer all the same: no caller stops it
            with contextlib.suppress(RoverError, nats.errors.Error):
                await reader.stop()
            raise
        self._readers.append(reader)
        return KeptReader(self, reader)

    async def drop(self, interests: list[Interest]) -> None:
        """End core subscriptions."""
        for interest in interests:
            if interest in self._interests:
                self._interests.remove(interest)
                await interest.detach()

    async def drop_reader(self, reader: NatsFollower) -> None:
        """End a follower or a watch."""
        if reader in self._readers:
            self._readers.remove(reader)
        if (mending := self._mending.pop(reader, None)) is not None:
            await cancel_all([mending])
        await reader.stop()

    async def _settle(self, client: Client) -> None:
        """Wait until the broker has seen all that was sent, or is gone: the next connection sends all interests again.

        In a task of its own: nats-py's read loop dies of a pong whose waiter was cancelled, and a flush never learns that
        its connection is lost.
        """
        if self._client is not client:
            return
        ends = [self._spawn(flush(client)), self._spawn(self._gone.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends[1].cancel()

    # The connection

    def _identify(self) -> None:
        """Be the user that our credential says now. Ids of messages stay as they were: what is sent again is known again."""
        secret = self._secret()
        user = credentials.read(secret)
        if user is not None and secret != self._broker.secret:
            self.ways = replace(self.ways, tenant=user.tenant, direct=self.ways.direct or user.only_looks)
            self._user = replace(user, messages=self._user.messages or user.messages)
        self._broker = self._broker._replace(secret=secret)

    async def _open(self) -> None:
        self._identify()
        client = await dial(self._broker, self._on_error, self._lost)
        self._client, self._gone = client, asyncio.Event()
        self._max_payload_bytes = client.max_payload
        self.replicas = self.ways.replicas or (IN_CLUSTER if is_in_cluster(client) else 1)
        self._denied.clear()
        try:
            answers = await self._questions.begin(client)
            for interest in list(self._interests):
                await interest.attach(client)
            await self._settle(client)
            self._refuse_denied(answers)
        except BaseException as error:
            self._lost(client)
            await end(client)
            if isinstance(error, nats.errors.Error | BusError):
                raise self._closed_at_once() from error
            raise
        await self._restore_streams()
        await self._attach_readers()
        if self._client is not client:
            raise self._closed_at_once()
        self._state = "connected"
        self._refusal.note(None)
        self._notify("connected")

    def _closed_at_once(self) -> NotConnected:
        return NotConnected(f"the broker at {self.url} closed the connection at once: its log says why")

    def _lost(self, client: Client) -> None:
        """A client has ended. Fail what waits at once, and dial again."""
        if self._client is not client:
            return
        self._client, self._broker = None, self._broker._replace(last=server_of(client))
        self._gone.set()
        if self._state == "closed":
            return
        was_connected, self._state = self._state == "connected", "disconnected"
        self._fail_waiting("the connection to the broker broke before the answer came")
        if was_connected:
            self._spawn(self._reopen())
            self._notify("disconnected")

    async def _reopen(self) -> None:
        attempt = 0
        while self._state == "disconnected":
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            try:
                await self._open()
                return
            except AccessDenied as denied:
                self._refusal.note(denied)
                pause_s = DENIED_PAUSE_S
            except BusError:
                self._refusal.note(None)
            except Exception as error:  # noqa: BLE001  the way back must outlive whatever a client raises
                self._report(error)
            attempt += 1
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _watch_over(self) -> None:
        """Notice what no error tells: a broker that hangs or lost its cluster, a read loop that died, a consumer that fell silent.

        Ticks are counted, not seconds: a pause of our own process costs one tick, and is not the broker's silence (P19).
        """
        while True:
            await asyncio.sleep(TICK_S)
            for reader in self._readers:
                reader.silent_ticks += 1
                if reader.silent_ticks > SILENT_TICKS and self._client is not None:
                    reader.silent_ticks = 0
                    self.mend(reader)
            client = self._client
            if client is not None and (
                not await lives(client, DEAF_TICKS, TICK_S, partial(self._has_left, client))
                or self._majority.is_to_be_left(known_by(client))
            ):
                self._lost(client)
                await end(client)

    def _has_left(self, client: Client) -> bool:
        return self._client is not client

    async def _restore_streams(self) -> None:
        """Create again what was in memory. A store that refuses must not keep us from being connected."""
        try:
            await self._ensure_declared()
        except BusError as error:
            self._report(error)
            self._spawn(self._restore_streams_later())

    async def _restore_streams_later(self) -> None:
        while self._client is not None:
            await asyncio.sleep(RESTORE_TIMEOUT_S)
            with contextlib.suppress(BusError):
                await self._ensure_declared()
                return

    async def _attach_readers(self) -> None:
        for reader in self._readers:
            self.mend(reader)
        if self._mending:
            await asyncio.wait(list(self._mending.values()), timeout=RESTORE_TIMEOUT_S)

    async def _mend(self, reader: NatsFollower) -> None:
        attempt = 0
        while self._client is not None:
            try:
                await reader.attach()
                return
            except (RoverError, nats.errors.Error):
                await asyncio.sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
                attempt += 1

    # Errors

    def _require(self, subject: str = "") -> Client:
        client = self._client
        if client is None:
            if self._refusal.error is not None:
                raise self._refusal.error
            closed = self._state == "closed"
            away = f"the broker at {self.url} is away: wait for on_connection"
            raise NotConnected("this connection was closed" if closed else away)
        if self._denied:
            self._refuse_denied(subject)
        return client

    def _refuse_denied(self, subject: str) -> None:
        if subject.lower() in self._denied:
            raise denial(subject)

    def _on_error(self, error: Exception) -> None:
        """Asynchronous errors of the client: forbidden subjects (told in words only), broken handlers, lost connections."""
        if forbidden := forbidden_subject(error):
            self._denied.add(forbidden)
            self._questions.forbid(forbidden)
        elif not isinstance(error, nats.errors.Error | OSError | TimeoutError):
            self._report(error)

    def _report(self, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"on the bus as {self._broker.name}: {error}", "exception": error}
        )

    def _fail_waiting(self, why: str) -> None:
        self._questions.fail(why)
        for batch in self._readings.values():
            batch.put_nowait(None)

    def _notify(self, state: ConnectionState) -> None:
        for listener in list(self._listeners):
            listener(state)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
