"""Spans to an OpenTelemetry collector, by the SDK: the only module that imports it.

Fed by events/traces.py with spans that are over; a thread of the SDK sends them in batches (OTLP by HTTP). A collector that
does not answer costs spans and one line in the log: the queue is bounded, and nothing that trains or decides waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Self

from opentelemetry.context import Context as OtelContext
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from rover_bus import __version__
from rover_bus.events.logs import get_logger
from rover_bus.events.traces import Context, TraceSpan

FAREWELL_S = 1.0  # for what has not left when a service ends
log = get_logger("rover.traces")


class SpanExport:
    """Where spans of one process go. `processor`: the SDK's, with its exporter."""

    def __init__(self, role: str, instance: str, environment: Mapping[str, str], processor: SpanProcessor):
        about = {"service.version": __version__, "service.instance.id": instance}
        if "OTEL_SERVICE_NAME" not in environment:
            about["service.name"] = f"rover-{role}"
        self._ids = NamedIds()
        self._provider = TracerProvider(
            resource=Resource.create(about), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("rover_bus", __version__)

    @classmethod
    def by_otlp(cls, role: str, instance: str, endpoint: str, environment: Mapping[str, str]) -> Self:
        """Return what sends spans to a collector, as OpenTelemetry's variables say. `endpoint`: for people to read."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # one line says it: `Reported`
        by_default = not any(
            name.startswith("OTEL_EXPORTER_OTLP") and name.endswith("ENDPOINT") for name in environment
        )
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces" if by_default else None)
        return cls(role, instance, environment, BatchSpanProcessor(Reported(exporter, endpoint)))

    def take(self, span: TraceSpan) -> None:
        """Let a span go. Raises nothing: a span that the SDK does not take is lost."""
        try:
            self._make(span)
        except Exception as error:  # noqa: BLE001 - whatever it is, no service ends by it
            log.warning("a span is lost", span=span.name, why=repr(error))

    def _make(self, span: TraceSpan) -> None:
        self._ids.next = span.context
        made = self._tracer.start_span(
            span.name,
            context=OtelContext() if span.parent is None else set_span_in_context(_remote(span.parent)),
            kind=SpanKind.CLIENT if span.name == "api.call" else SpanKind.INTERNAL,
            attributes=span.attributes,
            start_time=span.start_ns,
        )
        if span.failed:
            made.set_status(Status(StatusCode.ERROR, span.failed))
        made.end(span.end_ns)

    def close(self) -> None:
        """Let what is left go, within FAREWELL_S."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FAREWELL_S)


class NamedIds(IdGenerator):
    """The ids of the span that is made next: they are made of names (events/traces.py)."""

    def __init__(self) -> None:
        self.next = Context(1, 1)

    def generate_span_id(self) -> int:
        return self.next.span_id

    def generate_trace_id(self) -> int:
        return self.next.trace_id


class Reported(SpanExporter):
    """An exporter whose failures are one line, and their end another."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter, self._endpoint = exporter, endpoint
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - of the exporter's thread: the next batch is tried
            result, why = SpanExportResult.FAILURE, repr(error)
        else:
            why = "it does not answer, or takes none"
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning("spans are lost: the job goes on", collector=self._endpoint, why=why)
            self._lost += len(spans)
        elif self._lost:
            log.info("spans leave again", collector=self._endpoint, lost=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _remote(parent: Context) -> NonRecordingSpan:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return NonRecordingSpan(SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=sampled))
