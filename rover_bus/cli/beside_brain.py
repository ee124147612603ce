"""What goes on beside the Brain in its process, whether it leads or stands by: purges for masters, rights of runs, hosts that
join, users that are revoked.

Started by serve.py. None of it is the Brain's to decide; it stands here because this process has the rights, and the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rover_bus.auth.revoking import take_revoked
from rover_bus.auth.vault import Vault
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.cli.admitting import admit_hosts
from rover_bus.cli.registrar import register_runs
from rover_bus.cli.replicas import raise_replicas
from rover_bus.cli.rotating import offer_keys
from rover_bus.cli.tenants import make_whole, of_registrar
from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.purging import keep_purging

AGAIN_S, REVOKED_AGAIN_S, SERVERS_AGAIN_S = 0.5, 2.0, 10.0
log = get_logger("rover.serve")


async def purge_for_masters(bus: NatsBus) -> None:
    """A purge needs no decision of the Brain."""
    while True:
        with contextlib.suppress(RoverError):
            await keep_purging(bus)
        await asyncio.sleep(AGAIN_S)


def with_keys(bus: NatsBus, url: str, secret_file: str, folder: str) -> list[Coroutine[Any, Any, None]]:
    """Return what is done where the keys of the stack are at hand: nothing where they are not. `folder`: where they are brought
    to while it runs; "" where they are changed in their place.
    """
    vault = Vault.beside(secret_file) if secret_file else None
    if vault is None:
        return []
    told, knows_runs = asyncio.Event(), asyncio.Event()

    def told_all() -> None:
        told.set()
        knows_runs.set()

    return [
        _register_runs(bus, url, vault, told_all),
        _make_tenants(url, vault, told),
        _admit_hosts(bus, vault),
        _keep_on_servers(bus, url, vault),
        *([revoke_as_told(url, vault, Path(folder), knows_runs)] if folder else []),
    ]


async def _make_tenants(url: str, vault: Vault, told: asyncio.Event) -> None:
    """Tenants that are noted in the vault have their streams, as soon as the broker is told of their accounts."""
    while True:
        await told.wait()
        told.clear()
        try:
            async with of_registrar(url, vault.owner_credentials()) as owner:
                await make_whole(owner, vault, vault.tenants)
                await offer_keys(owner, vault)
        except RoverError as error:
            log.warning("streams of tenants are not made yet", why=str(error))
            told.set()
        await asyncio.sleep(AGAIN_S)


async def _register_runs(bus: NatsBus, url: str, vault: Vault, told_all: Callable[[], None]) -> None:
    """The broker of a stack is told which runs have rights."""
    while True:
        try:
            async with of_registrar(url, vault.system_credentials()) as system:
                await register_runs(bus, system, vault, told_all)
        except RoverError as error:
            log.warning("runs are not registered yet", why=str(error))
        await asyncio.sleep(AGAIN_S)


async def revoke_as_told(url: str, vault: Vault, folder: Path, knows_runs: asyncio.Event) -> None:
    """The broker is told of users that the folder of keys says are revoked, whenever it says something new.

    `knows_runs`: set once the vault knows which runs there are: an account without these takes the rights of their members.
    """
    left: dict[str, None] = {}
    await knows_runs.wait()
    while True:
        try:
            left |= dict.fromkeys(take_revoked(vault, folder))
            if left:
                async with of_registrar(url, vault.system_credentials()) as system:
                    await tell_accounts(system, vault, left)
                left.clear()
                log.info("users have no rights any more, as the keys say")
        except (RoverError, ValueError) as error:
            log.warning("users are not revoked yet", why=str(error))
        except OSError:
            pass  # no user of this stack ever was
        await asyncio.sleep(REVOKED_AGAIN_S)


async def _keep_on_servers(bus: NatsBus, url: str, vault: Vault) -> None:
    """Streams that were made when fewer servers counted are kept on as many as the others."""
    left = ["all"]
    while left and bus.replicas > 1:
        try:
            async with of_registrar(url, vault.owner_credentials()) as owner:
                left = await raise_replicas(owner, vault.tenants, bus.replicas)
        except RoverError as error:
            log.warning("streams are not on all servers yet", why=str(error))
        await asyncio.sleep(SERVERS_AGAIN_S if left else 0)


async def _admit_hosts(bus: NatsBus, vault: Vault) -> None:
    """Hosts that ask to join are answered."""
    while True:
        with contextlib.suppress(RoverError):
            await admit_hosts(bus, vault)
        await asyncio.sleep(AGAIN_S)
