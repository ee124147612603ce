"""Handing a job to the bus, and following it to its end.

Fed by `rover submit` and `rover demo`; the submission is one fact, `job.submitted`, stored durably: the submitter may die at
once. A job's name is used once in a stack, because its log, its facts and its model carry it.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rover_bus.cli.views.history import Happened, read_happened
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.checkpoint_facts import CheckpointRequested
from rover_bus.events.codec import check_input, encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import BusTimeout, InputError, NotConnected, Refused, WrongSequence
from rover_bus.events.facts import Fact, JobEnded, JobFact, JobStopRequested, JobSubmitted
from rover_bus.events.host_facts import ClusterFact, HostFact
from rover_bus.events.job import JobSpec
from rover_bus.events.standing import stand_by
from rover_bus.events.streams import FACTS
from rover_bus.events.tenancy import of_account

Observe = Callable[[Happened], None]
PATIENCE_S = 10.0


def asker() -> str:
    """Return the name that an action bears: the user's name, as the log will have it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


async def submit(bus: Bus, spec: JobSpec) -> int:
    """Store the submission; return its sequence in FACTS. Raises Refused when the name is taken."""
    return await _hand_in(bus, _submission(bus, spec))


async def submit_and_follow(bus: Bus, spec: JobSpec, observe: Observe) -> JobEnded:
    """Store the submission and stand by it: it is stored again when the broker forgets it (P21). Return the job's end.

    `observe` is told every fact of the job. Raises Refused when the name is taken.
    """
    fact = _submission(bus, spec)
    sequence = await _hand_in(bus, fact)
    standing = asyncio.ensure_future(
        stand_by(bus, subjects.job_fact(spec.name, fact.kind()), lambda: _hand_in(bus, fact))
    )
    following = asyncio.ensure_future(follow_job(bus, spec.name, sequence, observe))
    try:
        await asyncio.wait({standing, following}, return_when=asyncio.FIRST_COMPLETED)
        if standing.done():
            standing.result()
        return await following
    finally:
        standing.cancel()
        following.cancel()


def _submission(bus: Bus, spec: JobSpec) -> JobSubmitted:
    """Return the fact. Raises InputError where the job file names another tenant than the account that it is submitted to."""
    if spec.plan.tenant not in ("", bus.tenant):
        raise InputError(
            f"[plan] tenant is {spec.plan.tenant!r}, and it is submitted as a job of the tenant {bus.tenant!r}: leave it out, "
            f"or submit with --tenant {spec.plan.tenant} (`rover auth list`)"
        )
    spec = spec.replace(plan=spec.plan.replace(tenant=bus.tenant))
    return JobSubmitted(job=spec.name, uid=secrets.token_hex(8), spec=spec, by=asker())


async def _hand_in(bus: Bus, fact: JobSubmitted) -> int:
    try:
        return await publish(bus, fact, f"submitted.{fact.uid}", expected_last=0)
    except WrongSequence:
        stored = await bus.last(FACTS, subjects.job_fact(fact.job, fact.kind()))
        if stored is not None and stored.body == encode(fact):
            return stored.sequence  # our own, by a call whose answer was lost
        raise Refused(
            f"a job {fact.job!r} exists already: take another name (--name {fact.job}-2), or another stack (--dir)",
            "exists",
        ) from None


async def ask_to_stop(bus: Bus, job: str, mode: str, reason: str) -> int:
    """Ask a job to drain or to be cancelled; return the sequence of the request."""
    fact = JobStopRequested(job=job, mode=mode, reason=reason, by=asker())  # type: ignore[arg-type]
    return await publish(bus, fact, f"stop.{secrets.token_hex(8)}")


async def request_checkpoint(bus: Bus, job: str, reason: str, by: str) -> int:
    """Ask for a checkpoint of a job now; return the sequence of the request."""
    fact = CheckpointRequested(job=job, reason=reason, by=by)
    return await publish(bus, fact, f"checkpoint.{secrets.token_hex(8)}")


async def publish(bus: Bus, fact: JobFact, what: str, *, expected_last: int | None = None) -> int:
    """Store a fact of a person. Repeats the same bytes when it is unknown whether they were stored (the id dedupes)."""
    bus, fact = of_account(bus, fact)
    subject = subjects.job_fact(fact.job, fact.kind())
    return await _store(bus, subject, fact, fact.job, f"{fact.job}/{what}", expected_last)


async def publish_host(bus: Bus, fact: HostFact, what: str) -> int:
    """Store what a stack says of its own host, like `publish`."""
    subject = subjects.host_fact(fact.host, fact.kind())
    return await _store(bus, subject, fact, "", f"{fact.host}.{fact.kind()}.{what}", None)


async def publish_cluster(bus: Bus, fact: ClusterFact, what: str) -> int:
    """Store what a person said for the whole cluster, like `publish`."""
    return await _store(bus, subjects.cluster_fact(fact.kind()), fact, "", f"cluster/{what}", None)


async def _store(
    bus: Bus, subject: str, fact: Fact, job: str, event_id: str, expected_last: int | None
) -> int:
    time_text = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = Envelope(
        id=event_id, type=fact.tag(), source="rover-cli", time=time_text, job=job, cause=fact.cause
    ).headers()
    body, deadline_s = encode(fact), time.monotonic() + PATIENCE_S
    check_input(body, f"{subject}: a fact", bus.max_payload_bytes)
    while True:
        try:
            return await bus.append(
                FACTS,
                subject,
                body,
                headers=headers,
                expected_last=expected_last,
            )
        except (BusTimeout, NotConnected):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)


async def follow_job(bus: Bus, job: str, first: int, observe: Observe) -> JobEnded:
    """Tell `observe` every fact of a job, and what hosts say of it, from sequence `first` on; return its end."""
    happened: asyncio.Queue[Happened] = asyncio.Queue()
    subscription = await bus.follow(
        FACTS,
        [subjects.job_facts(job), subjects.host_facts()],
        lambda stored: happened.put_nowait(read_happened(stored)),
        start=first,
    )
    try:
        while True:
            each = await happened.get()
            if isinstance(each.fact, HostFact) and each.job not in ("", job):
                continue
            observe(each)
            if isinstance(each.fact, JobEnded):
                return each.fact
    finally:
        await subscription.stop()


class Outages:
    """Counts how often the bus came back: what a submitter sees of broker restarts."""

    def __init__(self, bus: Bus) -> None:
        self.count = 0
        self._lost = False
        bus.on_connection(self._note)

    def _note(self, state: ConnectionState) -> None:
        if state == "connected" and self._lost:
            self.count += 1
        self._lost = state == "disconnected"
