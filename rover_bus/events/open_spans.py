"""Spans that have begun and not ended, as the records of a log tell of them: a table, bounded, without a clock.

Filled by what makes spans of a log (master/spans.py, brain/spans.py); apart, because what a replay begins and what an older fact
begins must come to one table, and nothing that ended may begin again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from rover_bus.events.traces import Context, SpanName, TraceSpan, Value

MOST_OPEN = 4096  # of one log: what was begun first is dropped, and its span never made
MS = 1_000_000
NOTHING: Mapping[str, Value] = {}


@dataclass(slots=True)
class OpenSpan:
    """A span without an end."""

    name: SpanName
    context: Context
    parent: Context | None
    start_ms: int
    attributes: dict[str, Value] = field(default_factory=dict)


class OpenSpans:
    """By key: the kind of span, and what it is of."""

    def __init__(self) -> None:
        self._open: dict[Hashable, OpenSpan] = {}
        self._ended: dict[Hashable, None] = {}  # whose begin was not seen here

    def __contains__(self, key: Hashable) -> bool:
        return key in self._open

    def begin(self, key: Hashable, span: OpenSpan) -> None:
        """Begin a span; one that is open already goes on."""
        self._open.setdefault(key, span)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def end(
        self, key: Hashable, end_ms: int, about: Mapping[str, Value] = NOTHING, *, failed: str = ""
    ) -> list[TraceSpan]:
        """Return the span that ends, with what is known of it now: none where it was not open."""
        span = self._open.pop(key, None)
        if span is None:
            self._ended[key] = None
            if len(self._ended) > MOST_OPEN:
                del self._ended[next(iter(self._ended))]
            return []
        return [
            TraceSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                start_ns=span.start_ms * MS,
                end_ns=max(end_ms, span.start_ms) * MS,
                failed=failed,
                attributes={**span.attributes, **about},
            )
        ]

    def drop(self, key: Hashable) -> None:
        """Forget a span: it never ends."""
        self._open.pop(key, None)

    def recall(self, older: OpenSpans) -> None:
        """Take over what began before the first record that was read here, and has not ended since."""
        for key, span in older._open.items():
            if key not in self._ended:
                self._open.setdefault(key, span)
        self._ended.clear()
