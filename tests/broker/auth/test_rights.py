"""Every cell of the table role x subject x action, against a real nats-server in operator mode: allowed as documented, else denied.

Each role's user tries every subject that any role has a right to, of its own job and host and of another's, and what nobody has: by
publishing (which is what requests and calls of the stream API are) and by subscribing. The server says what it refuses, and nothing
else counts. What is allowed of members is tried to its end, through the accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from nats.aio.client import Client

from rover_bus.auth.agents import AgentVault
from rover_bus.auth.rights import Role, RoleName, filled
from rover_bus.auth.roles import ROLES, RUN_ROLES, TENANT_ROLES
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.tenants import make_whole, of_registrar
from rover_bus.events import credentials, subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_client import forbidden_subject
from rover_bus.events.nats_wire import PLAIN, Ways
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, LOG, PROFILES, STREAMS

pytestmark = pytest.mark.broker

OWN, OTHER = ("demo", "h1"), ("foreign", "h2", "UANOTHER")
TENANT = "ads"
USERS = [
    *((role, "") for role in ROLES if role not in TENANT_ROLES),
    *((role, TENANT) for role in (*RUN_ROLES, *TENANT_ROLES)),
]
NOBODYS = (
    ">",
    "rover.>",
    "rover.anything",
    "_INBOX.>",
    "_INBOX.UANOTHER.1",
    "_R_.>",
    "_R_.x.1",
    "$SYS.>",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.SERVER.PING",
    "$SYS.ACCOUNT.x.CONNECT",
    "$JS.API.>",
    "$JS.API.STREAM.CREATE.EVIL",
    "$JS.API.ACCOUNT.PURGE.x",
    "$JS.API.SERVER.REMOVE",
    "$JS.ACK.ROVER_LOG.x.1.1.1.1.1",
    "$JS.EVENT.ADVISORY.x",
    "$KV.ROVER_LEADERS.brain.other",
    "tenant.>",
    "tenant.ads.rover.>",
    "tenant.maps.rover.job.demo.members.desired",
    "tenant.maps.into.rover.job.demo.members.desired",
    "tenant.maps.into.rover.job.demo.log",
    "tenant.maps.copy.x",
    "tenant.maps.$JS.API.STREAM.DELETE.ROVER_LOG",
    "tenant.maps.$JS.API.STREAM.UPDATE.ROVER_FACTS",
    "control.$JS.API.STREAM.MSG.GET.KV_ROVER_SETTINGS",
    "control.$JS.API.CONSUMER.CREATE.KV_ROVER_PRESENCE",
    "control.$JS.API.DIRECT.GET.ROVER_FACTS",
    *(f"$JS.API.STREAM.{verb}.{LOG}" for verb in ("DELETE", "UPDATE", "SNAPSHOT", "RESTORE", "MSG.DELETE")),
    f"$JS.API.STREAM.LEADER.STEPDOWN.{LOG}",
    f"$JS.API.CONSUMER.DURABLE.CREATE.{LOG}.x",
    f"$JS.API.CONSUMER.NAMES.{LOG}",
)


class Stage(NamedTuple):
    broker: EmbeddedBroker
    vault: Vault
    joiner: credentials.Credential
    applicant: credentials.Credential

    def own(self, role: RoleName) -> tuple[str, str, str]:
        """What stands in rights for the users here: job, host, and the key of the one whose key stands in any."""
        return (*OWN, (self.applicant if role == "applicant" else self.joiner).user)

    def text(self, role: RoleName, tenant: str = "") -> str:
        """Return the credentials of one user of a role."""
        if role == "joiner":
            return credentials.write(self.joiner)
        if role == "applicant":
            return credentials.write(self.applicant)
        if role in TENANT_ROLES:
            return self.vault.person_credentials(role, tenant)
        if role in RUN_ROLES:
            job = subjects.qualified(tenant, OWN[0])
            return self.vault.member_credentials(role, job, "u1", f"{role}-0.1", OWN[1])
        return self.vault.credentials_file(role, OWN[1]).read_text()

    async def bus(self, role: RoleName, ways: Ways = PLAIN) -> NatsBus:
        return await NatsBus.connect(self.broker.url, secret=self.text(role), ways=ways)

    @asynccontextmanager
    async def raw(self, role: RoleName, tenant: str):
        """A bare client of a role, and what the server forbade it."""
        user, errors = credentials.read(self.text(role, tenant)), list[str]()
        assert user is not None

        async def note(error: Exception) -> None:
            errors.append(str(error))

        client = Client()
        await client.connect(
            [self.broker.url],
            user_jwt_cb=user.token.encode,
            signature_cb=user.sign,
            inbox_prefix=user.inbox,
            error_cb=note,
            allow_reconnect=False,
        )
        try:
            yield client, errors
        finally:
            await client.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("rights")
    vault = Vault(directory / "auth")
    vault.write_credentials(OWN[1])
    vault.note_tenants([TENANT, "maps"])
    vault.admit([RunOfJob(OWN[0], "u1"), RunOfJob(f"{TENANT}/{OWN[0]}", "u1")])
    vault.certificate("127.0.0.2")  # without an authority there are no tokens to join
    joiner = vault.join_token("tls://127.0.0.2:1", 3600).credential
    applicant = credentials.read(AgentVault(vault.root).shared_pass.user)
    assert applicant is not None
    with EmbeddedBroker(directory / "broker", rights=vault.server_configuration) as broker:
        made = Stage(broker, vault, joiner, applicant)

        async def declare() -> None:
            async with of_registrar(broker.url, vault.owner_credentials()) as owner:
                await owner.ensure(STREAMS, BUCKETS)
                await make_whole(owner, vault, vault.tenants)

        asyncio.run(declare())
        yield made


async def refusals(client: Client, errors: list[str]) -> set[str]:
    """Return the subjects that the server refused, in lower case, once it has said all."""
    await client.flush(30)
    said = -1
    while said != len(errors):
        said = len(errors)
        await asyncio.sleep(0.2)
    return {forbidden_subject(Exception(error)) for error in errors}


def instance(pattern: str) -> str:
    """Return a subject that a pattern stands for."""
    return ".".join("x" if token in ("*", ">") else token for token in pattern.split("."))


def universe(own: tuple[str, str, str]) -> list[str]:
    """Return every pattern of every role, for one's own job and host and for others."""
    rights = {right.subject for role in ROLES.values() for right in role.rights}
    return sorted({filled(each, *whose) for each in rights for whose in (own, OTHER)} | set(NOBODYS))


def documented(role: Role, own: tuple[str, str, str], subject: str, *, hears: bool) -> bool:
    """Whether the table gives a subject (or all that a pattern stands for) to a role."""
    given = [filled(right.subject, *own) for right in role.rights if (right.action == "subscribe") == hears]
    return any(covers(pattern, subject) for pattern in given)


def covers(pattern: str, subject: str) -> bool:
    """Whether everything that `subject` stands for falls under a pattern."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or given[place] == ">" or (token != "*" and token != given[place]):
            return False
    return len(wanted) == len(given)


@pytest.mark.parametrize(("name", "tenant"), USERS)
def test_a_role_publishes_asks_and_calls_what_the_table_says_and_nothing_else(
    stage: Stage, name: RoleName, tenant: str
) -> None:
    async def attempt() -> set[str]:
        async with stage.raw(name, tenant) as (client, errors):
            for subject in tried:
                await client.publish(subject, b"{}", reply=f"{client._inbox_prefix.decode()}.answers")
            return await refusals(client, errors)

    tried = sorted({instance(pattern) for pattern in universe(stage.own(name))})
    refused = asyncio.run(attempt())
    allowed = {subject for subject in tried if subject.lower() not in refused}
    assert allowed == {
        subject for subject in tried if documented(ROLES[name], stage.own(name), subject, hears=False)
    }


@pytest.mark.parametrize(("name", "tenant"), USERS)
def test_a_role_hears_what_the_table_says_and_nothing_else(stage: Stage, name: RoleName, tenant: str) -> None:
    async def attempt() -> set[str]:
        async with stage.raw(name, tenant) as (client, errors):
            for subject in tried:
                await client.subscribe(subject)
            return await refusals(client, errors)

    tried = sorted(
        {*universe(stage.own(name)), *(instance(pattern) for pattern in universe(stage.own(name)))}
    )
    refused = asyncio.run(attempt())
    allowed = {subject for subject in tried if subject.lower() not in refused}
    assert allowed == {
        subject for subject in tried if documented(ROLES[name], stage.own(name), subject, hears=True)
    }


def test_a_member_is_answered_across_accounts_and_its_samples_are_stored(stage: Stage) -> None:
    async def run() -> None:
        master = await stage.bus("master")
        daemon = await stage.bus("daemon")
        worker = await stage.bus("worker", Ways(direct=True))
        server = await stage.bus("ps", Ways(direct=True))
        brain = await stage.bus("brain")
        try:
            await master.serve("m", {subjects.rpc("demo", 1, "lease"): lambda asked: asked.respond(b"yes")})
            await daemon.serve("d", {subjects.daemon("h1", "part"): lambda asked: asked.respond(b"part")})
            for member in (worker, server):
                answer = await member.request(subjects.rpc("demo", 1, "lease"), b"", timeout_s=5)
                assert answer.body == b"yes"
            assert (await server.request(subjects.daemon("h1", "part"), b"", timeout_s=5)).body == b"part"
            await master.delete(LEADERS, "demo")
            assert await worker.get(LEADERS, "demo") is None
            await master.put(LEADERS, "demo", b"led", ttl_s=5)
            entry = await worker.get(LEADERS, "demo")
            assert entry is not None
            assert (entry.value, entry.expires) == (b"led", True)
            nothing = Stored(0, "", b"", {}, 0)
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            await worker.subscribe(
                subjects.job_fact("demo", "master.elected"), lambda each: heard.put_nowait(each.body)
            )
            await master.append(FACTS, subjects.job_fact("demo", "master.elected"), b"elected")
            assert await asyncio.wait_for(heard.get(), 5) == b"elected"
            for member, role in ((worker, "worker"), (server, "ps")):
                subject = subjects.member_profile("demo", role, 0)
                await member.publish(subject, b"sample")
                async with asyncio.timeout(5):
                    while (await brain.last(PROFILES, subject) or nothing).body != b"sample":  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        finally:
            for bus in (master, daemon, worker, server, brain):
                await bus.close()

    asyncio.run(run())
