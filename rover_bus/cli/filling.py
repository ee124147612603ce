"""Whether a broker that runs may be filled from a backup: nothing is stored in it, and nothing else is connected to it.

What is left of an erased past reaches a broker as soon as it runs, and would declare streams where those of the backup belong:
`rover restore` fills a directory of its own on a port of its own. That is no way for a cluster, nor for a broker in a pod: there
the broker runs, and this module says what is still about.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import of_registrar
from rover_bus.events import snapshots
from rover_bus.events.errors import BusError, BusTimeout, InputError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Raw
from rover_bus.events.subjects import DEFAULT_TENANT

CONNECTIONS = "$SYS.REQ.SERVER.PING.CONNZ"
ANSWERS_S = 2.0  # all servers of a cluster answer, and none says how many they are
ELECTED_S, LOOK_S = 30.0, 0.5  # a cluster that has just begun answers once it has a leader
MOST_NAMED = 8


async def require_unused(url: str, vault: Vault, tenants: Iterable[str]) -> None:
    """Raises InputError where a broker is not as it is before anything used it, or does not know the backup's tenants; BusError."""
    if lacking := sorted(set(tenants) - set(vault.tenants)):
        raise InputError(
            f"the keys in {vault.root} are not of tenant {lacking[0]}, which is in the backup: "
            "start the broker with the directory `auth` of the stack that was backed up"
        )
    if others := await list_connections(url, vault):
        raise InputError(
            f"{', '.join(others[:MOST_NAMED])} {'is' if len(others) == 1 else 'are'} connected to the broker at {url}: "
            "end all that uses it, on every host (`rover down`; Brain and operator on Kubernetes), then restore"
        )
    for tenant in (DEFAULT_TENANT, *tenants):
        async with of_registrar(url, vault.owner_credentials(tenant)) as owner:
            if there := await _list_streams(owner):
                raise InputError(
                    f"the broker at {url} holds {', '.join(sorted(there)[:MOST_NAMED])} already: end it, move `broker/store` of "
                    "each of its servers aside, start it again, then restore"
                )


async def _list_streams(owner: NatsBus) -> list[str]:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + ELECTED_S
    while True:
        try:
            return await snapshots.list_streams(owner)
        except BusError:
            if loop.time() > deadline_s:
                raise
            await asyncio.sleep(LOOK_S)


async def list_connections(url: str, vault: Vault) -> list[str]:
    """Return what else is connected to any server of a broker: name and address, of each once. Raises BusError."""
    own = f"restore-{secrets.token_hex(4)}"
    system = await NatsBus.connect(url, secret=vault.system_credentials(), name=own)
    try:
        inbox, answers = system.new_inbox(), list[Raw]()
        unlisten = await system.listen(inbox, answers.append)
        await system.post(CONNECTIONS, msgspec.json.encode({"limit": 1 << 20}), inbox)
        await asyncio.sleep(ANSWERS_S)
        await unlisten()
    finally:
        await system.close()
    if not answers:
        raise BusTimeout(
            f"no server of the broker at {url} says within {ANSWERS_S:g} s what is connected to it"
        )
    found = [each for answer in answers for each in _connections(answer.data) if each.get("name") != own]
    return sorted({f"{each.get('name') or 'a process'} ({each.get('ip', '')})" for each in found})


def _connections(answer: bytes) -> list[dict[str, Any]]:
    """Return what one server says of its clients."""
    said = msgspec.json.decode(answer, type=dict[str, Any]).get("data") or {}
    return list(said.get("connections") or [])
