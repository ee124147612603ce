"""The spans of a host: from the order of a member until its process runs. And of what each order is part of.

Put around a daemon (`traced`), between it and what it reads, orders and observes: the daemon knows nothing of it. A restarted
daemon makes none of members that it finds. Apart, because nothing is decided by it, and without traces there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from rover_bus.events import traces
from rover_bus.events.bus import Stored
from rover_bus.events.fact import Fact
from rover_bus.events.facts import MembersDesired, PlanProposed
from rover_bus.events.identity import Member, Resources
from rover_bus.events.traces import Context, TraceSpan
from rover_bus.node.host import Host
from rover_bus.node.port import (
    Exited,
    Incarnation,
    Key,
    Observation,
    Observe,
    Platform,
    Running,
    StartOrder,
)

MOST_JOBS = 4096
MakePlatform = Callable[[Observe], Platform]


def traced(host: Host, platform: MakePlatform) -> tuple[Host, MakePlatform]:
    """Return what a daemon is given, so that spans are made of it; as it is, where traces are off."""
    if not traces.is_on():
        return host, platform
    spans, read = HostSpans(host.name), host.read

    def read_and_follow(stored: Stored) -> Fact:
        fact = read(stored)
        spans.follow(fact, stored)
        return fact

    def attach(observe: Observe) -> Platform:
        def observe_within(seen: Observation) -> None:
            with traces.following(spans.observe(seen)):
                observe(seen)

        return cast(Platform, TracedPlatform(platform(observe_within), spans))

    return replace(host, read=read_and_follow), attach


class TracedPlatform:
    """A platform whose orders are part of what led to them; all else is the platform's own."""

    def __init__(self, platform: Platform, spans: HostSpans) -> None:
        self._platform, self._spans = platform, spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def start(self, order: StartOrder) -> None:
        with traces.following(self._spans.start_of(order.incarnation)):
            self._platform.start(order)

    def stop(self, incarnation: Incarnation, hurried: bool = False) -> None:
        with traces.following(self._spans.change_of(incarnation.job)):
            self._platform.stop(incarnation, hurried)

    def adjust(self, incarnation: Incarnation, resources: Resources, cpus: Mapping[int, float]) -> None:
        with traces.following(self._spans.change_of(incarnation.job)):
            self._platform.adjust(incarnation, resources, cpus)


class HostSpans:
    """One daemon's."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._newest: dict[str, Context] = {}  # by job: what changed its members last
        self._named: dict[str, dict[Member, Context]] = {}  # by job: what named each member first
        self._ordered: dict[Key, tuple[Incarnation, Context, int]] = {}

    def follow(self, fact: object, stored: Stored) -> None:
        """A fact says what shall run: what it names first is part of what it is part of."""
        if not isinstance(fact, MembersDesired | PlanProposed):
            return
        context = traces.of_headers(stored.headers)
        if context is None:
            return
        self._newest[fact.job] = context
        if isinstance(fact, MembersDesired):
            known = self._named.get(fact.job, {})
            self._named[fact.job] = {each.member: known.get(each.member, context) for each in fact.members}
        for table in (self._newest, self._named):
            if len(table) > MOST_JOBS:
                table.pop(next(iter(table)))

    def start_of(self, run: Incarnation) -> Context | None:
        """A member is ordered: return the span that its start is. What the host restarts by itself is part of nothing."""
        named = self._named.get(run.job, {}).get(run.member)
        if named is None and run.member.role == "master" and run.member.incarnation == 1:
            named = self._newest.get(run.job)  # its job's first plan gave it its seat
        if named is None:
            return None
        context = traces.within(named, f"member.process {run.member}")
        self._ordered[run.key] = run, named, time.time_ns()
        return context

    def change_of(self, job: str) -> Context | None:
        """Return what a member that leaves, or is changed, leaves or changes by."""
        return self._newest.get(job)

    def observe(self, seen: Observation) -> Context | None:
        """A member runs, or never will: its span is over, and let go. Returns it."""
        if not isinstance(seen, Running | Exited):
            return None
        key = seen.key if isinstance(seen, Running) else (seen.job, seen.member.name)
        ordered = self._ordered.pop(key, None)
        if ordered is None or (isinstance(seen, Exited) and seen.member != ordered[0].member):
            return None
        run, parent, since_ns = ordered
        span = TraceSpan(
            name="member.process",
            context=traces.within(parent, f"member.process {run.member}"),
            parent=parent,
            start_ns=since_ns,
            end_ns=time.time_ns(),
            failed=f"{seen.exit.reason}: {seen.exit.detail}" if isinstance(seen, Exited) else "",
            attributes={
                "rover.job": run.job,
                "rover.member": str(run.member),
                "rover.host": self._host,
                "rover.warm": isinstance(seen, Running) and seen.warm,
            },
        )
        traces.emit(span)
        return span.context
