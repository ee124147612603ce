"""Making and removing tenants: their accounts, told to the broker through its system account, and their streams.

Used by `rover auth`, and by the Brain's process at its start, which makes whole what an interruption left: each step may be
repeated. It works with the keys of the stack, as the owner of the accounts: no role has a right to any of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec

from rover_bus.auth.key_names import changed_with
from rover_bus.auth.vault import Vault
from rover_bus.cli.account_claims import DELETE, tell, tell_accounts
from rover_bus.events import nats_jetstream as jetstream
from rover_bus.events.errors import BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.streams import FACTS, OF_TENANT, PROFILES, STREAMS, TENANTS, StreamSpec
from rover_bus.events.subjects import of_tenant

AGAIN_S = 0.1
KNOWN_S = 10.0  # for an account that the broker was told of to take its first request


@contextlib.asynccontextmanager
async def of_registrar(url: str, secret: str) -> AsyncIterator[NatsBus]:
    """Connect with credentials that the vault has just made, for a while. Raises BusError, AccessDenied."""
    bus = await NatsBus.connect(url, secret=secret, name="registrar")
    try:
        yield bus
    finally:
        await bus.close()


async def make_tenants(owner: NatsBus, system: NatsBus, vault: Vault) -> list[str]:
    """Make the tenants that are noted in the vault known to the broker, with their streams; return those that it did not know.

    May be repeated. Raises BusError.
    """
    known = await owner.entries(TENANTS, "*")
    new = [tenant for tenant in vault.tenants if tenant not in known]
    await tell_accounts(system, vault, changed_with(new) if new else ())
    await make_whole(owner, vault, new)
    return new


async def make_whole(owner: NatsBus, vault: Vault, tenants: Iterable[str]) -> None:
    """Make the streams of tenants whose accounts the broker knows. May be repeated. Raises BusError."""
    tenants = list(tenants)
    if not tenants:
        return
    for tenant in tenants:
        await _make_streams(owner, tenant)
    await _copy(owner, vault.tenants)
    for tenant in tenants:
        await _note(owner, vault, tenant)


async def remove_tenant(owner: NatsBus, system: NatsBus, vault: Vault, tenant: str) -> None:
    """Remove all of a tenant: its streams, the copies of its facts, its accounts and their keys. Raises BusError."""
    account = _of(owner, tenant)
    vault.note_tenants(set(vault.tenants) - {tenant})
    await owner.delete(TENANTS, tenant)
    await _copy(owner, vault.tenants)
    for name in [*(each.name for each in STREAMS), *(f"KV_{each.name}" for each in OF_TENANT)]:
        await account.api(f"STREAM.DELETE.{name}", None, f"remove {name} of {tenant}")
    await owner.purge(FACTS, f"tenant.{tenant}.>")
    await tell_accounts(system, vault, changed_with(()))
    await tell(system, vault.end_of_tenant(tenant), DELETE)


def _of(owner: NatsBus, tenant: str) -> NatsStorage:
    account = owner.of(tenant)
    assert isinstance(account, NatsStorage)
    return account


async def _make_streams(owner: NatsBus, tenant: str) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + KNOWN_S
    while True:
        try:
            limit_bytes = (await _of(owner, tenant).usage()).limit_bytes
            await _of(owner, tenant).ensure([_within(spec, limit_bytes) for spec in STREAMS], OF_TENANT)
            return
        except BusError:
            if loop.time() > deadline_s:
                raise
            await asyncio.sleep(AGAIN_S)


def _within(spec: StreamSpec, limit_bytes: int) -> StreamSpec:
    """Return a stream that sets aside a quarter of a tenant's limit at most: the rest is for what must not be dropped."""
    if not limit_bytes or not spec.max_bytes:
        return spec
    return msgspec.structs.replace(spec, max_bytes=min(spec.max_bytes, limit_bytes // 4))


async def _copy(owner: NatsBus, tenants: Iterable[str]) -> None:
    """Have the control account hold facts and samples of these tenants, and go on with those of no others."""
    for spec in STREAMS:
        if spec.name in (FACTS, PROFILES):
            present = await owner.api(f"STREAM.INFO.{spec.name}", None, f"look at {spec.name}")
            await _copy_from(owner, spec, tenants, jetstream.read_starts(present.config, tenants))


async def _copy_from(
    owner: NatsBus, spec: StreamSpec, tenants: Iterable[str], starts: Mapping[str, int]
) -> None:
    config = jetstream.copying_config(spec, tenants, owner.replicas, starts)
    await owner.api(f"STREAM.UPDATE.{spec.name}", config, f"copy {spec.name}")


async def copy_restored(owner: NatsBus, tenants: Iterable[str]) -> None:
    """Have the control account, whose facts were put back without their sources, go on after what it copied. Raises BusError."""
    starts: dict[str, int] = {}
    for tenant in tenants:
        newest = await owner.newest(FACTS, of_tenant(tenant, ">"))
        starts[tenant] = jetstream.copied_sequence(newest.headers) + 1 if newest is not None else 0
    [facts] = [spec for spec in STREAMS if spec.name == FACTS]
    await _copy_from(owner, facts, tenants, starts)


async def _note(owner: NatsBus, vault: Vault, tenant: str) -> None:
    keys = json.dumps(vault.keys_of_tenant(tenant)).encode()
    former = await owner.get(TENANTS, tenant)
    if former is None or former.value != keys:
        await owner.put(TENANTS, tenant, keys)
