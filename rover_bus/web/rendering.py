"""Figures as Prometheus reads them. Rendering runs in a thread: its input is a list that nothing changes.

Fed by server.py with the page's figures, and with the requests that were answered; what is rendered is checked against the table of
families, so a name or a label that no page of the documentation has is an error and no series.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rover_bus.web.families import FAMILIES, OWN, MetricFamily
from rover_bus.web.port import Figure

STATUSES = ("2xx", "3xx", "4xx", "5xx")
__all__ = ["CONTENT_TYPE", "Rendering"]


class Rendering:
    """Turns figures into text. `routes`: by whose names requests are counted."""

    def __init__(self, routes: Sequence[str], release: str) -> None:
        self._requests = {(route, status): 0 for route in routes for status in STATUSES}
        self._lock = threading.Lock()
        self._started_s = time.time()
        self._release = release

    def count(self, route: str, status: int) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[route, f"{status // 100}xx"] += 1

    def render(self, figures: Iterable[Figure]) -> bytes:
        """Return the text of figures and of what this process counts of itself. Raises KeyError for an unknown family."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once([*figures, *self._own()]))
        return generate_latest(registry)

    def _own(self) -> Iterator[Figure]:
        with self._lock:
            requests = dict(self._requests)
        for (route, status), count in requests.items():
            yield Figure("rover_http_requests_total", (route, status), count)
        yield Figure("rover_web_start_time_seconds", (), self._started_s)
        yield Figure("rover_build_info", (self._release,), 1)


class _Once(Collector):
    """Hands figures to the library in the order of the table, once."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._by_family: dict[str, list[Figure]] = defaultdict(list)
        for figure in figures:
            self._by_family[figure.family].append(figure)
        unknown = self._by_family.keys() - {family.name for family in (*FAMILIES, *OWN)}
        if unknown:
            raise KeyError(f"no family is called {', '.join(sorted(unknown))}")

    def collect(self) -> Iterator[Metric]:
        for family in (*FAMILIES, *OWN):
            figures = self._by_family[family.name]
            for figure in figures:
                if len(figure.labels) != len(family.labels):
                    raise KeyError(f"{family.name} has the labels {family.labels}, not {figure.labels}")
            yield _histogram(family, figures) if family.kind == "histogram" else _metric(family, figures)


def _metric(family: MetricFamily, figures: Iterable[Figure]) -> CounterMetricFamily | GaugeMetricFamily:
    metric = _empty(family)
    for figure in figures:
        metric.add_metric(figure.labels, figure.value)
    return metric


def _histogram(family: MetricFamily, figures: Iterable[Figure]) -> HistogramMetricFamily:
    metric = HistogramMetricFamily(family.name, family.about)
    counts = {figure.labels[0]: figure.value for figure in figures}
    total = counts.pop("sum", 0.0)
    if counts:
        metric.add_metric((), [*counts.items()], total)
    return metric


def _empty(family: MetricFamily) -> CounterMetricFamily | GaugeMetricFamily:
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.about, labels=family.labels)
    return GaugeMetricFamily(family.name, family.about, labels=family.labels)
