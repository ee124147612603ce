"""What traces cost the path of a lease: `python -m bench.leases --traces`.

The same load on a master whose spans leave to a collector, and on one that makes none, in turn: what else the machine does meets
both. Fed by leases.py with how one load is measured. A traced master looks at each record of its log; no lease has a span.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench.otlp import taking_spans

ENDPOINT, DELAY = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY"
DELAY_MS = "500"  # a master is ended without a word: what it has not sent by then is lost
FIGURES = ("shards_per_second", "p50_ms", "p99_ms", "master_cpu_us_a_call")


def show_traced(measure: Callable[[], dict[str, Any]], pairs: int, as_json: bool) -> None:
    """Print medians of each arm and their ratio. Raises SystemExit where they are of nothing: a log that lacks leases, no span."""
    rows: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    collector = SpanCount()
    with taking_spans(collector.take) as url:
        for number in range(pairs):
            for arm in ("off", "on") if number % 2 == 0 else ("on", "off"):
                with variables({ENDPOINT: url if arm == "on" else "", DELAY: DELAY_MS}):
                    before = collector.spans
                    rows[arm].append({**measure(), "spans": collector.spans - before})
                if arm == "off" and collector.spans > before:
                    raise SystemExit("the master of the arm without traces made spans")
    medians = {
        arm: {name: statistics.median(row[name] for row in of) for name in FIGURES}
        for arm, of in rows.items()
    }
    ratios = {name: round(medians["on"][name] / medians["off"][name], 3) for name in FIGURES}
    print(f"traces  {'  '.join(f'{name:>20}' for name in FIGURES)}")
    for arm, said in {**medians, "on/off": ratios}.items():
        print(f"{arm:6}  {'  '.join(f'{said[name]:>20,}' for name in FIGURES)}")
    print(
        f"medians of {pairs}; spans of each run with traces: {', '.join(str(row['spans']) for row in rows['on'])}"
    )
    if as_json:
        print(json.dumps({"rows": rows, "medians": medians, "ratios": ratios}))
    if not all(row["log_agrees"] for of in rows.values() for row in of):
        raise SystemExit("a log, replayed, holds another count than the clients committed")
    if not all(row["spans"] for row in rows["on"]):
        raise SystemExit("a master with traces on sent no span: this compares nothing")


class SpanCount:
    """How many spans have arrived."""

    def __init__(self) -> None:
        self.spans = 0

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.spans += sum(len(scope.spans) for scope in resource.scope_spans)


@contextmanager
def variables(said: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile finds these variables, and no other ones of OpenTelemetry; "" is none."""
    former = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    for name in former:
        del os.environ[name]
    os.environ.update({name: value for name, value in said.items() if value})
    try:
        yield
    finally:
        for name in said:
            os.environ.pop(name, None)
        os.environ.update(former)
