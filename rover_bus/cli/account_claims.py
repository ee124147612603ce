"""Telling a broker of accounts until it has them as the vault has them.

Used by all who tell: `rover auth`, the Brain's process, rotation. Nothing is believed unread: the broker answers "updated" to what
it then does not do. Two words at once, of two connections, are taken in at once, and may leave out imports (nats-server 2.15.1), or
leave the older word in force.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from rover_bus.auth.key_names import importing_from
from rover_bus.auth.vault import Vault
from rover_bus.events.bus import Bus
from rover_bus.events.credentials import read_claims
from rover_bus.events.errors import BusError, BusTimeout
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Raw

UPDATE, DELETE = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE"
TOLD_S = 5.0
OTHER_SERVERS_S = 0.2  # for those of a cluster that have not answered when one has
TIMES = 8  # that an account is told before this fails


class _Import(msgspec.Struct):
    invalid: bool = False


class AccountInForce(msgspec.Struct):
    """What a server has of an account: in `jwt` what it was told."""

    account_name: str
    jwt: str = ""
    complete: bool = True
    imports: list[_Import | None] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing that the account imports is left out."""
        return self.complete and not any(each is None or each.invalid for each in self.imports or ())

    def says(self, claims: dict[str, Any]) -> bool:
        """Whether the server has these claims of it."""
        had = dict(read_claims(self.jwt).get("nats", {}))
        had.pop("version", None)
        return bool(had == json.loads(json.dumps(claims)))


class _Answer(msgspec.Struct):
    data: AccountInForce | None = None


async def tell_accounts(system: NatsBus, vault: Vault, accounts: Iterable[str]) -> None:
    """Tell the broker of accounts of the vault, by their names and in this order, until it has them as the vault has them, and
    whatever imports from them is whole.

    A command and the Brain's process may tell of an account at once, each what it read before it signed, and the later word counts:
    so each reads again what the vault has and what the broker has, and tells what is otherwise by then. Raises BusError.
    """
    left = list(accounts)
    for _ in range(TIMES):
        if not left:
            return
        told = dict[str, tuple[str, dict[str, Any]]]()
        for account in left:
            if (claims := vault.claims(account)) is not None:
                told[account] = vault.public_key(account), claims
                await tell(system, vault.sign(account, claims, int(time.time())))
        now = {account: vault.claims(account) for account in told}
        for key in (key for account, (key, _) in told.items() if now[account] is None):
            await tell(system, vault.end_of_accounts([key]), DELETE)
        left = [account for account, (_, claims) in told.items() if now[account] not in (None, claims)]
        if not left:
            left = await _not_in_force(system, vault, {each: now[each] for each in told if now[each]})
            if left:
                await _next_second()
    if left:
        raise BusError(f"the broker does not take in {', '.join(left)}: its log says what it lacks")


async def tell(system: Bus, token: str, subject: str = UPDATE) -> None:
    """Tell the broker of one account. Raises BusError, saying what the broker said."""
    answer = await system.request(subject, token.encode(), timeout_s=TOLD_S)
    try:
        problem = json.loads(answer.body).get("error", "")
    except (ValueError, AttributeError):
        problem = answer.body.decode(errors="replace")
    if problem:
        raise BusError(f"the broker does not take in an account: {problem}")


async def _not_in_force(
    system: NatsBus, vault: Vault, told: Mapping[str, dict[str, Any] | None]
) -> list[str]:
    """Return which accounts of those told, and of those that import from them, the broker has otherwise than the vault, or in part.

    An account that nothing uses is none of them: the broker reads what it was told last when something does.
    """
    keys = {vault.public_key(each): each for each in importing_from(told, vault.tenants)}
    wrong = set[str]()
    for had in await look_at(system, list(keys)):
        account = keys[had.account_name]
        if not had.is_whole or ((claims := told.get(account)) and not had.says(claims)):
            wrong.add(account)
    return [each for each in keys.values() if each in wrong]


async def look_at(system: NatsBus, keys: list[str]) -> list[AccountInForce]:
    """Return what each server has of accounts, by their public keys; nothing of those that nothing uses there. Raises BusError."""
    inbox, answers = system.new_inbox(), list[Raw]()
    first, every = asyncio.Event(), asyncio.Event()

    def take(answer: Raw) -> None:
        answers.append(answer)
        if len(answers) >= len(keys):
            first.set()
        if len(answers) >= len(keys) * system.replicas:
            every.set()

    unlisten = await system.listen(inbox, take)
    try:
        for key in keys:
            await system.post(f"$SYS.REQ.ACCOUNT.{key}.INFO", b"", inbox)
        async with asyncio.timeout(TOLD_S):
            await first.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHER_SERVERS_S):
                await every.wait()
    except TimeoutError:
        raise BusTimeout(
            f"the broker does not say within {TOLD_S:g} s which accounts it has: repeat it"
        ) from None
    finally:
        await unlisten()
    try:
        found = [msgspec.json.decode(each.data, type=_Answer).data for each in answers]
    except msgspec.DecodeError as error:
        raise BusError(f"the broker says in no known form which accounts it has: {error}") from None
    return [each for each in found if each is not None]


async def _next_second() -> None:
    """A token that is signed in the same second is the same text, and the broker passes over what it has been told."""
    await asyncio.sleep(1.05 - time.time() % 1)
