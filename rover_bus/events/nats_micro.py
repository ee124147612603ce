"""A NATS micro service in a few counters: what `nats micro ls | info | stats` ask for, and the answers.

Fed by nats_bus.py with requests and the way to answer them; feeds handlers, and callers with counters and JSON bodies (NATS ADR-32,
`io.nats.micro.v1`). It is apart, and not nats-py's `nats.micro`, because our handlers are plain calls that answer later, out
of a group commit; because its times run until that answer; and because everything is restored on a new client. A request
costs the same (bench/bus.py).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from rover_bus.events.bus import Message
from rover_bus.events.nats_wire import Raw

VERBS = ("PING", "INFO", "STATS")
QUEUE = "q"  # the protocol's default queue group
ERROR = "Nats-Service-Error"
ERROR_CODE = "Nats-Service-Error-Code"


class SendBytes(Protocol):
    """Publish soon; safe to call from a plain function."""

    def __call__(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None: ...


@dataclass(slots=True)
class Endpoint:
    """One subject of a service and its counters. Times run from arrival to answer."""

    name: str
    subject: str
    requests: int = 0
    errors: int = 0
    processing_ns: int = 0
    last_error: str = ""

    def serving(
        self, handler: Callable[[Message], None], send: SendBytes
    ) -> Callable[[Raw], Awaitable[None]]:
        """Return what takes requests: it counts, and tells the asker when the handler breaks."""

        def respond(began_ns: int, reply: str, body: bytes) -> None:
            self.processing_ns += time.perf_counter_ns() - began_ns
            send(reply, body)

        async def serve(raw: Raw) -> None:
            self.requests += 1
            answer = partial(respond, time.perf_counter_ns(), raw.reply) if raw.reply else None
            try:
                handler(Message(raw.subject, raw.data, raw.headers or {}, answer))
            except Exception as error:
                self.errors += 1
                self.last_error = repr(error)
                if raw.reply:
                    send(raw.reply, b"", {ERROR: type(error).__name__, ERROR_CODE: "500"})
                raise

        return serve


@dataclass(slots=True)
class Service:
    """A service as others see it. `started` is RFC 3339."""

    id: str
    name: str
    version: str
    started: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoints: list[Endpoint] = field(default_factory=list)

    def questions(self) -> list[str]:
        """Return the subjects of everything that may be asked of it; the second token is the verb. A subscription costs its process
        a task: an operator has services for each of a hundred nodes.
        """
        return [f"$SRV.*{end}" for end in ("", f".{self.name}", f".{self.name}.{self.id}")]

    def describing(self, send: SendBytes) -> Callable[[Raw], Awaitable[None]]:
        """Return what answers all verbs."""

        async def describe(raw: Raw) -> None:
            verb = raw.subject.split(".")[1]
            if raw.reply and verb in VERBS:
                send(raw.reply, self.answer(verb))

        return describe

    def answer(self, verb: str) -> bytes:
        """Return the JSON body that answers `verb` (PING, INFO, STATS)."""
        body: dict[str, Any] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": dict(self.metadata),
        }
        if verb == "INFO":
            body |= {
                "description": "rover_bus",
                "endpoints": [_info(endpoint) for endpoint in self.endpoints],
            }
        if verb == "STATS":
            body |= {"started": self.started, "endpoints": [_stats(endpoint) for endpoint in self.endpoints]}
        return msgspec.json.encode(body)


def name_endpoints(subjects: Iterable[str]) -> list[Endpoint]:
    """Name endpoints by the last token of their subject, or by all tokens where that is not unique."""
    listed = list(subjects)
    short = [subject.rpartition(".")[2] for subject in listed]
    return [
        Endpoint(name if short.count(name) == 1 else subject.replace(".", "-"), subject)
        for name, subject in zip(short, listed, strict=True)
    ]


def _info(endpoint: Endpoint) -> dict[str, Any]:
    return {"name": endpoint.name, "subject": endpoint.subject, "queue_group": QUEUE, "metadata": {}}


def _stats(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": QUEUE,
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": endpoint.last_error,
        "processing_time": endpoint.processing_ns,
        "average_processing_time": endpoint.processing_ns // max(1, endpoint.requests),
        "data": {},
    }
