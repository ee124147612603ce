"""Credentials that are revoked or have expired: the connection ends at once, no other comes, and one line says so to what waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rover_bus.auth.key_folder import part_of, read_keys, take_keys
from rover_bus.auth.revoking import revoke_key, revoke_people, revoke_user
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.cli.beside_brain import revoke_as_told
from rover_bus.cli.tenants import make_tenants, of_registrar
from rover_bus.events import credentials, refusals
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.refusals import unless_turned_away
from rover_bus.events.streams import BUCKETS, STREAMS

pytestmark = pytest.mark.broker
TENANT = "ads"
PATIENCE_S = 30.0


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.write_credentials("h1")
    made.note_tenants([TENANT])
    made.admit([RunOfJob("demo", "u1")])
    made.certificate("127.0.0.2")  # without an authority there are no tokens to join
    return made


@pytest.fixture
def broker(tmp_path: Path, vault: Vault) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as started:
        yield started


def text(vault: Vault, who: str) -> str:
    match who:
        case "worker":
            return vault.member_credentials("worker", "demo", "u1", "worker-0.1", "h1")
        case "daemon":
            return vault.credentials_file("daemon", "h1").read_text()
        case _:
            return vault.person_credentials("viewer" if who == "viewer" else "submitter", TENANT)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("who", ["viewer", "submitter", "daemon", "worker"])
def test_a_revoked_user_is_out_at_once_and_for_ever_and_others_of_its_role_stay(
    broker: EmbeddedBroker, vault: Vault, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSED_S", 1.0)

    async def run() -> None:
        revoked = text(vault, who)
        if who == "daemon":
            vault.write_credentials("h1")  # another user of the same host
        spared = text(vault, who)
        user = credentials.read(revoked)
        assert user is not None
        async with (
            of_registrar(broker.url, vault.owner_credentials()) as owner,
            of_registrar(broker.url, vault.system_credentials()) as system,
        ):
            await owner.ensure(STREAMS, BUCKETS)
            await make_tenants(owner, system, vault)
            thief = await NatsBus.connect(broker.url, secret=revoked, secret_source="F.creds")
            other = await NatsBus.connect(broker.url, secret=spared)
            states: list[str] = []
            other.on_connection(states.append)
            try:
                waiting = asyncio.create_task(unless_turned_away(thief, asyncio.Event().wait()))
                await tell_accounts(system, vault, [revoke_user(vault, user.user, user.account)])
                await until(lambda: not thief.connected)
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises(AccessDenied, match=r"refuses the secret: check F.creds \(.*revoked"):
                        await waiting
                with pytest.raises(AccessDenied):
                    await thief.publish("rover.job.demo.log", b"")
                with pytest.raises(AccessDenied):
                    await NatsBus.connect(broker.url, secret=revoked)
                assert other.connected
                assert states == []
                await (await NatsBus.connect(broker.url, secret=text(vault, who))).close()
            finally:
                await thief.close()
                await other.close()

    asyncio.run(run())
    unheard = text_of_revoked(vault)
    broker.restart()
    with pytest.raises(AccessDenied):
        asyncio.run(NatsBus.connect(broker.url, secret=unheard))


def test_a_brain_tells_the_broker_of_users_that_its_folder_of_keys_says_are_revoked(
    broker: EmbeddedBroker, vault: Vault, tmp_path: Path
) -> None:
    """So it is in a pod: the folder is a Secret, in which somewhere else is noted who is out."""
    folder, of_brain = tmp_path / "keys", Vault(tmp_path / "brain" / "auth")

    def bring() -> None:
        for name, content in part_of(vault, "brain").items():
            write_secret(folder / name, content)

    async def run() -> None:
        async with (
            of_registrar(broker.url, vault.owner_credentials()) as owner,
            of_registrar(broker.url, vault.system_credentials()) as system,
        ):
            await owner.ensure(STREAMS, BUCKETS)
            await make_tenants(owner, system, vault)
        (tmp_path / "brain").mkdir()
        bring()
        take_keys(of_brain, read_keys(folder))
        shown = {name: text(vault, name) for name in ("viewer", "submitter", "daemon", "worker")}
        people = {name: await NatsBus.connect(broker.url, secret=each) for name, each in shown.items()}
        knows_runs = asyncio.Event()
        follows = asyncio.create_task(revoke_as_told(broker.url, of_brain, folder, knows_runs))
        try:
            gone = credentials.read(shown["viewer"])
            assert gone is not None
            revoke_key(vault, gone.user)
            bring()
            await asyncio.sleep(0.5)
            assert all(each.connected for each in people.values()), (
                "it knows no run: the worker's has no rights"
            )
            of_brain.admit(vault.runs)
            knows_runs.set()
            await until(lambda: not people["viewer"].connected)
            assert people["submitter"].connected
            await asyncio.sleep(1.0)  # a token tells whole seconds
            revoke_people(vault, TENANT)
            bring()
            await until(lambda: not people["submitter"].connected)
            await asyncio.sleep(1.0)
            await (await NatsBus.connect(broker.url, secret=text(vault, "submitter"))).close()
            assert people["daemon"].connected
            assert people["worker"].connected
        finally:
            follows.cancel()
            for each in people.values():
                await each.close()

    asyncio.run(run())


def text_of_revoked(vault: Vault) -> str:
    """Return credentials that were revoked while the broker was away."""
    secret = text(vault, "viewer")
    user = credentials.read(secret)
    assert user is not None
    revoke_user(vault, user.user, user.account)
    return secret


def test_an_expired_user_is_out_and_its_line_says_when(broker: EmbeddedBroker, vault: Vault) -> None:
    async def run() -> None:
        token = vault.join_token("tls://127.0.0.2:1", 6)
        shown = credentials.write(token.credential).partition("-----BEGIN ROVER STACK")[0]
        bus = await NatsBus.connect(broker.url, secret=shown)
        try:
            await until(lambda: not bus.connected)
            # Within the second in which it ends, the broker lets it in and out again.
            await asyncio.sleep(max(token.expires_s + 1.5 - time.time(), 0))
            with pytest.raises(AccessDenied, match=r"refuses the secret: check T \(it expired at .*\)"):
                await NatsBus.connect(broker.url, secret=shown, secret_source="T")
        finally:
            await bus.close()

    asyncio.run(run())


def test_a_broker_that_is_away_turns_nobody_away(
    broker: EmbeddedBroker, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "REFUSED_S", 0.5)

    async def run() -> None:
        bus = await NatsBus.connect(broker.url, secret=text(vault, "daemon"))
        try:
            waiting = asyncio.create_task(bus.turned_away())
            broker.kill()
            await asyncio.sleep(2)
            assert not waiting.done()
            broker.start()
            await until(lambda: bus.connected)
            assert not waiting.done()
            waiting.cancel()
        finally:
            await bus.close()

    asyncio.run(run())


def test_users_of_another_stack_are_not_ours_to_revoke(vault: Vault, tmp_path: Path) -> None:
    strange = Vault(tmp_path / "strange")
    strange.note_tenants([TENANT])
    user = credentials.read(strange.person_credentials("viewer", TENANT))
    assert user is not None
    with pytest.raises(Exception, match="another stack"):
        revoke_user(vault, user.user, user.account)
    assert vault.users.revoked == {}
