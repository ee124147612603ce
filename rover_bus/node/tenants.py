"""Which tenants there are, as a daemon needs to know: each is told of the host, and of no other tenant's members there.

Fed by the bucket of tenants, which whatever makes a tenant writes (auth/tenants.py); feeds daemon.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rover_bus.events.bus import Bus, Entry
from rover_bus.events.host_facts import HostFact, HostRegistered
from rover_bus.events.streams import TENANTS
from rover_bus.events.subjects import split_job
from rover_bus.node.turns import insist

GATHER_S = 0.05  # each change has the host registered with every tenant: many at once are one


class WatchedTenants:
    """The tenants beside `default`, kept up to date."""

    def __init__(
        self, bus: Bus, learn: Callable[[bytes], None], on_change: Callable[[frozenset[str]], None]
    ) -> None:
        """`learn`: told the keys of each at once: from then on its members may be started. `on_change`: told once for many, and
        never of a part of those that there were at the beginning.
        """
        self.known: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset()
        self._alarm: asyncio.TimerHandle | None = None
        self._whole = False  # all that there were at the beginning are known
        self._bus, self._learn, self._on_change = bus, learn, on_change

    async def run(self) -> None:
        """Watch for ever."""
        watching = await insist(lambda: self._bus.watch(TENANTS, "*", self._take))
        try:
            self._whole = True
            self._tell()
            await asyncio.Event().wait()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            await watching.stop()

    def _take(self, entry: Entry) -> None:
        if entry.value is not None:
            self._learn(entry.value)
        self.known = self.known - {entry.key} if entry.value is None else self.known | {entry.key}
        if self._whole and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(GATHER_S, self._tell)

    def _tell(self) -> None:
        self._alarm = None
        if self.known != self._told:
            self._told = self.known
            self._on_change(self.known)


def seen_by(tenant: str, fact: HostFact) -> HostFact:
    """Return a fact of a host as a tenant may see it."""
    if not isinstance(fact, HostRegistered):
        return fact
    named = [(split_job(job), process) for job, process in zip(fact.jobs, fact.processes, strict=True)]
    own = [(job, process) for (whose, job), process in named if whose == tenant]
    return fact.replace(jobs=[job for job, _ in own], processes=[process for _, process in own])
