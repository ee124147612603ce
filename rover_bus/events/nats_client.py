"""One client of nats-py: how it is dialled, asked whether it lives, and ended; its errors in our words.

Used by nats_bus.py alone, which decides when; apart, because what nats-py says in strings and private attributes is known here and
nowhere else. A client is used for one connection and never reconnects by itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, BrokerUnreachable, InputError, NotConnected, RoverError
from rover_bus.events.nats_py import Client, ClientSubscription, Msg, nats

CALL_TIMEOUT_S = 5.0
HEADERS_BYTES = 64 << 10  # more than ours ever hold: below that headers are not counted
HEADERS_KEPT = 256  # as they came, and as they are read
PENDING_BYTES = 16 << 20  # written but not yet sent, before publish waits
_BESIDE: set[asyncio.Task[Any]] = (
    set()
)  # what nothing waits for: asyncio itself holds a task by a weak reference only
_DENIED = re.compile(r'permissions violation for (publish|subscription) (?:to )?"([^"]+)"', re.IGNORECASE)


class BrokerAddress(NamedTuple):
    """Where a broker is, and our name there. `url`: of a cluster's servers, with commas between; one that answers is taken.
    `secret_source`: what AccessDenied tells the user to check.
    """

    url: str
    secret: str
    secret_source: str
    name: str
    timeout_s: float  # for the first answer
    last: str = ""  # the one of them that is tried when all others were


class Interest:
    """A core subscription as it is to be restored on every new client."""

    __slots__ = ("_client", "_subscription", "deliver", "queue", "subject")

    def __init__(self, subject: str, queue: str, deliver: Callable[[Msg], Awaitable[None]]) -> None:
        self.subject = subject
        self.queue = queue
        self.deliver = deliver
        self._client: Client | None = None
        self._subscription: ClientSubscription | None = None

    async def attach(self, client: Client) -> None:
        """Subscribe on a client. Raises NotConnected or InputError."""
        try:
            self._subscription = await client.subscribe(self.subject, queue=self.queue, cb=self.deliver)
        except nats.errors.Error as error:
            raise translate(error, self.subject, 0) from error
        self._client = client

    async def detach(self) -> None:
        """End it on the client that has it, if that lives."""
        client, subscription = self._client, self._subscription
        self._client = self._subscription = None
        if client is not None and subscription is not None and not client.is_closed:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()


class _Client(Client):
    """A client of one server, which reads headers of messages once that many clients of its process receive, as facts are by an
    operator's.
    """

    server: str = ""
    known: int = 0  # addresses of servers, as the server says: it says so again when that changes

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Private, because nats-py keeps all addresses that it ever heard of, and tells of those that are new alone.
        self.known = len(info.get("connect_urls") or ())
        await super()._process_info(info, initial_connection)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return _parsed(raw).copy()


@functools.lru_cache(maxsize=HEADERS_KEPT)
def _parsed(raw: bytes) -> dict[str, str]:
    read: dict[str, str] = Client._parse_header_lines(raw)
    return read


async def dial(
    broker: BrokerAddress, on_error: Callable[[Exception], None], on_closed: Callable[[Client], None]
) -> Client:
    """Return a client that is connected to one of the servers. Raises BrokerUnreachable within about `timeout_s`, or AccessDenied.

    The servers are tried in no order but for `last`. One that does not answer soon, because its machine is gone or hangs, is not
    waited for alone: the next is dialled beside it, and the first that answers is taken (as RFC 8305 does with addresses); one that
    has lost most of its cluster only where no other answers.
    """
    servers = broker.url.split(",")
    untried = sorted(random.sample(servers, len(servers)), key=lambda server: server != broker.last)
    ends_at = time.monotonic() + broker.timeout_s
    dialled, connected = set[asyncio.Task[Client]](), list[asyncio.Task[Client]]()
    errors = list[BaseException]()
    taken: asyncio.Task[Client] | None = None
    try:
        while (untried or dialled) and taken is None:
            if untried:
                one = broker._replace(timeout_s=max(ends_at - time.monotonic(), 0.0))
                dialled.add(asyncio.create_task(_dial_one(untried.pop(), one, on_error, on_closed)))
            soon_s = broker.timeout_s / (len(servers) + 1) if untried else None
            ended, dialled = await asyncio.wait(dialled, timeout=soon_s, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                if (error := each.exception()) is None:
                    connected.append(each)
                else:
                    errors.append(error)
            taken = next((each for each in connected if not _is_alone(each.result(), len(servers))), None)
        if connected:
            taken = taken or connected[0]
            return taken.result()
    finally:
        for each in {*dialled, *connected} - {taken}:
            _give_up(each)
    raise next((error for error in errors if isinstance(error, AccessDenied)), errors[-1])


def _is_alone(client: Client, servers: int) -> bool:
    """Whether a server knows itself alone, where there are several: it is taken where no other is connected with."""
    return servers > 1 and known_by(client) == 1


def _give_up(dialled: asyncio.Task[Client]) -> None:
    """End what was dialled beside the one that was taken: nothing waits for that."""
    ending: asyncio.Task[Any] = dialled
    if dialled.done() and not dialled.cancelled() and dialled.exception() is None:
        ending = asyncio.create_task(end(dialled.result()))
    else:
        dialled.cancel()
    _BESIDE.add(ending)
    ending.add_done_callback(_BESIDE.discard)
    ending.add_done_callback(_heed)


async def _dial_one(
    server: str,
    broker: BrokerAddress,
    on_error: Callable[[Exception], None],
    on_closed: Callable[[Client], None],
) -> Client:
    client = _Client()
    client.server = server
    errors: list[Exception] = []

    async def observe_error(error: Exception) -> None:
        errors.append(error)
        on_error(error)

    async def observe_end() -> None:
        on_closed(client)

    connecting = client.connect(
        [server],
        error_cb=observe_error,
        closed_cb=observe_end,
        name=broker.name,
        **_identity(broker),
        **_encryption(broker),
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        connect_timeout=max(1, round(broker.timeout_s)),
        ping_interval=15,
        pending_size=PENDING_BYTES,
        flush_timeout=CALL_TIMEOUT_S,
    )
    try:
        await _apart(connecting, broker.timeout_s)
    except (nats.errors.Error, OSError, TimeoutError) as error:
        await end(client)
        raise _cannot_connect(broker, error, errors) from error
    except BaseException:
        await end(client)
        raise
    return client


def is_in_cluster(client: Client) -> bool:
    """Whether the server that a client has reached is one of a cluster. Private, because nats-py has no other way to say it."""
    return bool(getattr(client, "_server_info", {}).get("cluster"))


def server_of(client: Client) -> str:
    """Return the URL of the server that a client was made for."""
    return client.server if isinstance(client, _Client) else ""


def known_by(client: Client) -> int:
    """Return how many addresses of its cluster's servers the server of a client knows now, its own too; 0: it does not say."""
    return client.known if isinstance(client, _Client) and is_in_cluster(client) else 0


async def _apart(call: Coroutine[Any, Any, None], timeout_s: float) -> None:
    """Wait for a call of nats-py in a task of its own, `timeout_s` at most. Raises TimeoutError and what the call raises.

    nats-py waits with `asyncio.wait_for`, which forgets a cancellation that comes together with what it waits for; a task that
    awaits nats-py itself would then run on, and a service that waits for its end would never end.
    """
    task = asyncio.create_task(call)
    try:
        ended, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            task.add_done_callback(_heed)
            task.cancel()
    if not ended:
        raise TimeoutError
    task.result()


def _heed(task: asyncio.Task[Any]) -> None:
    """Take the error of a call that was given up: asyncio logs those that nothing takes."""
    if not task.cancelled():
        task.exception()


def _identity(broker: BrokerAddress) -> dict[str, Any]:
    """Return what identifies this process: as a user with an inbox of its own, or by one word. Raises InputError."""
    user = credentials.read(broker.secret)
    if user is None:
        return {"token": broker.secret or None, "inbox_prefix": credentials.INBOX}
    return {
        "user_jwt_cb": user.token.encode,
        "signature_cb": user.sign,
        "inbox_prefix": user.inbox,
    }


def _encryption(broker: BrokerAddress) -> dict[str, Any]:
    """Return how to speak with a broker at `tls://`. With a stack's credentials its own authority alone counts, and nothing is
    said in the clear before; another broker is asked as NATS does, and trusted by the system's authorities. Raises InputError.
    """
    if not broker.url.startswith("tls://"):
        return {}
    import ssl

    logging.getLogger("asyncio").addFilter(_is_worth_a_line)
    user = credentials.read(broker.secret)
    if user is None or not user.authority:
        return {"tls": ssl.create_default_context()}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=base64.b64decode(user.authority))
    except (ssl.SSLError, ValueError):
        raise InputError(
            "the credentials hold no usable certificate: take those that the stack made"
        ) from None
    return {"tls": context, "tls_handshake_first": True}


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """All but one: each end of an encrypted connection of nats-py has asyncio warn of what its reader returns."""
    return "eof_received() has no effect" not in str(record.msg)


def _cannot_connect(
    broker: BrokerAddress, error: Exception, heard: list[Exception]
) -> AccessDenied | BrokerUnreachable:
    # The server tells a refused secret in words only, before nats-py has a type for it.
    if "authorization" in str(error).lower() or "authentication" in str(error).lower():
        return AccessDenied(
            f"the broker at {broker.url} refuses the secret: check {broker.secret_source}{_since(broker.secret)}"
        )
    cause = heard[-1] if heard else error
    if "CERTIFICATE_VERIFY_FAILED" in str(cause):
        return AccessDenied(
            f"the broker at {broker.url} is not of the stack that made these credentials ({_reason(cause)}): "
            f"check {broker.secret_source}"
        )
    return BrokerUnreachable(
        f"no broker answers at {broker.url} ({cause or type(cause).__name__}): start one (`rover up`), or check the URL"
    )


def _since(secret: str) -> str:
    """Say what may have ended the rights of credentials that a stack made."""
    user = credentials.read(secret)
    if user is None:
        return ""
    if user.expires_s and user.expires_s <= time.time():
        return f" (it expired at {time.ctime(user.expires_s)})"
    return " (another stack's, revoked, or of a job that has ended)"


def _reason(error: Exception) -> str:
    return getattr(error, "verify_message", "") or "its certificate is another's"


async def _round_trip(client: Client, timeout_s: float) -> None:
    """Wait until the broker has answered a ping, and so has seen all that was sent. Raises TimeoutError.

    Not nats-py's `rtt` and `flush`: given up, they cancel what the answer sets, and an answer that comes all the same then ends the
    client's reading for good, while it goes on saying that it is connected.
    """
    if client.is_closed:
        raise nats.errors.ConnectionClosedError
    answered = asyncio.get_running_loop().create_future()
    await client._send_ping(answered)
    if not (await asyncio.wait({answered}, timeout=timeout_s))[0]:
        raise TimeoutError


async def answers_ping(client: Client, timeout_s: float) -> bool:
    """Whether a client lives; also True for one that has ended and said so."""
    try:
        await _round_trip(client, timeout_s)
    except (nats.errors.Error, OSError, TimeoutError, AssertionError, AttributeError, RuntimeError):
        return client.is_closed  # its own end is told by closed_cb
    return True


async def lives(client: Client, ticks: int, tick_s: float, has_left: Callable[[], bool]) -> bool:
    """Whether a client lives, by a ping that is answered within so many ticks, or has ended otherwise (`has_left`)."""
    ping = asyncio.create_task(answers_ping(client, ticks * tick_s + 60))
    _BESIDE.add(ping)
    ping.add_done_callback(_BESIDE.discard)
    for _ in range(ticks):
        await asyncio.wait({ping}, timeout=tick_s)
        if ping.done():
            return ping.result()
        if has_left():
            return True
    return False


async def flush(client: Client) -> None:
    """Wait until the broker has seen all that was sent, or cannot be asked."""
    with contextlib.suppress(nats.errors.Error, TimeoutError, OSError, AssertionError):
        await _round_trip(client, CALL_TIMEOUT_S)


async def end(client: Client) -> None:
    """Close a client, also one whose peer has stopped reading and whose close would wait for ever."""
    try:
        await _apart(client.close(), 1.0)
    except (TimeoutError, nats.errors.Error, OSError):
        pass
    finally:
        # Private, because there is no other way to drop a connection with unsent bytes; guarded by
        # test_a_broker_that_hangs_is_noticed_and_left.
        writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


def denial(subject: str) -> AccessDenied:
    """Return the error of a subject that the broker forbids us."""
    return AccessDenied(
        f"the broker forbids the subject {subject} to these credentials: ask for rights to it, or use others"
    )


def forbidden_subject(error: Exception) -> str:
    """Return the subject that an asynchronous error says is forbidden, in the server's lower case; "" for any other error."""
    found = _DENIED.search(str(error))
    return found[2] if found else ""


def check_payload(client: Client, subject: str, body: bytes, headers: Mapping[str, str] | None) -> None:
    """Raise InputError for what the broker would end the connection for: it counts headers too, the client's check does not."""
    size = len(body)
    if size + HEADERS_BYTES < client.max_payload:
        return
    if headers:
        size += 12 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
    if size > client.max_payload:
        raise translate(nats.errors.MaxPayloadError(), subject, size)


def translate(error: nats.errors.Error, subject: str, size: int) -> RoverError:
    """Return our error for a client's, about a message of `size` bytes."""
    match error:
        case nats.errors.MaxPayloadError():
            return InputError(
                f"{subject}: {size} bytes are more than the broker takes in one message: pack less"
            )
        case nats.errors.BadSubjectError() | nats.errors.BadHeaderError():
            return InputError(f"{subject!r} or its headers cannot be sent: build subjects with subjects.py")
        case _:
            return NotConnected(
                f"{subject}: the connection to the broker is down ({error}): wait for on_connection"
            )


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel all tasks but the one that asks, and wait until they have ended."""
    current = asyncio.current_task()
    others = [task for task in tasks if task is not current]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
