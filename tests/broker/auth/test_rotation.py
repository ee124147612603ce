"""Keys that sign members are replaced on a real broker: former ones count no more, members that live go on, no message is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.joining import JoiningKeys, seal
from rover_bus.auth.revoking import revoke_user
from rover_bus.auth.rotation import fresh_keys, offer_key, take_keys
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli import rotating
from rover_bus.cli.renewing import renew_members
from rover_bus.cli.rotating import offer_keys, replace_keys
from rover_bus.cli.tenants import of_registrar
from rover_bus.events import credentials, subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, LOG, PRESENCE, STREAMS, TENANTS
from rover_bus.node.local import locks
from rover_bus.node.local.layout import OrderRecord, StateDirectory, create

pytestmark = pytest.mark.broker
PATIENCE_S = 30.0
MASTER = Member("master", 0, 1)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.certificate("127.0.0.2")  # a grant names its authority
    made.write_credentials("one")
    made.admit([RunOfJob("demo", "u1")])
    return made


@pytest.fixture
def broker(tmp_path: Path, vault: Vault) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as started:
        yield started


def joined(vault: Vault, folder: Path, host: str) -> HostVault:
    """Return the vault of a host that has joined."""
    token, keys = vault.join_token("tls://127.0.0.2:4222", 60), JoiningKeys()
    request = keys.request(host)
    made = HostVault(folder / host)
    made.keep(token, keys, keys.unseal(seal(vault.grant(request), request.seal)), host, "")
    return made


class HostWithMaster:
    """What is left on a host of a master that lives there: its directory and its lock."""

    def __init__(self, vault: HostVault, folder: Path, name: str) -> None:
        self.vault, self.name = vault, name
        self.home: StateDirectory = create(folder / f"node-{name}")
        self.directory = self.home.incarnation("demo", "u1", MASTER)
        self.directory.path.mkdir(parents=True)
        desired = DesiredMember(member=MASTER, host=name, command=["x"])
        self.directory.write("order", OrderRecord(job="demo", uid="u1", desired=desired))
        assert locks.hold(str(self.directory.path / "alive"))
        self.environment = {
            credentials.VARIABLE: vault.member_credentials("master", "demo", "u1", str(MASTER), name),
            credentials.DIRECTORY: str(self.directory.path),
        }

        self.daemon_file = str(vault.credentials_file("daemon", name))
        self.daemon_text = plain(Path(self.daemon_file).read_text())

    async def daemon(self, url: str) -> NatsBus:
        return await NatsBus.connect(url, secret=self.daemon_text)

    async def master(self, url: str) -> NatsBus:
        return await NatsBus.connect(
            url,
            secret=lambda: plain(credentials.of_process(self.environment, "")),
        )


def plain(text: str) -> str:
    """Return credentials for a broker in the clear."""
    return text.replace("ROVER STACK AUTHORITY", "ROVER OTHER")


@asynccontextmanager
async def registrars(broker: EmbeddedBroker, vault: Vault) -> AsyncIterator[tuple[NatsBus, NatsBus]]:
    """Return the owner of the streams, which are there, and a connection to the system account."""
    async with (
        of_registrar(broker.url, vault.owner_credentials()) as owner,
        of_registrar(broker.url, vault.system_credentials()) as system,
    ):
        await owner.ensure(STREAMS, BUCKETS)
        yield owner, system


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


def test_members_of_other_hosts_go_on_and_what_a_lost_host_signs_is_refused(
    broker: EmbeddedBroker, vault: Vault, tmp_path: Path
) -> None:
    two, lost = joined(vault, tmp_path, "two"), joined(vault, tmp_path, "lost")
    host = HostWithMaster(two, tmp_path, "two")

    async def run() -> None:
        async with registrars(broker, vault) as (owner, system):
            daemon, master = await host.daemon(broker.url), await host.master(broker.url)
            await daemon.put(PRESENCE, "two", b"here", ttl_s=30)
            renewing = asyncio.create_task(renew_members(daemon, two, host.daemon_file, "two", host.home))
            thief = await NatsBus.connect(broker.url, secret=stolen(lost))
            states: list[str] = []
            master.on_connection(states.append)
            subject = subjects.job_log("demo")
            first = await master.append(LOG, subject, b"1", headers={"Nats-Msg-Id": "1"})
            former = master._user
            for given in vault.users.all:
                if given.of == "lost":
                    revoke_user(vault, given.user, given.account)
            take_keys(vault, fresh_keys())
            assert await replace_keys(owner, system, vault, "lost") == []
            await until(lambda: states[-1:] == ["connected"])
            assert states == ["disconnected", "connected"]
            assert master._user.user != former.user
            assert not thief.connected
            assert await master.append(LOG, subject, b"1", headers={"Nats-Msg-Id": "1"}) == first
            assert await master.append(LOG, subject, b"2", expected_last=first) == first + 1
            with pytest.raises(AccessDenied, match="refuses the secret"):
                await NatsBus.connect(broker.url, secret=stolen(lost))
            assert set(await owner.entries(TENANTS, offer_key("*"))) == {
                offer_key(),
                offer_key(daemon_user(two, "two")),
            }
            late = two.member_credentials("worker", "demo", "u1", "worker-0.1", "two")
            await (await NatsBus.connect(broker.url, secret=plain(late))).close()
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            for each in (thief, master, daemon):
                await each.close()

    asyncio.run(run())


def test_a_host_that_was_away_takes_its_keys_when_it_is_back_and_the_late_are_named(
    broker: EmbeddedBroker, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotating, "TAKEN_S", 0.3)
    two = joined(vault, tmp_path, "two")
    host = HostWithMaster(two, tmp_path, "two")

    async def run() -> None:
        async with registrars(broker, vault) as (owner, system):
            await owner.put(PRESENCE, "two", b"deaf", ttl_s=30)
            take_keys(vault, fresh_keys())
            assert await replace_keys(owner, system, vault) == ["two"]
            with pytest.raises(AccessDenied):
                await host.master(broker.url)
            daemon = await host.daemon(broker.url)
            renewing = asyncio.create_task(renew_members(daemon, two, host.daemon_file, "two", host.home))
            await until((host.directory.path / credentials.RENEWED).exists)
            await (await host.master(broker.url)).close()
            revisions = {key: entry.revision for key, entry in (await owner.entries(TENANTS, ">")).items()}
            await offer_keys(owner, vault)
            assert {
                key: entry.revision for key, entry in (await owner.entries(TENANTS, ">")).items()
            } == revisions
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await daemon.close()

    asyncio.run(run())


def stolen(lost: HostVault) -> str:
    return plain(lost.member_credentials("worker", "demo", "u1", "worker-9.1", "lost"))


def daemon_user(vault: HostVault, host: str) -> str:
    read = credentials.read(vault.credentials_file("daemon", host).read_text())
    assert read is not None
    return read.user
