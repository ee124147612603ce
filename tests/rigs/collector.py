"""An OpenTelemetry collector as tests need one: takes spans by OTLP over HTTP from real processes, and keeps them.

It decodes what arrives by OpenTelemetry's own messages, so that what a real collector could not read is an error here too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from patience import until

from bench.otlp import taking_spans


@dataclass(frozen=True)
class Seen:
    """A span as it arrived. `service`: whose it is; `parent`: "" for the first of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]


class Collector:
    """What arrived, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Seen] = []

    def named(self, name: str, **attributes: Any) -> list[Seen]:
        wanted = {f"rover.{key}": value for key, value in attributes.items()}
        return [
            each for each in self.spans if each.name == name and wanted.items() <= each.attributes.items()
        ]

    def wait_for(self, name: str, **attributes: Any) -> Seen:
        until(
            lambda: self.named(name, **attributes),
            f"span {name} {attributes}",
            0.1,
            lambda: sorted({(each.service, each.name) for each in self.spans}),
        )
        return self.named(name, **attributes)[0]

    def of(self, trace: str) -> list[Seen]:
        return [each for each in self.spans if each.trace == trace]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = str(_plain(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_seen(service, span) for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector, until the `with` ends."""

    collector = Collector()
    with taking_spans(collector.take) as collector.url:
        yield collector


@contextmanager
def never_answering() -> Iterator[str]:
    """An endpoint that takes connections and says nothing, until the `with` ends: its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def environment(**more: str) -> Iterator[None]:
    """What is started meanwhile finds these variables."""
    before = {key: os.environ.get(key) for key in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _plain(span.attributes),
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
