"""A broker of its own with tenants, for tests of rights and of what one account has of another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from rover_bus.auth.rights import RoleName
from rover_bus.auth.roles import RUN_ROLES
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.tenants import make_tenants
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Ways
from rover_bus.events.streams import BUCKETS, STREAMS

TENANTS = ("ads", "maps")


class Stage(NamedTuple):
    broker: EmbeddedBroker
    vault: Vault
    owner: NatsBus
    system: NatsBus
    open: AsyncExitStack

    async def connect(self, role: RoleName, tenant: str = "", **ways: object) -> NatsBus:
        """Connect a user of a role; of a tenant, or of the control account."""
        if role in RUN_ROLES:
            secret = self.vault.member_credentials(
                role, subjects.qualified(tenant, "demo"), "u1", f"{role}-0.1", "h1"
            )
        elif tenant:
            secret = self.vault.person_credentials(role, tenant)
        else:
            secret = self.vault.credentials_file(role, "h1").read_text()
        bus = await NatsBus.connect(self.broker.url, secret=secret, ways=Ways(**ways))  # type: ignore[arg-type]
        self.open.push_async_callback(bus.close)
        return bus

    async def make(self, tenant: str) -> None:
        self.vault.note_tenants({*self.vault.tenants, tenant})
        await make_tenants(self.owner, self.system, self.vault)


@asynccontextmanager
async def stage(directory: Path, tenants: tuple[str, ...] = TENANTS) -> AsyncIterator[Stage]:
    """A broker with tenants, in each of which a run of the job `demo` has rights."""
    vault = Vault(directory / "auth")
    vault.write_credentials("h1")
    with EmbeddedBroker(directory / "broker", rights=vault.server_configuration) as broker:
        async with AsyncExitStack() as opened:
            owner = await NatsBus.connect(broker.url, secret=vault.owner_credentials())
            system = await NatsBus.connect(broker.url, secret=vault.system_credentials())
            for bus in (owner, system):
                opened.push_async_callback(bus.close)
            await owner.ensure(STREAMS, BUCKETS)
            on = Stage(broker, vault, owner, system, opened)
            vault.admit(RunOfJob(subjects.qualified(tenant, "demo"), "u1") for tenant in tenants)
            for tenant in tenants:
                await on.make(tenant)
            yield on
