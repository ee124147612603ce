"""The rights of a run begin with its submission and end with its end: also those of credentials that were stolen from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from told import told

from rover_bus.auth.key_folder import take_keys, whole_keys
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli import registrar
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.cli.tenants import make_whole
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied, RoverError
from rover_bus.events.facts import JobEnded, JobFact, JobSubmitted
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, ROUTING, STREAMS

pytestmark = pytest.mark.broker
PATIENCE_S = 20.0


class Stage(NamedTuple):
    broker: EmbeddedBroker
    vault: Vault
    operator: NatsBus

    async def say(self, fact: JobFact, job: str) -> None:
        """Store a fact of a job as who may."""
        body, headers = told(fact, 1)
        subject = subjects.job_fact(job, fact.kind())
        if isinstance(fact, JobSubmitted):
            await self.operator.append(FACTS, subject, body, headers=headers)
            return
        master = await self.member("master", job)
        await master.append(FACTS, subject, body, headers=headers)
        await master.close()

    async def submit(self, job: str) -> None:
        await self.say(
            JobSubmitted(
                job=job, uid=uid_of(job), spec=JobSpec(name=job, program=["t"], data=DataSpec(train="t"))
            ),
            job,
        )

    async def end(self, job: str) -> None:
        await self.say(JobEnded(job=job, state="completed"), job)

    def credential(self, role: str, job: str) -> str:
        return self.vault.member_credentials(role, job, uid_of(job), f"{role}-0.1", "h1")  # type: ignore[arg-type]

    async def member(self, role: str, job: str) -> NatsBus:
        """Connect a member, as soon as its run is registered."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await NatsBus.connect(self.broker.url, secret=self.credential(role, job))
                except RoverError:
                    await asyncio.sleep(0.02)


def uid_of(job: str) -> str:
    return f"0000000000{ord(job[0]):02x}"


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """A broker whose Brain's process registers runs."""
    vault = Vault(directory / "auth")
    vault.write_credentials("h1")
    with EmbeddedBroker(directory / "broker", rights=vault.server_configuration) as broker:
        brain = await NatsBus.connect(broker.url, secret=vault.credentials_file("brain").read_text())
        await brain.ensure(STREAMS, BUCKETS)
        operator = await NatsBus.connect(broker.url, secret=vault.credentials_file("operator").read_text())
        system = await NatsBus.connect(broker.url, secret=vault.system_credentials())
        registering = asyncio.create_task(registrar.register_runs(brain, system, vault))
        try:
            yield Stage(broker, vault, operator)
        finally:
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            for bus in (system, operator, brain):
                await bus.close()


def loss_of(bus: NatsBus) -> asyncio.Event:
    """Return what is set once the connection was lost, also where it is back at once."""
    lost = asyncio.Event()
    bus.on_connection(lambda state: None if state == "connected" else lost.set())
    return lost


async def until_lost(lost: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await lost.wait()


def test_stolen_rights_end_with_the_job_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar, "LAST_WORDS_S", 0.2)

    async def run() -> None:
        async with stage(tmp_path) as on:
            with pytest.raises(AccessDenied):
                await NatsBus.connect(on.broker.url, secret=on.credential("worker", "ads"))
            await on.submit("ads")
            await on.submit("maps")
            stolen, other = await on.member("worker", "ads"), await on.member("worker", "maps")
            lost: list[str] = []
            other.on_connection(lost.append)
            ended = loss_of(stolen)
            await on.end("ads")
            await until_lost(ended)
            with pytest.raises(AccessDenied, match="refuses the secret"):
                await NatsBus.connect(on.broker.url, secret=on.credential("worker", "ads"))
            assert other.connected
            assert not lost, "who trains on notices nothing"
            assert on.vault.runs == {RunOfJob("maps", uid_of("maps"))}
            for bus in (stolen, other):
                await bus.close()

    asyncio.run(run())


def test_a_broker_that_starts_again_knows_the_runs_that_there_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            await on.submit("ads")
            worker = await on.member("worker", "ads")
            lost = loss_of(worker)
            on.broker.restart()
            await until_lost(lost)
            async with asyncio.timeout(PATIENCE_S):
                while not worker.connected:  # noqa: ASYNC110 - it is the broker that is waited for
                    await asyncio.sleep(0.01)
            await worker.close()

    asyncio.run(run())


def test_a_second_registrar_takes_no_rights_before_it_has_read_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            for job in ("ads", "maps", "news"):
                await on.submit(job)
            workers = [await on.member("worker", job) for job in ("ads", "maps", "news")]
            lost: list[str] = []
            for worker in workers:
                worker.on_connection(lost.append)
            system = await NatsBus.connect(on.broker.url, secret=on.vault.system_credentials())
            second = asyncio.create_task(registrar.register_runs(on.operator, system, on.vault))
            await on.submit("zoo")
            workers.append(await on.member("worker", "zoo"))
            assert not lost
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            for bus in (*workers, system):
                await bus.close()

    asyncio.run(run())


@pytest.mark.parametrize("ahead_s", [300.0, -300.0])
def test_a_clock_that_is_minutes_off_takes_no_rights_before_a_jobs_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    monkeypatch.setattr(registrar, "LAST_WORDS_S", 3.0)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead_s)

    async def run() -> None:
        async with stage(tmp_path) as on:
            await on.submit("ads")
            worker = await on.member("worker", "ads")
            ended = loss_of(worker)
            await on.end("ads")
            await asyncio.sleep(1.5)
            assert worker.connected
            assert not ended.is_set()
            await until_lost(ended)
            await worker.close()

    asyncio.run(run())


def test_a_brain_that_begins_with_one_more_tenant_has_it_made_and_takes_no_members_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an upgrade of the chart begins it: it knows no runs. The Brain that the upgrade ends tells the broker less once more."""

    async def run() -> None:
        async with stage(tmp_path) as on:
            await on.submit("ads")
            lost = loss_of(master := await on.member("master", "ads"))
            monkeypatch.setattr(registrar, "OTHERS_S", 2.0)
            vault = Vault(tmp_path / "next" / "auth")
            vault.root.parent.mkdir()
            take_keys(vault, whole_keys(on.vault))
            vault.note_tenants(["team"])
            owner = await NatsBus.connect(on.broker.url, secret=on.vault.owner_credentials())
            system = await NatsBus.connect(on.broker.url, secret=vault.system_credentials())
            told_all = asyncio.Event()
            registering = asyncio.create_task(registrar.register_runs(owner, system, vault, told_all.set))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await told_all.wait()
                    await make_whole(owner, vault, vault.tenants)
                told_all.clear()
                await tell_accounts(system, on.vault, on.vault.admit(on.vault.runs, every=True))
                async with asyncio.timeout(PATIENCE_S):
                    await told_all.wait()
                await owner.of("team").put(ROUTING, "demo", b"{}")
                assert not lost.is_set()
            finally:
                registering.cancel()
                await asyncio.gather(registering, return_exceptions=True)
                for bus in (system, owner, master):
                    await bus.close()

    asyncio.run(run())
