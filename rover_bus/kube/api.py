"""Requests to one API server: created, read, patched and deleted objects, watches, logs.

Address, credentials and TLS are kubernetes_asyncio's (a kubeconfig, or a pod's service account, whose token it reads again); bytes
go through msgspec (kinds.py). All requests of a process share one pace (pace.py); where the server says "too many", all of them
wait as long as it asks, and the request is repeated. Nothing else is: the caller knows what a repetition means.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientTimeout

from rover_bus.events import traces
from rover_bus.events.errors import BadMessage, InputError, Refused, TemporaryError
from rover_bus.events.logs import get_logger
from rover_bus.kube.api_spans import traced_call
from rover_bus.kube.kinds import POD, Json, Kind, O, Ref
from rover_bus.kube.lean_imports import leave_unloaded
from rover_bus.kube.pace import RequestPace
from rover_bus.kube.sessions import proxy_of, session_above

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient, Configuration

# Requests of one process. A member that comes takes three, one that goes four, its object's status one: ten plans a second that
# add two members and remove two take 150, and some more where others write at the same time.
PER_S, BURST = 300.0, 600
ANSWER_S = 30.0  # for any request but a watch
MOST_BYTES = 64 << 20  # of an answer: a page of a list is far below
MOST_EVENT_BYTES = 4 << 20  # of a line of a watch: etcd stores no object above 1.5 MiB
REPEATS, PAUSE_S, MOST_PAUSE_S = 10, 1.0, 30.0  # where the server says "too many"
NOT_FOUND = "NotFound"  # there is no such object
FAREWELL_S = 0.1  # for transports of requests that were cancelled
MERGE = "application/merge-patch+json"
STRATEGIC = (
    "application/strategic-merge-patch+json"  # of kinds of Kubernetes itself: containers by their names
)
THROTTLED = (429, 503)
CLIENT = "kubernetes_asyncio.client"
UNUSED = ("kubernetes_asyncio", CLIENT, f"{CLIENT}.models")  # 770 modules, 36 MB, 2 s
SHORT = ClientTimeout(total=ANSWER_S)
log = get_logger("rover.kube")
T = TypeVar("T")


class ApiRefused(Refused):
    """The API server refuses a request. `status`: of HTTP; `code`: its reason (AlreadyExists, Conflict, Forbidden, ...)."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message, code)
        self.status = status


class ApiUnreachable(TemporaryError):
    """The API server does not answer, or says that it cannot now. Whether a write happened is not known: repeat it."""

    code = "api_unreachable"
    exit_code = 4


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server answers where it refuses."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Api:
    """One API server, as one process uses it."""

    def __init__(self, client: ApiClient, pace: RequestPace) -> None:
        self._client, self._pace = client, pace

    @classmethod
    async def connect(cls, kubeconfig: str = "", pace: RequestPace | None = None) -> Self:
        """Return the API server that a kubeconfig names; "": this pod's own. Raises InputError where there is no such thing."""
        client, described, config = _client()
        configuration = described()
        try:
            if kubeconfig:
                await config.load_kube_config(kubeconfig, client_configuration=configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            place = kubeconfig or "the service account of this pod"
            raise InputError(
                f"{place} leads to no API server ({error}): name a kubeconfig, or run in a pod with a service account"
            ) from error
        if not configuration.proxy:
            configuration.proxy = proxy_of(configuration.host)
        made = client(configuration)
        made.rest_client.pool_manager = session_above(made.rest_client.pool_manager)
        return cls(made, pace or RequestPace(PER_S, BURST))

    async def close(self) -> None:
        """Drop all connections: a farewell by TLS would wait for servers that may be gone. Transports are closed a little later."""
        await self._client.rest_client.pool_manager.connector.close(abort_ssl=True)
        await self._client.close()
        await asyncio.sleep(FAREWELL_S)

    # -- objects -------------------------------------------------------------------------------------------------------

    async def read(self, kind: Kind[O], ref: Ref) -> O:
        return decoded(await self.call("GET", kind.path(ref)), kind.cls)

    async def create(self, kind: Kind[O], namespace: str, body: Json) -> O:
        """Create an object. Raises ApiRefused with 409 AlreadyExists where there is one of its name."""
        return decoded(await self.call("POST", kind.path(Ref(namespace, "")), body), kind.cls)

    async def patch(
        self, kind: Kind[O], ref: Ref, body: Json, *, subresource: str = "", content: str = MERGE
    ) -> O:
        """Change an object; `uid` or `resourceVersion` in its metadata are preconditions: ApiRefused with 409 Conflict.

        subresource: `status`, or `resize` of a pod.
        """
        return decoded(await self.call("PATCH", kind.path(ref, subresource), body, content=content), kind.cls)

    async def delete(
        self, kind: Kind[O], ref: Ref, *, uid: str = "", version: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object, what it owns after it. uid, version: only this one, so (ApiRefused with 409 where it is not)."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        asked = {"uid": uid, "resourceVersion": version}
        if conditions := {key: value for key, value in asked.items() if value}:
            body["preconditions"] = conditions
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        await self.call("DELETE", kind.path(ref), body)

    async def log_tail(self, pod: Ref, container: str, lines: int, most_bytes: int) -> str:
        """Return the last lines that a container wrote, at most so many bytes of them (from their end)."""
        query = [("container", container), ("tailLines", str(lines))]
        body = await self.call("GET", POD.path(pod, "log"), query=query)
        return body[-most_bytes:].decode(errors="replace")

    # -- requests ------------------------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Sequence[tuple[str, str]] = (),
        content: str = "application/json",
    ) -> bytes:
        """Return the answer's bytes. Raises ApiRefused, ApiUnreachable, BadMessage for an answer beyond all bounds."""
        with traced_call(method, path):
            return await self._call(method, path, body, query, content)

    async def _call(
        self, method: str, path: str, body: Json | None, query: Sequence[tuple[str, str]], content: str
    ) -> bytes:
        async with self._answered(method, path, body, query, content) as answer:
            try:
                return await _read(answer)
            except (ClientError, TimeoutError, OSError) as error:
                raise _unreachable(method, path, error) from error

    @asynccontextmanager
    async def watch(
        self, path: str, query: Sequence[tuple[str, str]], quiet_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch: its lines. They end when the server ends it; ApiUnreachable when it breaks or is quiet for too long."""
        timeout = ClientTimeout(sock_connect=ANSWER_S, sock_read=quiet_s)
        async with (
            self._answered("GET", path, None, query, "application/json", timeout) as answer,
            aclosing(_lines(answer, path)) as lines,
        ):
            yield lines

    @asynccontextmanager
    async def _answered(
        self,
        method: str,
        path: str,
        body: Json | None,
        query: Sequence[tuple[str, str]],
        content: str,
        timeout: ClientTimeout = SHORT,
    ) -> AsyncIterator[ClientResponse]:
        """Ask until the server has time for it; the answer is one that says yes."""
        for left in reversed(range(REPEATS)):
            answer = await self._ask(method, path, body, query, content, timeout)
            async with answer:
                if answer.status < 300:
                    try:
                        yield answer
                    finally:
                        _hang_up(answer)
                    return
                refusal = await _refusal(answer, method, path)
                if answer.status in THROTTLED and "Retry-After" in answer.headers and left:
                    self._rest(path, answer.headers["Retry-After"])
                    continue
                raise refusal

    async def _ask(
        self,
        method: str,
        path: str,
        body: Json | None,
        query: Sequence[tuple[str, str]],
        content: str,
        timeout: ClientTimeout,
    ) -> ClientResponse:
        await asyncio.sleep(self._pace.take(asyncio.get_running_loop().time()))
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": content}
        if (trace := traces.current()) is not None:
            headers[traces.HEADER] = trace.traceparent
        parameters = list(query)
        await self._client.update_params_for_auth(headers, parameters, ["BearerToken"])
        try:
            answer: ClientResponse = await self._client.rest_client.request(
                method,
                self._client.configuration.host + path,
                query_params=parameters,
                headers=headers,
                body=body,
                _preload_content=False,
                _request_timeout=timeout,
            )
        except (ClientError, TimeoutError, OSError) as error:
            raise _unreachable(method, path, error) from error
        return answer

    def _rest(self, path: str, asked: str) -> None:
        pause_s = min(float(asked), MOST_PAUSE_S) if asked.isdigit() else PAUSE_S
        log.info("the API server is asked less for a while, as it says", path=path, pause_s=pause_s)
        self._pace.hold(asyncio.get_running_loop().time() + pause_s)


def _client() -> tuple[type[ApiClient], type[Configuration], ModuleType]:
    """Import what is used of kubernetes_asyncio: what reads configurations looks for two classes in the package beside it."""
    leave_unloaded(*UNUSED)
    from kubernetes_asyncio.client.api_client import ApiClient
    from kubernetes_asyncio.client.configuration import Configuration

    vars(sys.modules[CLIENT]).update(ApiClient=ApiClient, Configuration=Configuration)
    from kubernetes_asyncio import config

    return ApiClient, Configuration, config


# -- answers ---------------------------------------------------------------------------------------------------------------


def _hang_up(answer: ClientResponse) -> None:
    """Drop the connection of an answer that is not read to its end."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()


async def _read(answer: ClientResponse) -> bytes:
    parts, size = list[bytes](), 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise BadMessage(
                f"{answer.url.path} answers with more than {MOST_BYTES} bytes: it is read in pages"
            )
    return b"".join(parts)


async def _lines(answer: ClientResponse, path: str) -> AsyncGenerator[bytes, None]:
    """Yield whole lines; of one that is too long nothing."""
    rest = b""
    try:
        async for part in answer.content.iter_any():
            *lines, rest = (rest + part).split(b"\n") if b"\n" in part else (rest + part,)
            for line in lines:
                if line:
                    yield line
            if len(rest) > MOST_EVENT_BYTES:
                raise BadMessage(f"a watch of {path} sends a line of more than {MOST_EVENT_BYTES} bytes")
    except (ClientError, TimeoutError, OSError) as error:
        raise _unreachable("WATCH", path, error) from error


async def _refusal(answer: ClientResponse, method: str, path: str) -> ApiRefused | ApiUnreachable:
    try:
        said = decoded(await _read(answer), Status)
    except (ClientError, TimeoutError, OSError, BadMessage):
        said = Status()
    message = f"{method} {path}: {said.message or answer.reason} ({answer.status})"
    if answer.status >= 500:
        return ApiUnreachable(message)
    return ApiRefused(message, answer.status, said.reason or str(answer.status))


def decoded(body: bytes | msgspec.Raw, cls: type[T]) -> T:
    """Return what bytes of the API server are. Raises BadMessage."""
    try:
        return msgspec.json.decode(body, type=cls)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessage(f"the API server sent no {cls.__name__}: {error}") from error


def _unreachable(method: str, path: str, error: Exception) -> ApiUnreachable:
    return ApiUnreachable(f"{method} {path}: the API server does not answer ({type(error).__name__} {error})")
