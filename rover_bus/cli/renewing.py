"""Members of a host go on with new credentials when the keys that sign members are replaced (auth/rotation.py).

Run beside a daemon, fed by the bucket of tenants, where each host finds its keys sealed; feeds running members: theirs is a file in
the directory of their incarnation, which they read before each further connection (events/credentials.py). A member that is
started later is signed by the new keys from the start. What was taken in is reported as a position in the bucket's stream.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from rover_bus.auth.rotation import accept, offer_key
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import Vault
from rover_bus.events import credentials
from rover_bus.events.bus import Bus, Entry
from rover_bus.events.errors import RoverError
from rover_bus.events.logs import get_logger
from rover_bus.events.nats_jetstream import bucket_stream
from rover_bus.events.positions import FollowerPosition, of_all, report
from rover_bus.events.streams import TENANTS
from rover_bus.node.local.layout import OWN, StateDirectory
from rover_bus.node.turns import insist

log = get_logger("rover.node")


def taken_position(host: str) -> str:
    """Return the key of the position up to which a host has taken in its keys."""
    return of_all(f"{host}.keys")


async def renew_members(bus: Bus, vault: Vault, secret_file: str, host: str, home: StateDirectory) -> None:
    """Take in new keys as they come, for ever. `secret_file`: the daemon's credentials; `home`: where its members are."""
    daemon = credentials.read(credentials.read_file(Path(secret_file)))
    assert daemon is not None  # it lies in a vault
    key = offer_key() if vault.signs_accounts else offer_key(daemon.user)
    offered: asyncio.Queue[Entry] = asyncio.Queue()
    watching = await insist(lambda: bus.watch(TENANTS, key, offered.put_nowait))
    try:
        while True:
            entry = await offered.get()
            if entry.value is None:
                continue
            try:
                accept(entry.value, vault, daemon.seed)
                renewed = _renew(vault, host, home)
            except (RoverError, OSError) as error:
                log.error("new keys of members cannot be taken in", host=host, why=str(error))
                continue
            log.info("members are signed by new keys", host=host, renewed=renewed)
            taken = FollowerPosition(stream=bucket_stream(TENANTS), subjects=[key], position=entry.revision)
            await insist(partial(report, bus, taken_position(host), taken))
    finally:
        await watching.stop()


def _renew(vault: Vault, host: str, home: StateDirectory) -> int:
    """Write a credential for each member that lives; return how many."""
    living = [
        (directory, order)
        for directory, order in home.incarnations()
        if directory.is_alive() and directory.ended() is None
    ]
    for directory, order in living:
        member = order.desired.member
        text = vault.member_credentials(member.role, order.job, order.uid, str(member), host)
        owner = directory.path.stat().st_gid if (directory.path / OWN).is_dir() else -1
        write_secret(directory.path / credentials.RENEWED, text, owner=owner)
    return len(living)
