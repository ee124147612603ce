"""Whether a service makes spans, and where they go: by OpenTelemetry's own environment variables, and off without them.

Read once a process by serve.py. What exports (span_export.py) is imported where it is wanted only: a service without traces loads
nothing of OpenTelemetry. A setting that cannot be followed costs spans, and no service its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rover_bus.events import traces
from rover_bus.events.logs import get_logger

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER = "OTEL_TRACES_EXPORTER"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PREFIX, OWN_NAME = "OTEL_", "OTEL_SERVICE_NAME"
TRACED = ("brain", "master", "daemon", "operator")  # what makes spans
log = get_logger("rover.traces")


def endpoint_of(environment: Mapping[str, str]) -> str:
    """Return where spans go, "" where none are wanted; logs a line where they are wanted in a way that there is not."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    endpoint = next((environment[name] for name in ENDPOINTS if environment.get(name)), "")
    match environment.get(EXPORTER, "").strip():
        case "":
            pass
        case "otlp":
            endpoint = endpoint or "http://localhost:4318"
        case "none":
            return ""
        case other:
            log.warning("no spans are made", why=f"${EXPORTER}={other}: write otlp or none")
            return ""
    named = next((name for name in PROTOCOLS if environment.get(name)), "")
    if endpoint and named and environment[named] != "http/protobuf":
        why = f"${named}={environment[named]}: spans leave by http/protobuf alone (port 4318 of most collectors)"
        log.warning("no spans are made", why=why)
        return ""
    return endpoint


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a master finds in its environment where another machine starts it: the same settings, under its own name."""
    if not endpoint_of(environment):
        return {}
    return {key: value for key, value in environment.items() if key.startswith(PREFIX) and key != OWN_NAME}


@contextmanager
def spans_leaving(role: str, instance: str, environment: Mapping[str, str]) -> Iterator[None]:
    """While the body runs, this process's spans leave, where that is wanted. `instance`: what tells it from others of its role."""
    endpoint = endpoint_of(environment) if role in TRACED else ""
    if not endpoint:
        yield
        return
    try:
        from rover_bus.cli.span_export import SpanExport
    except ImportError as error:
        why = f"{error}: pip install 'rover-bus[traces]', or unset {' and '.join(ENDPOINTS)}"
        log.warning("no spans are made", why=why)
        yield
        return
    export = SpanExport.by_otlp(role, instance, endpoint, environment)
    traces.send_to(export.take)
    try:
        yield
    finally:
        traces.send_to(None)
        export.close()
