"""Facts and samples of tenants' jobs by the names that the control account calls them, `<tenant>/<job>`, and back.

Used where messages of a tenant's account are read in the control account (reading.py, intake.py), and where the control account's
processes store facts in a tenant's (outbox.py, the daemon's). Deciders know one namespace; a tenant's account has bare names alone.
The broker says whose a message is: bodies name no tenant, and what they say of one is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from rover_bus.events import causes
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, BusTimeout, NotConnected
from rover_bus.events.fact import Fact
from rover_bus.events.facts import JobSubmitted, PlanProposed, PlanWithheld
from rover_bus.events.subjects import DEFAULT_TENANT, as_seen_by, qualified, split_job

PATIENCE_S = 5.0  # with a tenant's store that refuses: after a broker's start it may not be read yet
AGAIN_S = 0.1
M = TypeVar("M", bound=msgspec.Struct)


def of_control(message: M, tenant: str) -> M:
    """Return a fact or sample of a tenant's account as the control account calls its job; `tenant` "": it is its own."""
    job = getattr(message, "job", "")
    if not tenant or not job:
        return message
    full = qualified(tenant, job)
    if isinstance(message, Fact) and message.cause:
        message = msgspec.structs.replace(message, cause=causes.for_control(message.cause, tenant))
    if isinstance(message, JobSubmitted):
        spec = message.spec
        spec = spec.replace(name=full, plan=spec.plan.replace(tenant=tenant))
        return msgspec.structs.replace(message, job=full, spec=spec)
    return msgspec.structs.replace(message, job=full)


def of_account(bus: Bus, fact: M) -> tuple[Bus, M]:
    """Return where a fact is stored, and as which: of a tenant's job in the tenant's account, by its bare name there."""
    tenant, _ = split_job(getattr(fact, "job", ""))
    return (bus, fact) if tenant == DEFAULT_TENANT else (bus.of(tenant), bare(fact))


def bare(message: M) -> M:
    """Return a fact as its tenant's account calls its job, without the name of any other tenant's job."""
    tenant, job = split_job(getattr(message, "job", ""))
    if tenant == DEFAULT_TENANT:
        return message
    if isinstance(message, Fact) and message.cause:
        message = msgspec.structs.replace(message, cause=causes.for_tenant(message.cause, tenant))
    if isinstance(message, PlanProposed):
        seen = [as_seen_by(tenant, each) for each in message.released_by]
        return msgspec.structs.replace(message, job=job, released_by=seen)
    if isinstance(message, PlanWithheld):
        seen = [as_seen_by(tenant, each) for each in message.waits_for]
        return msgspec.structs.replace(message, job=job, waits_for=seen)
    return msgspec.structs.replace(message, job=job)


class TenantStores:
    """Stores facts with tenants, so that one whose store is full, or gone, keeps those of no other waiting for long."""

    def __init__(self) -> None:
        self._refusing: set[str] = set()  # by whom the last fact was refused, after all patience

    async def store(self, fact: Fact, store: Callable[[], Awaitable[int]]) -> bool:
        """Store a fact; whether it is. Raises what says that the bus is away, or silent: a fact may be stored then."""
        tenant, _ = split_job(getattr(fact, "job", ""))
        attempts = 1 if tenant in self._refusing else round(PATIENCE_S / AGAIN_S)
        for attempt in range(attempts):
            try:
                await store()
            except (NotConnected, BusTimeout):
                raise
            except BusError:
                await asyncio.sleep(AGAIN_S if attempt < attempts - 1 else 0)
            else:
                self._refusing.discard(tenant)
                return True
        self._refusing.add(tenant)
        return False
