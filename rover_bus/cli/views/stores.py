"""How full the broker's store is, and how fast it grows, account by account.

Fed by the broker's own count; feeds the metrics (figures.py) through page.py, and `rover doctor`.
Apart because it asks the broker of each tenant's account, which no fact tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError
from rover_bus.events.nats_jetstream import StoreUsage
from rover_bus.events.nats_storage import NatsStorage
from rover_bus.events.streams import FACTS, LOG, TENANTS
from rover_bus.events.subjects import DEFAULT_TENANT


async def read_stores(bus: Bus) -> dict[str, StoreUsage]:
    """Return what the account of each tenant stores, and its limit; one that does not answer is left out. Raises BusError."""
    found = dict[str, StoreUsage]()
    for tenant in (DEFAULT_TENANT, *sorted(await bus.entries(TENANTS, "*"))):
        account = bus.of(tenant)
        if isinstance(account, NatsStorage):
            with suppress(BusError):  # one that is being removed
                found[tenant] = await account.usage()
    return found


async def read_growth(bus: Bus, tenants: Iterable[str], within_s: float) -> float:
    """Return how many bytes a second logs and facts of these tenants grew by of late. Raises BusError."""
    rate = 0.0
    for tenant in tenants:
        account = bus.of(tenant)
        if isinstance(account, NatsStorage):
            with suppress(BusError):
                rate += sum([await account.growth(stream, within_s) for stream in (LOG, FACTS)])
    return rate
