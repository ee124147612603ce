"""What serves HTTP: it looks as an observer does, stores a person's word on a plan in the account of the job, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import make_tenants, of_registrar
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.errors import AccessDenied
from rover_bus.events.facts import PlanApproved
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.reading import read_fact
from rover_bus.events.stating import state_of_job
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS

pytestmark = pytest.mark.broker
TENANT = "ads"


@pytest.mark.parametrize("job", ["demo", f"{TENANT}/demo"])
def test_a_word_on_a_plan_is_stored_with_its_author_in_the_account_of_the_job(
    tmp_path: Path, job: str
) -> None:
    async def run(broker: EmbeddedBroker, vault: Vault) -> None:
        async with (
            of_registrar(broker.url, vault.owner_credentials()) as owner,
            of_registrar(broker.url, vault.system_credentials()) as system,
        ):
            await owner.ensure(STREAMS, BUCKETS)
            await make_tenants(owner, system, vault)
            page = await NatsBus.connect(broker.url, secret=vault.credentials_file("web").read_text())
            try:
                seen: asyncio.Queue[Stored] = asyncio.Queue()
                await page.follow(FACTS, subjects.everywhere("rover.>"), seen.put_nowait)
                said = PlanApproved(job=job, plan=7, by="ada")
                sequence = await state_of_job(page, said, "plan.approved.1", "rover-web")
                tenant, bare = subjects.split_job(job)
                kept = await owner.of(tenant).last(FACTS, subjects.job_fact(bare, "plan.approved"))
                assert kept is not None
                assert (kept.sequence, read_fact(kept)) == (
                    sequence,
                    PlanApproved(job=bare, plan=7, by="ada"),
                )
                async with asyncio.timeout(20):
                    assert read_fact(await seen.get()) == said
                with pytest.raises(AccessDenied):
                    await page.of(tenant).append(FACTS, subjects.job_fact(bare, "plan.mode_set"), b"x")
            finally:
                await page.close()

    vault = Vault(tmp_path / "auth")
    vault.write_credentials("h1")
    vault.note_tenants([TENANT])
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as broker:
        asyncio.run(run(broker, vault))
