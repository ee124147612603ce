"""Storing what people and programs say of jobs, hosts and the cluster: one fact a call, safe to repeat.

Used by the command line and by what follows RoverJobs. Services with a log have an outbox instead (outbox.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import check_input, encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import BusTimeout, NotConnected, Refused, WrongSequence
from rover_bus.events.fact import Fact, JobFact
from rover_bus.events.facts import JobSubmitted
from rover_bus.events.streams import FACTS
from rover_bus.events.tenancy import of_account

PATIENCE_S = 10.0
AGAIN_S = 0.1


async def state_of_job(
    bus: Bus, fact: JobFact, what: str, source: str, *, expected_last: int | None = None
) -> int:
    """Store a fact of a job, in its tenant's account; return its sequence there. `what`: names it among the facts of the job."""
    bus, fact = of_account(bus, fact)
    subject = subjects.job_fact(fact.job, fact.kind())
    envelope = Envelope(
        id=f"{fact.job}/{what}", type=fact.tag(), source=source, job=fact.job, cause=fact.cause
    )
    return await store(bus, subject, fact, envelope, expected_last)


async def hand_in(bus: Bus, fact: JobSubmitted, source: str) -> int:
    """Store the submission of a job; return its sequence. Stored already it is not stored again. Raises Refused (exists)."""
    try:
        return await state_of_job(bus, fact, f"submitted.{fact.uid}", source, expected_last=0)
    except WrongSequence:
        inside, own = of_account(bus, fact)
        stored = await inside.last(FACTS, subjects.job_fact(own.job, own.kind()))
        if stored is not None and stored.body == encode(own):
            return stored.sequence  # our own, by a call whose answer was lost
        raise Refused(
            f"a job {fact.job!r} exists already: take another name (--name {own.job}-2), or another stack (--dir)",
            "exists",
        ) from None


async def store(
    bus: Bus, subject: str, fact: Fact, envelope: Envelope, expected_last: int | None = None
) -> int:
    """Store a fact; return its sequence. Repeats the same bytes when it is unknown whether they were stored: the id dedupes.

    Raises what `Bus.append` raises, NotConnected and BusTimeout after PATIENCE_S alone.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = replace(envelope, time=now).headers()
    body, deadline_s = encode(fact), time.monotonic() + PATIENCE_S
    check_input(body, f"{subject}: a fact", bus.max_payload_bytes)
    while True:
        try:
            return await bus.append(FACTS, subject, body, headers=headers, expected_last=expected_last)
        except (BusTimeout, NotConnected):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(AGAIN_S)
