"""What the vault says counts, also where a process that tells the broker of an account is overtaken after it read the vault, and
where the broker took in two words at once and has a part of them, or the older.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tenants_stage import Stage, stage

from rover_bus.auth.key_names import CONTROL, OBSERVERS, accounts_of
from rover_bus.auth.revoking import revoke_user
from rover_bus.auth.vault import RunOfJob
from rover_bus.cli import account_claims
from rover_bus.cli.account_claims import UPDATE, look_at, tell, tell_accounts
from rover_bus.cli.tenants import remove_tenant
from rover_bus.events import credentials
from rover_bus.events.bus import NO_HEADERS, Headers, Message
from rover_bus.events.errors import AccessDenied, BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import PROFILES

pytestmark = pytest.mark.broker


class Overtaken(NatsBus):
    """A connection whose first word of an account waits until another process has said its own."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        if subject == UPDATE and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().request(subject, body, timeout_s=timeout_s, headers=headers)


class Behind(NatsBus):
    """A connection after whose first word of an account the broker has another one, as after two at once."""

    afterwards = ""

    async def request(
        self, subject: str, body: bytes, *, timeout_s: float, headers: Headers = NO_HEADERS
    ) -> Message:
        answer = await super().request(subject, body, timeout_s=timeout_s, headers=headers)
        if subject == UPDATE and self.afterwards:
            token, self.afterwards = self.afterwards, ""
            await super().request(UPDATE, token.encode(), timeout_s=timeout_s)
        return answer


def test_a_tenant_that_is_made_while_the_stacks_accounts_are_told_is_reached(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, ()) as on:
            slow = await Overtaken.connect(on.broker.url, secret=on.vault.system_credentials())
            on.open.push_async_callback(slow.close)
            slow.meanwhile = lambda: on.make("ads")
            await tell_accounts(slow, on.vault, on.vault.admit([RunOfJob("demo", "u1")], every=True))
            assert await on.owner.of("ads").size(PROFILES) == 0

    asyncio.run(run())


@pytest.mark.parametrize("who", ["viewer", "daemon"])
def test_a_user_who_is_revoked_while_runs_are_told_stays_out(tmp_path: Path, who: str) -> None:
    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            if who == "viewer":
                text, account = on.vault.person_credentials("viewer", "ads"), accounts_of("ads")[2]
            else:
                text, account = on.vault.credentials_file("daemon", "h1").read_text(), CONTROL
            user = credentials.read(text)
            assert user is not None
            slow = await Overtaken.connect(on.broker.url, secret=on.vault.system_credentials())
            on.open.push_async_callback(slow.close)

            async def revoke() -> None:
                await tell_accounts(on.system, on.vault, [revoke_user(on.vault, user.user, user.account)])

            slow.meanwhile = revoke
            await tell_accounts(slow, on.vault, [account])
            with pytest.raises(AccessDenied):
                await NatsBus.connect(on.broker.url, secret=text)

    asyncio.run(run())


def test_an_account_whose_imports_are_left_out_is_told_again(tmp_path: Path) -> None:
    """As two words at once leave it behind, now and then: "updated" is answered, and the tenant's API is not there."""

    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            await _take_exports(on, "ads")
            again = await Overtaken.connect(on.broker.url, secret=on.vault.system_credentials())
            on.open.push_async_callback(again.close)

            async def lack() -> None:
                again.meanwhile = lambda: tell_accounts(on.system, on.vault, accounts_of("ads"))

            again.meanwhile = lack
            await tell_accounts(again, on.vault, [CONTROL])
            assert again.meanwhile is None, "the second word came once the first one lacked something"
            [had] = await look_at(on.system, [on.vault.public_key(CONTROL)])
            assert had.is_whole
            assert await on.owner.of("ads").size(PROFILES) == 0

    asyncio.run(run())


def test_an_account_that_the_broker_has_as_it_was_is_told_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            account = accounts_of("ads")[0]
            former = on.vault.claims(account)
            assert former is not None
            on.vault.admit([RunOfJob("ads/demo", "u2")])
            slow = await Behind.connect(on.broker.url, secret=on.vault.system_credentials())
            on.open.push_async_callback(slow.close)
            slow.afterwards = on.vault.sign(account, former, int(time.time()) - 10)
            await tell_accounts(slow, on.vault, [account])
            assert slow.afterwards == ""
            [had] = await look_at(on.system, [on.vault.public_key(account)])
            now = on.vault.claims(account)
            assert now is not None
            assert now != former
            assert had.says(now)

    asyncio.run(run())


def test_an_account_whose_imports_stay_out_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            await _take_exports(on, "ads")
            monkeypatch.setattr(account_claims, "TIMES", 2)
            with pytest.raises(BusError, match="does not take in account-control: its log says"):
                await tell_accounts(on.system, on.vault, [CONTROL])

    asyncio.run(run())


async def _take_exports(on: Stage, tenant: str) -> None:
    """Have the broker take a tenant's account for one from which nothing may be imported."""
    account = accounts_of(tenant)[0]
    claims = on.vault.claims(account)
    assert claims is not None
    await tell(on.system, on.vault.sign(account, {**claims, "exports": []}, int(time.time()) - 10))


def test_a_tenant_that_is_removed_while_its_accounts_are_told_is_not_there_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            keys = [on.vault.public_key(each) for each in accounts_of("ads")]
            text = on.vault.person_credentials("viewer", "ads")
            slow = await Overtaken.connect(on.broker.url, secret=on.vault.system_credentials())
            on.open.push_async_callback(slow.close)
            slow.meanwhile = lambda: remove_tenant(on.owner, on.system, on.vault, "ads")
            await tell_accounts(slow, on.vault, [*accounts_of("ads"), CONTROL, OBSERVERS])
            for key in keys:
                answer = await on.system.request(f"$SYS.REQ.ACCOUNT.{key}.CLAIMS.LOOKUP", b"", timeout_s=5.0)
                assert answer.body == b""
            with pytest.raises(AccessDenied):
                await NatsBus.connect(on.broker.url, secret=text)
            assert on.vault.claims(accounts_of("ads")[0]) is None

    asyncio.run(run())
