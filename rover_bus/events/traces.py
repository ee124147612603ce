"""Spans of what takes long enough to ask why: a plan and its steps, a member's start, a checkpoint, a round of the Brain.

Made by deciders' neighbours from the records of their logs (master/spans.py, brain/spans.py), and by shells around what they do;
leaves by whatever the composition root has set (`send_to`). Off unless something was: then nothing here is called but `is_on`.

Ids are made of names, not of dice: a trace is named after the run and the plan (checkpoint, member set) that it is of, a span after
its trace and its step. So every process knows the id of a span that another one will end, also after a restart, and a span that is
made again is the same one. What crosses to another process is the `traceparent` of W3C Trace Context in the header of an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import xxhash

HEADER = "traceparent"
VARIABLE = "TRACEPARENT"  # of a member's environment
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

SpanName = Literal[
    "plan",
    "plan.check",
    "plan.approval",
    "plan.apply",
    "plan.measure",
    "members.change",
    "member.process",
    "member.admission",
    "member.first_commit",
    "rollout",
    "checkpoint",
    "checkpoint.stage",
    "checkpoint.store",
    "brain.round",
    "api.call",
]
Value = str | int | float | bool


class Context(NamedTuple):
    """Which span others are part of. Both are not 0."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """Something that is over. Times in Unix nanoseconds.

    `parent`: None for the first span of a trace. `failed`: why; "": it did not.
    """

    name: SpanName
    context: Context
    parent: Context | None
    start_ns: int
    end_ns: int
    failed: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)


Sink = Callable[[TraceSpan], None]


# -- ids ---------------------------------------------------------------------------------------------------------------


def begun(run: str, of: str) -> Context:
    """Return the first span of a trace. `run`: the uid of a job; `of`: what of it, as causes name it (`plan:4`)."""
    name = f"{run}/{of}".encode()
    return Context(xxhash.xxh3_128_intdigest(name) or 1, xxhash.xxh3_64_intdigest(name) or 1)


def within(parent: Context, step: str) -> Context:
    """Return the context of a step of a span. `step`: its name, and what tells it from others of its name."""
    return Context(parent.trace_id, xxhash.xxh3_64_intdigest(f"{parent.span_id:016x}/{step}".encode()) or 1)


def read(traceparent: str) -> Context | None:
    """Return what a `traceparent` says; None where it is missing or none."""
    found = _TRACEPARENT.fullmatch(traceparent)
    context = Context(int(found[1], 16), int(found[2], 16)) if found else None
    return context if context is not None and all(context) else None


# -- where spans go ----------------------------------------------------------------------------------------------------


class _Way:
    """Where this process's spans go; None: nowhere, and none is made."""

    sink: Sink | None = None


def is_on() -> bool:
    """Whether spans go anywhere."""
    return _Way.sink is not None


def send_to(sink: Sink | None) -> None:
    """Let this process's spans go there from now on; None: nowhere."""
    _Way.sink = sink


def emit(span: TraceSpan) -> None:
    """Let a span go. It waits for nothing, and raises nothing."""
    if _Way.sink is not None:
        _Way.sink(span)


# -- what is being done ------------------------------------------------------------------------------------------------

_CURRENT: ContextVar[Context | None] = ContextVar("rover_trace", default=None)


def current() -> Context | None:
    """Return the span that what is being done here is part of; None where there is none, or traces are off."""
    return _CURRENT.get()


@contextmanager
def following(context: Context | None) -> Iterator[None]:
    """What is done in the body, and in tasks that it begins, is part of this span."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def leave() -> None:
    """What this task does from here on is part of no span."""
    _CURRENT.set(None)


def of_headers(headers: Mapping[str, str] | None) -> Context | None:
    """Return the span that an event is part of, where traces are on."""
    return read(headers.get(HEADER, "")) if is_on() and headers else None


def environment() -> dict[str, str]:
    """Return what a process that is begun here finds of the span that it is part of."""
    context = current()
    return {} if context is None else {VARIABLE: context.traceparent}


def named(context: Context | None) -> dict[str, str]:
    """Return what log lines bear of a span."""
    return {} if context is None else {"trace_id": f"{context.trace_id:032x}"}
