"""Handing a job to the bus, and following it to its end.

Fed by `rover submit` and `rover demo`; the submission is one fact, `job.submitted`, stored durably: the submitter may die at
once. A job's name is used once in a stack, because its log, its facts and its model carry it.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
from collections.abc import Callable

from rover_bus.cli.views.history import Happened, read_happened
from rover_bus.events import subjects
from rover_bus.events.bus import Bus, ConnectionState
from rover_bus.events.checkpoint_facts import CheckpointRequested
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import InputError
from rover_bus.events.facts import Fact, JobEnded, JobFact, JobStopRequested, JobSubmitted
from rover_bus.events.host_facts import ClusterFact, HostFact
from rover_bus.events.job import JobSpec
from rover_bus.events.standing import stand_by
from rover_bus.events.stating import hand_in, state_of_job, store
from rover_bus.events.streams import FACTS

Observe = Callable[[Happened], None]
SOURCE = "rover-cli"


def asker() -> str:
    """Return the name that an action bears: the user's name, as the log will have it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


async def submit(bus: Bus, spec: JobSpec) -> int:
    """Store the submission; return its sequence in FACTS. Raises Refused when the name is taken."""
    return await hand_in(bus, _submission(bus, spec), SOURCE)


async def submit_and_follow(bus: Bus, spec: JobSpec, observe: Observe) -> JobEnded:
    """Store the submission and stand by it: it is stored again when the broker forgets it (P21). Return the job's end.

    `observe` is told every fact of the job. Raises Refused when the name is taken.
    """
    fact = _submission(bus, spec)
    sequence = await hand_in(bus, fact, SOURCE)
    standing = asyncio.ensure_future(
        stand_by(bus, subjects.job_fact(spec.name, fact.kind()), lambda: hand_in(bus, fact, SOURCE))
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
    return await state_of_job(bus, fact, what, SOURCE, expected_last=expected_last)


async def publish_host(bus: Bus, fact: HostFact, what: str) -> int:
    """Store what a stack says of its own host, like `publish`."""
    return await _store(
        bus, subjects.host_fact(fact.host, fact.kind()), fact, f"{fact.host}.{fact.kind()}.{what}"
    )


async def publish_cluster(bus: Bus, fact: ClusterFact, what: str) -> int:
    """Store what a person said for the whole cluster, like `publish`."""
    return await _store(bus, subjects.cluster_fact(fact.kind()), fact, f"cluster/{what}")


async def _store(bus: Bus, subject: str, fact: Fact, event_id: str) -> int:
    return await store(
        bus, subject, fact, Envelope(id=event_id, type=fact.tag(), source=SOURCE, cause=fact.cause)
    )


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
