"""Keys that sign members are replaced while jobs train: offered to each host that stays, and then the only ones that count.

Used by `rover auth`, and by the Brain's process at its start, which offers what hosts were not told while the stack was away.
In this order, so that each step may be repeated and an interruption harms nothing: the vault has the new keys, the hosts are
offered them and write their members' new credentials, the broker is told. From then on it ends every connection that former keys
signed for.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from rover_bus.auth.rotation import KeysOffer, offer_key, offers
from rover_bus.auth.vault import Vault
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.cli.renewing import taken_position
from rover_bus.events.bus import Bus
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.positions import FollowerPosition
from rover_bus.events.streams import POSITIONS, PRESENCE, TENANTS

TAKEN_S, LOOK_S = 10.0, 0.1


async def offer_keys(owner: Bus, vault: Vault) -> None:
    """KeysOffer the vault's keys to all hosts that have rights, and to no others. May be repeated. Raises BusError."""
    there, wanted = await owner.entries(TENANTS, offer_key("*")), offers(vault)
    for key in there.keys() - wanted.keys():
        await owner.delete(TENANTS, key)
    for key, offer in wanted.items():
        if key not in there or not _is_offer_of(there[key].value or b"", offer.digest):
            await owner.put(TENANTS, key, msgspec.json.encode(offer))


def _is_offer_of(value: bytes, digest: str) -> bool:
    try:
        return msgspec.json.decode(value, type=KeysOffer).digest == digest
    except msgspec.DecodeError:
        return False


async def replace_keys(owner: Bus, system: NatsBus, vault: Vault, lost: str = "") -> list[str]:
    """Have the keys that the vault signs members with be the only ones that count; return hosts that did not take theirs in time.

    `lost`: a host that is offered none. Raises BusError.
    """
    await offer_keys(owner, vault)
    late = await _await_hosts(owner, lost)
    await tell_accounts(system, vault, vault.every_account)
    return late


async def _await_hosts(owner: Bus, lost: str) -> list[str]:
    """Wait until the living hosts have taken in what they are offered; return those that have not."""
    deadline_s = time.monotonic() + TAKEN_S
    while True:
        offered = await owner.entries(TENANTS, offer_key("*"))
        least = {key: entry.revision for key, entry in offered.items()}
        there = [host for host in await owner.entries(PRESENCE, "*") if host != lost]
        late = [host for host in there if not await _has_taken(owner, host, least)]
        if not late or time.monotonic() > deadline_s:
            return sorted(late)
        await asyncio.sleep(LOOK_S)


async def _has_taken(owner: Bus, host: str, offered: dict[str, int]) -> bool:
    entry = await owner.get(POSITIONS, taken_position(host))
    if entry is None or entry.value is None:
        return False
    taken = msgspec.json.decode(entry.value, type=FollowerPosition)
    return taken.position >= offered.get(taken.subjects[0], 0)
