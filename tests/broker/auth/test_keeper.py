"""A master has its own job purged by the keeper, and nothing else by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied, BusError
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Ways
from rover_bus.events.purging import keep_purging
from rover_bus.events.streams import BUCKETS, FACTS, LOG, PROFILES, STREAMS

pytestmark = pytest.mark.broker


async def with_keeper(tmp_path: Path, work: Callable[[NatsBus, NatsBus], Awaitable[None]]) -> None:
    """Run `work` on the buses of the Brain, which keeps, and of the master of job `own`."""
    vault = Vault(tmp_path / "auth")
    vault.write_credentials("h1")
    vault.admit([RunOfJob("own", "u1")])
    with EmbeddedBroker(tmp_path / "broker", rights=vault.server_configuration) as broker:
        brain = await NatsBus.connect(broker.url, secret=vault.credentials_file("brain").read_text())
        await brain.ensure(STREAMS, BUCKETS)
        keeping = asyncio.create_task(keep_purging(brain))
        credential = vault.member_credentials("master", "own", "u1", "master-0.1", "h1")
        master = await NatsBus.connect(
            broker.url, secret=credential, ways=Ways(keeper=subjects.keeper("own", "purge"))
        )
        try:
            await work(brain, master)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await master.close()
            await brain.close()


async def kept(bus: NatsBus, stream: str, subject: str) -> list[bytes]:
    return [each.body async for each in bus.read(stream, subject)]


def test_what_is_its_own_is_purged_below_a_sequence(tmp_path: Path) -> None:
    async def work(brain: NatsBus, master: NatsBus) -> None:
        log, fact = subjects.job_log("own"), subjects.job_fact("own", "job.reported")
        for number in range(4):
            last = await master.append(LOG, log, b"%d" % number)
            told = await master.append(FACTS, fact, b"%d" % number)
        await master.purge(LOG, log, before=last)
        await master.purge(FACTS, fact, before=told)
        assert await kept(brain, LOG, log) == [b"3"]
        assert await kept(brain, FACTS, fact) == [b"3"]

    asyncio.run(with_keeper(tmp_path, work))


@pytest.mark.parametrize(
    ("stream", "subject"),
    [
        (LOG, "rover.job.other.log"),
        (LOG, "rover.job.*.log"),
        (LOG, "rover.brain.log"),
        (LOG, ">"),
        (LOG, ""),
        (FACTS, "rover.job.other.job.opened"),
        (FACTS, "rover.job.>"),
        (FACTS, "rover.host.h1.registered"),
        (FACTS, "rover.job.own.log"),
        (PROFILES, "rover.profile.own.worker.0"),
        ("KV_ROVER_LEADERS", "rover.job.own.log"),
    ],
)
def test_what_is_not_its_own_stays_whoever_is_asked(tmp_path: Path, stream: str, subject: str) -> None:
    async def work(brain: NatsBus, master: NatsBus) -> None:
        await brain.append(LOG, subjects.BRAIN_LOG, b"the brain's")
        await master.append(LOG, subjects.job_log("own"), b"own")
        await brain.append(FACTS, subjects.job_fact("other", "plan.proposed"), b"other")
        with pytest.raises(BusError, match="was not purged"):
            await master.purge(stream, subject)
        assert len(await kept(brain, LOG, ">")) == 2
        assert len(await kept(brain, FACTS, ">")) == 1
        master.ways = Ways(keeper=subjects.keeper("other", "purge"))
        with pytest.raises(AccessDenied, match=r"rover\.keeper\.other\.purge"):
            await master.purge(LOG, subjects.job_log("other"))

    asyncio.run(with_keeper(tmp_path, work))
