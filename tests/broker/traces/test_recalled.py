"""A successor that begins behind a snapshot of the log ends spans that its records do not show the begin of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from live_bus import connect

from rover_bus.events import traces
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.fact import JobFact, Record
from rover_bus.events.facts import (
    JobOpened,
    MemberAdmitted,
    MembersDesired,
    PlanApplied,
    PlanSettled,
)
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec
from rover_bus.events.log import Committed
from rover_bus.events.outbox import FactOut, subject_of, write_headers
from rover_bus.events.streams import FACTS
from rover_bus.events.traces import TraceSpan
from rover_bus.events.tracing import LogTracer
from rover_bus.master.decider import MasterDecider
from rover_bus.master.spans import MasterSpans

JOB, UID, TIMELINE = "ads", "f0165c8dd60f90c9", 7
SERVER, WORKER = Member("ps", 0, 1), Member("worker", 0, 1)
SPEC = JobSpec(
    name=JOB,
    program=["python", "train.py"],
    workers=RoleSpec(count=1),
    servers=RoleSpec(count=1),
    data=DataSpec(train="t.csv", batch_size=32),
)
BEFORE: list[tuple[int, JobFact]] = [
    (2, JobOpened(spec=SPEC, uid=UID, timeline=TIMELINE)),
    (3, PlanApplied(plan=1, workers=1, servers=1)),
    (
        4,
        MembersDesired(
            plan=1,
            proposal=1,
            uid=UID,
            members=[DesiredMember(member=each, host="h1") for each in (SERVER, WORKER)],
        ),
    ),
    (5, MemberAdmitted(member=SERVER, host="h1")),
]
SNAPSHOT = 10
AFTER: list[Record] = [
    MemberAdmitted(member=WORKER, host="h1"),
    Committed(worker=0, incarnation=1, request=2, tokens=[1], uptos=[3]),
    Committed(worker=0, incarnation=1, request=3, tokens=[1], uptos=[6]),
    PlanSettled(plan=1),
]


@pytest.fixture
def made() -> Any:
    """The spans that were let go."""
    spans = list[TraceSpan]()
    traces.send_to(spans.append)
    yield spans
    traces.send_to(None)


async def take_over(bus: Bus) -> tuple[dict[int, int], LogTracer]:
    """Store what the log before its snapshot made, and take over from the snapshot; returns when each batch's fact was stored."""
    decider = MasterDecider(JOB)
    for batch, fact in BEFORE:
        decider.evolve(fact)
        [item, *_] = [each for each in decider.outgoing(fact, (batch, 0), 1) if isinstance(each, FactOut)]
        body = encode(item.fact)
        headers = write_headers(item, body, JOB, TIMELINE, "master-0.1")
        await bus.append(FACTS, subject_of(item.fact), body, headers=headers)
    stored_ms = {batch: 0 for batch, _ in BEFORE}
    async for stored in bus.read(FACTS, f"rover.job.{JOB}.>"):
        stored_ms[BEFORE[stored.sequence - 1][0]] = stored.time_ms
    successor = MasterDecider(JOB)
    successor.restore(decider.dump())
    tracer = LogTracer(bus, MasterSpans(JOB, lambda: successor.state), successor.position_of)
    tracer.replayed(
        Committed(worker=9, incarnation=1, request=1, tokens=[], uptos=[]), SNAPSHOT, stored_ms[5] + 60_000
    )
    return stored_ms, tracer


@pytest.mark.parametrize("late", [False, True])
def test_a_successor_ends_what_began_before_its_snapshot(
    tmp_path: Path, made: list[TraceSpan], late: bool
) -> None:
    """`late`: what ends is stored before the successor has read what is open."""

    async def scene() -> dict[int, int]:
        with EmbeddedBroker(tmp_path / "broker") as broker:
            bus = await connect(broker)
            try:
                stored_ms, tracer = await take_over(bus)
                now_ms = stored_ms[5] + 90_000
                if late:
                    tracer.released(AFTER, SNAPSHOT + 1, now_ms)
                    assert made == []
                await tracer.run()
                if not late:
                    tracer.released(AFTER, SNAPSHOT + 1, now_ms)
                return stored_ms
            finally:
                await bus.close()

    stored_ms = asyncio.run(scene())
    assert [(each.name, each.attributes.get("rover.member")) for each in made] == [
        ("member.admission", "worker-0.1"),
        ("members.change", None),
        ("member.first_commit", "worker-0.1"),
        ("plan.apply", None),
    ]
    admission, change, _, applied = made
    assert {each.context.trace_id for each in made} == {traces.begun(UID, "plan:1").trace_id}
    assert [each.start_ns // 1_000_000 for each in (admission, change, applied)] == [
        stored_ms[4],
        stored_ms[4],
        stored_ms[3],
    ]


def test_a_replay_makes_no_span(tmp_path: Path, made: list[TraceSpan]) -> None:
    async def scene() -> None:
        with EmbeddedBroker(tmp_path / "broker") as broker:
            bus = await connect(broker)
            try:
                _, tracer = await take_over(bus)
                for each in AFTER:
                    tracer.replayed(each, SNAPSHOT + 1, 1)
                await tracer.run()
                tracer.released([PlanSettled(plan=1)], SNAPSHOT + 2, 2)
            finally:
                await bus.close()

    asyncio.run(scene())
    assert made == []
