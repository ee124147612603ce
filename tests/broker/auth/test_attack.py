"""The attack that one token for all let through, with every role's credentials: it changes nothing that is not the role's own.

By one fact a worker ran a shell command on a host, by one call it purged the log of all jobs, by one message it removed their
facts. Then the detours: what the server itself sends to a reply subject goes by nobody's rights, so every request is also sent in
the name of a subject that the role has no right to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nats.aio.client import Client

from rover_bus.auth.agents import AgentVault
from rover_bus.auth.rights import RoleName
from rover_bus.auth.roles import ROLES, RUN_ROLES, TENANT_ROLES
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.tenants import make_tenants, of_registrar
from rover_bus.events import credentials, subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.purging import keep_purging
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, LOG, OF_TENANT, PROFILES, STREAMS

pytestmark = pytest.mark.broker

OWN, OTHER, HOST = "own", "other", "h1"
TENANTS = TENANT, OTHER_TENANT = "mine", "other"
PURGERS = {"brain", "operator"}  # as the table says: they forget jobs
FACT = subjects.job_fact(OTHER, "job.opened")
ORDER = subjects.job_fact(OTHER, "members.desired")


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.write_credentials(HOST)
    made.admit([RunOfJob(OWN, "u1"), RunOfJob(OTHER, "u1")])
    return made


@pytest.fixture
def broker(tmp_path: Path, vault: Vault) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as started:
        asyncio.run(prepare(started, vault))
        yield started


def text(vault: Vault, role: RoleName, job: str = OWN) -> str:
    if role in RUN_ROLES:
        return vault.member_credentials(role, job, "u1", f"{role}-0.1", HOST)
    if role == "joiner":
        vault.certificate("127.0.0.2")  # without an authority there are no tokens to join
        return credentials.write(vault.join_token("tls://127.0.0.2:1", 3600).credential)
    if role == "applicant":
        return AgentVault(vault.root).shared_pass.user
    return vault.credentials_file(role, HOST).read_text()


async def prepare(broker: EmbeddedBroker, vault: Vault) -> None:
    """Store what is to be attacked: a log, facts and a lead of another job."""
    brain = await NatsBus.connect(broker.url, secret=text(vault, "brain"))
    await brain.ensure(STREAMS, BUCKETS)
    master = await NatsBus.connect(broker.url, secret=text(vault, "master", OTHER))
    await master.append(LOG, subjects.job_log(OTHER), b"decided")
    await master.append(FACTS, FACT, b"fact")
    await master.put(LEADERS, OTHER, b"leads", ttl_s=60)
    for bus in (brain, master):
        await bus.close()


async def seen(broker: EmbeddedBroker, vault: Vault) -> dict[str, object]:
    """Return what the other job has, and how much the streams hold."""
    bus = await NatsBus.connect(broker.url, secret=text(vault, "operator"))
    try:
        found: dict[str, object] = {
            subject: [each.body async for each in bus.read(stream, subject)]
            for stream, subject in (
                (LOG, subjects.job_log(OTHER)),
                (FACTS, subjects.job_facts(OTHER)),
                (PROFILES, subjects.member_profiles(OTHER)),
            )
        }
        found["lead"] = await bus.get(LEADERS, OTHER)
        found["streams"] = await bus.differences(STREAMS, BUCKETS)
        return found
    finally:
        await bus.close()


async def attack(broker: EmbeddedBroker, secret: str, role: RoleName) -> None:
    """Do the worst that is known with one user's credentials."""
    user = credentials.read(secret)
    assert user is not None
    client = Client()

    async def ignore(_: Exception) -> None: ...

    await client.connect(
        [broker.url],
        user_jwt_cb=user.token.encode,
        signature_cb=user.sign,
        inbox_prefix=user.inbox,
        error_cb=ignore,
        allow_reconnect=False,
    )
    purge = json.dumps({"filter": "rover.>"}).encode()
    direct: list[tuple[str, bytes]] = [
        (ORDER, b"touch /tmp/attacked"),
        (FACT, b"forged"),
        (subjects.job_log(OTHER), b"forged"),
        (subjects.job_fact(OTHER, "job.ended"), b"forged"),
        (subjects.member_profile(OTHER, "worker", 0), b"forged"),
        (subjects.rpc(OTHER, 1, "lease"), b"forged"),
        *((f"$JS.API.STREAM.DELETE.{stream}", b"") for stream in (LOG, FACTS)),
        *((f"$JS.API.STREAM.UPDATE.{stream}", b"{}") for stream in (LOG, FACTS)),
        *((f"$JS.API.STREAM.MSG.DELETE.{stream}", b'{"seq": 1}') for stream in (LOG, FACTS)),
    ]
    if role not in PURGERS:
        direct += [(f"$JS.API.STREAM.PURGE.{stream}", purge) for stream in (LOG, FACTS)]
        direct.append((f"$KV.{LEADERS}.{OTHER}", b"forged"))  # who forgets a job removes its lead
    for subject, body in direct:
        await client.publish(subject, body, reply=client.new_inbox())
    for reply in (
        subjects.job_log(OTHER),
        ORDER,
        subjects.rpc(OTHER, 1, "lease"),
        subjects.daemon("h2", "part"),
    ):
        for subject in (
            subjects.member_profile(OWN, "worker", 0),
            subjects.rpc(OWN, 1, "lease"),
            f"$JS.API.DIRECT.GET.KV_{LEADERS}.$KV.{LEADERS}.{OWN}",
        ):
            await client.publish(subject, b"detour", reply=reply)
        if ROLES[role].account not in ("control", "tenant"):
            for subject, body in reads(LOG, FACTS):
                await client.publish(subject, body, reply=reply)
    await client.flush()
    await asyncio.sleep(0.2)
    await client.close()


def reads(*streams: str, root: str = "") -> list[tuple[str, bytes]]:
    """Return what reads streams, and what would make a consumer that delivers to the subject of the reply."""
    wanted = b'{"seq": 1, "next_by_subj": ">"}'
    config = {"deliver_subject": ORDER, "ack_policy": "none"}
    return [
        each
        for stream in streams
        for each in (
            (f"{root}$JS.API.STREAM.MSG.GET.{stream}", wanted),
            (f"{root}$JS.API.DIRECT.GET.{stream}", b'{"seq": 1, "batch": 10}'),
            (f"{root}$JS.API.DIRECT.GET.{stream}.{FACT}", b""),
            (f"{root}$JS.API.STREAM.INFO.{stream}", b""),
            (
                f"{root}$JS.API.CONSUMER.CREATE.{stream}",
                json.dumps({"stream_name": stream, "config": config}).encode(),
            ),
        )
    ]


@pytest.mark.parametrize("role", [role for role in ROLES if role not in TENANT_ROLES])
def test_no_roles_credentials_change_what_is_another_jobs(
    broker: EmbeddedBroker, vault: Vault, role: RoleName
) -> None:
    async def run() -> None:
        heard: list[str] = []
        master = await NatsBus.connect(broker.url, secret=text(vault, "master", OTHER))
        try:
            await master.subscribe(subjects.rpcs(OTHER), lambda each: heard.append(each.subject))
            before = await seen(broker, vault)
            await attack(broker, text(vault, role), role)
            assert await seen(broker, vault) == before
            assert not heard
        finally:
            await master.close()

    asyncio.run(run())


async def say_wherever(broker: EmbeddedBroker, secret: str, also: Sequence[str] = ()) -> None:
    """Say to the control account and to another tenant what one user of a tenant can, by every way out that is known; `also`
    subjects of its own tenant.
    """
    user = credentials.read(secret)
    assert user is not None
    client = Client()

    async def ignore(_: Exception) -> None: ...

    await client.connect(
        [broker.url],
        user_jwt_cb=user.token.encode,
        signature_cb=user.sign,
        inbox_prefix=user.inbox,
        error_cb=ignore,
        allow_reconnect=False,
    )
    own = subjects.job_fact(OWN, "job.stop_requested")
    everything = json.dumps({"filter": ">"}).encode()
    outside = [
        *(f"tenant.{tenant}.{way}{ORDER}" for tenant in TENANTS for way in ("", "into.", "copy.", "seen.")),
        *(f"tenant.{OTHER_TENANT}.$JS.API.STREAM.{verb}.{LOG}" for verb in ("PURGE", "DELETE", "UPDATE")),
        *(f"control.$JS.API.STREAM.{verb}.{LOG}" for verb in ("PURGE", "DELETE")),
        f"control.$JS.API.CONSUMER.CREATE.{FACTS}",
        f"tenant.{OTHER_TENANT}.into.{subjects.job_log(OTHER)}",
        subjects.keeper(OTHER, "purge"),
        subjects.cluster_fact("mode_set"),
        subjects.host_fact(HOST, "left"),
        *also,
    ]
    for subject in outside:
        for body in (b"forged", everything):
            await client.publish(subject, body, reply=client.new_inbox())
    # What the broker delivers goes by no right: a fact of one's own, to wherever its consumer says.
    await client.publish(own, b"forged", reply=client.new_inbox())
    for number, subject in enumerate(outside):
        config = {"deliver_subject": subject, "ack_policy": "none", "filter_subject": own}
        body = json.dumps({"stream_name": FACTS, "config": config}).encode()
        await client.publish(f"$JS.API.CONSUMER.CREATE.{FACTS}.c{number}", body, reply=subject)
        await client.publish(f"$JS.API.STREAM.MSG.GET.{FACTS}", b'{"seq": 1}', reply=subject)
        for asked, body in reads(FACTS, LOG):
            await client.publish(asked, body, reply=subject)
    await client.flush()
    await asyncio.sleep(0.3)
    await client.close()


@pytest.mark.parametrize("role", [*RUN_ROLES, *TENANT_ROLES])
def test_no_credentials_of_a_tenant_change_what_is_anothers_or_the_clusters(
    broker: EmbeddedBroker, vault: Vault, role: RoleName
) -> None:
    def secret(role: RoleName, tenant: str) -> str:
        if role in TENANT_ROLES:
            return vault.person_credentials(role, tenant)
        return vault.member_credentials(role, f"{tenant}/{OWN}", "u1", f"{role}-0.1", HOST)

    async def held(owner: NatsBus) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for name, bus in (("control", owner), (OTHER_TENANT, owner.of(OTHER_TENANT))):
            for stream in (LOG, FACTS, PROFILES, *(f"KV_{each.name}" for each in OF_TENANT)):
                stored = [(each.subject, each.body) async for each in bus.read(stream, ">")]
                mine = f"tenant.{TENANT}."
                found[f"{name} {stream}"] = [each for each in stored if not each[0].startswith(mine)]
        return found

    async def run() -> None:
        heard: list[str] = []
        vault.note_tenants(TENANTS)
        vault.admit(RunOfJob(f"{tenant}/{OWN}", "u1") for tenant in TENANTS)
        async with (
            of_registrar(broker.url, vault.owner_credentials()) as owner,
            of_registrar(broker.url, vault.system_credentials()) as system,
        ):
            await make_tenants(owner, system, vault)
            victim = await NatsBus.connect(broker.url, secret=secret("master", OTHER_TENANT))
            viewer = await NatsBus.connect(broker.url, secret=secret("viewer", OTHER_TENANT))
            keeping = asyncio.create_task(keep_purging(owner))
            try:
                await victim.append(LOG, subjects.job_log(OWN), b"decided")
                await victim.append(FACTS, subjects.job_fact(OWN, "job.opened"), b"fact")
                await victim.put(LEADERS, OWN, b"leads", ttl_s=60)
                await victim.subscribe(subjects.rpcs(OWN), lambda each: heard.append(each.subject))
                await viewer.subscribe("rover.>", lambda each: heard.append(each.subject))
                await asyncio.sleep(0.3)
                before = await held(owner)
                assert before[f"{OTHER_TENANT} {LOG}"]
                await say_wherever(broker, secret(role, TENANT))
                assert await held(owner) == before
                assert not heard
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                for bus in (victim, viewer):
                    await bus.close()

    asyncio.run(run())


@pytest.mark.parametrize("role", TENANT_ROLES)
def test_people_of_a_tenant_forge_nothing_in_their_own_tenant(
    broker: EmbeddedBroker, vault: Vault, role: RoleName
) -> None:
    """Neither directly nor by what the broker answers and delivers: nothing is said in a master's or a daemon's name."""
    forged = [
        subjects.job_log(OTHER),
        ORDER,
        subjects.job_fact(OTHER, "job.ended"),
        subjects.host_fact(HOST, "exited"),
        subjects.rpc(OTHER, 1, "lease"),
        f"$KV.{LEADERS}.{OTHER}",
    ]

    async def run() -> None:
        heard: list[str] = []
        vault.note_tenants(TENANTS)
        vault.admit([RunOfJob(f"{TENANT}/{OTHER}", "u1")])
        async with (
            of_registrar(broker.url, vault.owner_credentials()) as owner,
            of_registrar(broker.url, vault.system_credentials()) as system,
        ):
            await make_tenants(owner, system, vault)
            credential = vault.member_credentials("master", f"{TENANT}/{OTHER}", "u1", "master-0.1", HOST)
            master = await NatsBus.connect(broker.url, secret=credential)
            try:
                await master.append(LOG, subjects.job_log(OTHER), b"decided")
                await master.append(FACTS, subjects.job_fact(OTHER, "job.opened"), b"fact")
                await master.subscribe(subjects.rpcs(OTHER), lambda each: heard.append(each.subject))
                await say_wherever(broker, vault.person_credentials(role, TENANT), forged)
                stored = [
                    each.subject
                    for stream in (LOG, FACTS, PROFILES, *(f"KV_{each.name}" for each in OF_TENANT))
                    async for each in owner.of(TENANT).read(stream, ">")
                ]
                own = [subjects.job_fact(OWN, "job.stop_requested")] * (role == "submitter")
                left = [each for each in stored if not each.startswith("$KV.ROVER_POSITIONS.")]
                assert sorted(left) == sorted(
                    [subjects.job_log(OTHER), subjects.job_fact(OTHER, "job.opened"), *own]
                )
                assert not heard
            finally:
                await master.close()

    asyncio.run(run())


def test_credentials_of_another_stack_are_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    strange = Vault(tmp_path / "strange")
    strange.write_credentials(HOST)
    with pytest.raises(AccessDenied, match="refuses the secret: check strange"):
        asyncio.run(NatsBus.connect(broker.url, secret=text(strange, "operator"), secret_source="strange"))
    with pytest.raises(AccessDenied):
        asyncio.run(NatsBus.connect(broker.url))
