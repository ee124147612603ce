"""What stays on a node whose members another process starts (an operator of Kubernetes): its checkpoints and its samples.

The other half of a daemon: the persister of storage/ and the sampler of local/, with the facts that they publish. It runs no
member, claims no presence and says nothing of what the host can give: these are the operator's. What it knows is rebuilt from FACTS
and the shared memory of the node; while it is away, servers train on, and cuts wait for their digests (P12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rover_bus.events.bus import Bus
from rover_bus.events.host_facts import HostFact
from rover_bus.events.profiles import HostProfile
from rover_bus.events.subjects import split_job
from rover_bus.node.host import Host
from rover_bus.node.local.capacity import read_whole_machine
from rover_bus.node.local.sampling import MachineSampler
from rover_bus.node.outbox import Letter, Outboxes
from rover_bus.node.samples import publish_samples
from rover_bus.node.storage.persister import Persister, Places
from rover_bus.node.tenants import WatchedTenants
from rover_bus.node.turns import run_until

FLUSH_S = 5.0


class NodeAgent:
    """One node's agent on one bus, with the rights of a daemon of its host."""

    def __init__(self, bus: Bus, host: Host, places: Places) -> None:
        self._bus, self._host = bus, host
        self._alone = bool(
            places.job
        )  # in a server's pod: it neither samples the host nor knows other tenants
        self._outboxes = Outboxes(bus, host.name, lambda: None)  # the persister follows FACTS itself (P21)
        self._tenants = WatchedTenants(bus, host.learn_tenant, self._outboxes.keep)
        self._persister = Persister(bus, host.name, host.daemon, places, self._post)

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serve until `stop`. What is held in shared memory stays there, for the next one."""
        works = [self._outboxes.run(), self._persister.run()]
        if not self._alone:
            works += [self._tenants.run()]
            works += [self._sample()] if self._host.settings.hosts.sample_every_s else []
        tasks = [asyncio.create_task(work) for work in works]
        try:
            ready()
            await run_until(stop, tasks)
        finally:
            await self._persister.close()
            await self._outboxes.flush(FLUSH_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _post(self, fact: HostFact, what: str, job: str) -> None:
        tenant, bare = split_job(job)
        self._outboxes.post(Letter(fact, f"{self._host.name}.{what}", bare), tenant)

    async def _sample(self) -> None:
        machine, host = read_whole_machine(), self._host.name
        sampler = MachineSampler(machine)

        async def measure() -> HostProfile | None:
            return sampler.take(host, machine.capacity)

        await publish_samples(self._bus, host, self._host.settings.hosts.sample_every_s, measure)
