"""Which of several operators acts: the one that holds a Lease of the cluster, renewed three times in its duration.

Used by operator.py. A holder is believed as long as its renewals are seen to change, by this process's own clock: clocks of two
machines are never compared. A holder that cannot renew stops acting before another may begin.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.kube.api import Api, ApiRefused
from rover_bus.kube.kinds import LEASE, Json, LeadLease, Ref

DURATION_S = 15.0
RENEW_S, GIVE_UP_S = DURATION_S / 3, DURATION_S * 2 / 3
LOOK_S = 1.0
log = get_logger("rover.kube")


class LeaderLease:
    """One candidate. `holder`: a name that no other process has."""

    def __init__(self, api: Api, ref: Ref, holder: str) -> None:
        self._api, self._ref, self._holder = api, ref, holder
        self._loop = asyncio.get_running_loop()
        self._seen, self._seen_s = "", 0.0  # the last version, and when it was first seen
        self._held: LeadLease | None = None

    async def acquire(self) -> None:
        """Return once this process holds it."""
        while True:
            try:
                if await self._try():
                    return
            except RoverError as error:
                log.info("the lease is tried again", lease=str(self._ref), why=str(error))
            await asyncio.sleep(LOOK_S)

    async def hold(self) -> None:
        """Renew it; return when it is lost, or may soon be another's."""
        renewed_s = self._loop.time()
        while self._loop.time() - renewed_s < GIVE_UP_S:
            await asyncio.sleep(RENEW_S)
            try:
                async with asyncio.timeout(RENEW_S):
                    await self._renew()
                renewed_s = self._loop.time()
            except ApiRefused as error:
                if error.status in (404, 409):
                    log.warning("the lease is lost", lease=str(self._ref), why=str(error))
                    return
                log.warning("the lease is not renewed", lease=str(self._ref), why=str(error))
            except (RoverError, TimeoutError) as error:
                log.warning("the lease is not renewed", lease=str(self._ref), why=str(error))

    async def release(self) -> None:
        """Let another have it at once."""
        try:
            async with asyncio.timeout(RENEW_S):
                await self._write({"holderIdentity": ""})
        except (RoverError, TimeoutError) as error:
            log.info("the lease stays until it expires", lease=str(self._ref), why=str(error))

    async def _try(self) -> bool:
        try:
            found = await self._api.read(LEASE, self._ref)
        except ApiRefused as error:
            if error.status != 404:
                raise
            made = {"metadata": {"name": self._ref.name}, "spec": self._spec(0)}
            self._held = await self._api.create(LEASE, self._ref.namespace, made)
            return True
        if found.metadata.resource_version != self._seen:
            self._seen, self._seen_s = found.metadata.resource_version, self._loop.time()
        expired = self._loop.time() - self._seen_s > DURATION_S
        if found.spec.holder_identity not in ("", self._holder) and not expired:
            return False
        self._held = found
        await self._write(self._spec(found.spec.lease_transitions + 1))
        return True

    async def _renew(self) -> None:
        await self._write({"renewTime": _now()})

    async def _write(self, spec: Json) -> None:
        """Change what we hold: the version is a precondition, so that of two candidates one is refused."""
        assert self._held is not None
        about = {"resourceVersion": self._held.metadata.resource_version}
        self._held = await self._api.patch(LEASE, self._ref, {"metadata": about, "spec": spec})

    def _spec(self, transitions: int) -> Json:
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": int(DURATION_S),
            "leaseTransitions": transitions,
            "acquireTime": _now(),
            "renewTime": _now(),
        }


def _now() -> str:
    """For people to read, and for other tools; nothing is decided by it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
