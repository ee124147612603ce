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

from rover_bus.auth.account_keys import OneAccount
from rover_bus.auth.roles import EVERY_STREAM
from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import of_registrar
from rover_bus.events import snapshots
from rover_bus.events.errors import BusError, BusTimeout, InputError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Raw
from rover_bus.events.subjects import DEFAULT_TENANT

SERVICES = "$SRV.PING"
CONNECTIONS = "$SYS.REQ.SERVER.PING.CONNZ"
ANSWERS_S = 2.0  # all servers of a cluster answer, and none says how many they are
ELECTED_S, LOOK_S = 30.0, 0.5  # a cluster that has just begun answers once it has a leader
MOST_NAMED = 8


async def require_unused(url: str, keys: Vault | OneAccount, tenants: Iterable[str]) -> None:
    """Raises InputError where a broker is not as it is before anything used it, or does not know the backup's tenants; BusError."""
    if lacking := sorted(set(tenants) - set(keys.tenants)):
        way = (
            "a broker of another owner has one account: restore into a stack with a broker of its own"
            if isinstance(keys, OneAccount)
            else "start the broker with the directory `auth` of the stack that was backed up"
        )
        raise InputError(
            f"the keys in {keys.root} are not of tenant {lacking[0]}, which is in the backup: {way}"
        )
    others = await (list_services(url, keys) if isinstance(keys, OneAccount) else list_connections(url, keys))
    if others:
        raise InputError(
            f"{', '.join(others[:MOST_NAMED])} {'is' if len(others) == 1 else 'are'} connected to the broker at {url}: "
            "end all that uses it, on every host (`rover down`; Brain and operator on Kubernetes), then restore"
        )
    for tenant in (DEFAULT_TENANT, *tenants):
        async with of_registrar(url, keys.owner_credentials(tenant)) as owner:
            if there := await _list_streams(owner, only_ours=isinstance(keys, OneAccount)):
                way = (
                    "`nats stream rm` takes each away, with all that is in it (`nats account backup` keeps it)"
                    if isinstance(keys, OneAccount)
                    else "end it, move `broker/store` of each of its servers aside, start it again"
                )
                raise InputError(
                    f"the broker at {url} holds {', '.join(sorted(there)[:MOST_NAMED])} already: {way}, then restore"
                )


async def _list_streams(owner: NatsBus, *, only_ours: bool) -> list[str]:
    """Return the streams of an account. `only_ours`: of one that others may store things in, too."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + ELECTED_S
    while True:
        try:
            there = await snapshots.list_streams(owner)
            return [each for each in there if each in EVERY_STREAM] if only_ours else there
        except BusError:
            if loop.time() > deadline_s:
                raise
            await asyncio.sleep(LOOK_S)


async def list_connections(url: str, vault: Vault) -> list[str]:
    """Return what else is connected to any server of a broker: name and address, of each once. Raises BusError."""
    own = f"restore-{secrets.token_hex(4)}"
    asked = msgspec.json.encode({"limit": 1 << 20})
    answers = await _ask_all(url, vault.system_credentials(), own, CONNECTIONS, asked)
    if not answers:
        raise BusTimeout(
            f"no server of the broker at {url} says within {ANSWERS_S:g} s what is connected to it"
        )
    found = [each for answer in answers for each in _connections(answer.data) if each.get("name") != own]
    return sorted({f"{each.get('name') or 'a process'} ({each.get('ip', '')})" for each in found})


async def list_services(url: str, keys: OneAccount) -> list[str]:
    """Return what serves in the account: of a broker of another owner nothing says what is connected. Raises BusError."""
    answers = await _ask_all(url, keys.owner_credentials(), "restore", SERVICES, b"")
    return sorted(
        {
            str(msgspec.json.decode(each.data, type=dict[str, Any]).get("name"))
            for each in answers
            if each.data
        }
    )


async def _ask_all(url: str, secret: str, name: str, subject: str, body: bytes) -> list[Raw]:
    """Return what all say that answer a question within a while."""
    bus = await NatsBus.connect(url, secret=secret, name=name)
    try:
        inbox, answers = bus.new_inbox(), list[Raw]()
        unlisten = await bus.listen(inbox, answers.append)
        await bus.post(subject, body, inbox)
        await asyncio.sleep(ANSWERS_S)
        await unlisten()
    finally:
        await bus.close()
    return answers


def _connections(answer: bytes) -> list[dict[str, Any]]:
    """Return what one server says of its clients."""
    said = msgspec.json.decode(answer, type=dict[str, Any]).get("data") or {}
    return list(said.get("connections") or [])
