"""Streams of a broker that is a cluster are raised to as many servers as they are to be kept on, also those that were there before.

Used in the Brain's process, as the owner of all accounts: whatever creates a stream later asks for as many itself. Never lowered:
what else differs is `rover doctor`'s to tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.events.errors import BusError
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_jetstream import bucket_stream
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.streams import BUCKETS, OF_TENANT, STREAMS
from rover_bus.events.subjects import DEFAULT_TENANT

log = get_logger("rover.registrar")


async def raise_replicas(owner: NatsBus, tenants: Iterable[str], replicas: int) -> list[str]:
    """Have each stream on so many servers; return those that cannot be yet: servers are away, or it is not there."""
    left: list[str] = []
    for tenant in (DEFAULT_TENANT, *tenants):
        account = owner.of(tenant)
        assert isinstance(account, NatsStorage)
        buckets = BUCKETS if tenant == DEFAULT_TENANT else OF_TENANT
        for stream in (*(each.name for each in STREAMS), *(bucket_stream(each.name) for each in buckets)):
            try:
                await _raise(account, stream, replicas)
            except BusError:
                left.append(f"{tenant}/{stream}")
    return left


async def _raise(account: NatsStorage, stream: str, replicas: int) -> None:
    there = (await account.api(f"STREAM.INFO.{stream}", None, f"look at {stream}")).config
    if int(there.get("num_replicas", 1)) < replicas:
        config = {**there, "num_replicas": replicas}
        await account.api(f"STREAM.UPDATE.{stream}", config, f"keep {stream} on {replicas} servers")
        log.info("a stream is kept on more servers", stream=stream, servers=replicas)
