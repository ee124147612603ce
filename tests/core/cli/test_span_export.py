"""Spans as OpenTelemetry has them, and when they are wanted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rover_bus.cli.span_export import Reported, SpanExport
from rover_bus.cli.span_settings import endpoint_of, inherited
from rover_bus.events import traces
from rover_bus.events.traces import TraceSpan


@pytest.fixture
def kept() -> Iterator[tuple[SpanExport, InMemorySpanExporter]]:
    memory = InMemorySpanExporter()
    export = SpanExport("master", "master-0.1", {}, SimpleSpanProcessor(memory))
    yield export, memory
    export.close()


def test_a_span_leaves_with_its_own_ids_times_and_parent(
    kept: tuple[SpanExport, InMemorySpanExporter],
) -> None:
    export, memory = kept
    plan = traces.begun("uid", "plan:4")
    step = traces.within(plan, "plan.apply")
    span = TraceSpan(
        name="plan.apply", context=step, parent=plan, start_ns=5, end_ns=9, attributes={"rover.plan": 4}
    )
    export.take(span)
    export.take(TraceSpan(name="plan", context=plan, parent=None, start_ns=1, end_ns=9, failed="refused"))
    first, root = memory.get_finished_spans()
    assert (first.name, first.start_time, first.end_time) == ("plan.apply", 5, 9)
    assert (first.context.trace_id, first.context.span_id) == step
    assert first.parent is not None
    assert (first.parent.trace_id, first.parent.span_id) == plan
    assert dict(first.attributes or {}) == {"rover.plan": 4}
    assert (root.context.trace_id, root.context.span_id, root.parent) == (*plan, None)
    assert (root.status.status_code, root.kind) == (StatusCode.ERROR, SpanKind.INTERNAL)
    assert root.resource.attributes["service.name"] == "rover-master"


def test_a_traceparent_is_read_back_and_what_is_none_is_not() -> None:
    plan = traces.begun("uid", "plan:4")
    assert traces.read(plan.traceparent) == plan
    for broken in ("", "00-0-0-01", f"00-{0:032x}-{1:016x}-01", plan.traceparent.upper() + "x"):
        assert traces.read(broken) is None


def test_two_runs_of_a_name_and_two_plans_have_traces_of_their_own() -> None:
    ids = {traces.begun(run, f"plan:{number}") for run in ("a", "b") for number in range(50)}
    assert len({each.trace_id for each in ids}) == len({each.span_id for each in ids}) == 100


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, "http://c/t"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, ""),
    ],
)
def test_spans_are_wanted_where_the_standard_variables_say_so(
    environment: dict[str, str], endpoint: str
) -> None:
    assert endpoint_of(environment) == endpoint


def test_masters_in_pods_get_the_settings_and_not_the_name() -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SERVICE_NAME": "operator", "HOME": "/"}
    assert inherited(given) == {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert inherited({"OTEL_SERVICE_NAME": "operator"}) == {}


class Refusing(SpanExporter):
    """A collector that takes nothing until it is told to."""

    takes = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE


def test_spans_that_are_lost_are_one_line_and_their_end_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusing = Refusing()
    export = SpanExport("master", "master-0.1", {}, SimpleSpanProcessor(Reported(refusing, "http://c:4318")))
    span = TraceSpan(name="plan", context=traces.begun("u", "plan:1"), parent=None, start_ns=1, end_ns=2)
    for takes in (False, False, False, True, True):
        refusing.takes = takes
        export.take(span)
    export.close()
    assert [record.message.split(" collector")[0] for record in caplog.records] == [
        "spans are lost: the job goes on",
        "spans leave again",
    ]
    assert "lost=3" in caplog.records[1].message
