"""While the broker takes in an account's claims, as whenever a run begins or ends, the account lacks its imports: nothing fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from patience import until
from tenants_stage import stage

from rover_bus.auth.vault import RunOfJob
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.events import subjects
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.streams import FACTS, LOG, SETTINGS

pytestmark = pytest.mark.broker

RUNS = 300  # each is some tenths of a millisecond without imports; of 400, 26 met a request of three readers here


def test_requests_that_meet_a_broker_taking_in_claims_are_answered(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, ("ads",)) as on:
            person = await on.connect("submitter", "ads")
            of_ads, stored, heard = on.owner.of("ads"), [0], list[bytes]()
            log = subjects.job_log("demo")
            told = subjects.job_fact("demo", "plan.proposed")

            async def store() -> None:
                named = {MESSAGE_ID: f"fact-{stored[0]}"}
                await of_ads.append(FACTS, told, str(stored[0]).encode(), headers=named)
                stored[0] += 1

            def hear(each: Stored) -> None:
                heard.append(each.body)

            following = await of_ads.follow(FACTS, [told], hear, start=1)
            master = await on.connect("master", "ads")
            entries = [b"%d" % number for number in range(3)]
            for each in entries:
                await master.append(LOG, log, each)
            asking: list[Callable[[], Awaitable[object]]] = [
                lambda: person.newest(FACTS, told),
                lambda: person.entries(SETTINGS, "*"),
                lambda: of_ads.last(FACTS, told),
                lambda: of_ads.size(FACTS),
                lambda: all_of(person.read(LOG, log)),
                lambda: all_of(of_ads.read(LOG, log)),
                store,
            ]
            over = asyncio.Event()

            async def all_of(reading: AsyncIterator[Stored]) -> None:
                assert [each.body async for each in reading] == entries

            async def ask_again_and_again(ask: Callable[[], Awaitable[object]]) -> None:
                while not over.is_set():
                    await ask()

            async with asyncio.TaskGroup() as group:
                for ask in asking:
                    group.create_task(ask_again_and_again(ask))
                for number in range(RUNS):
                    runs = [RunOfJob("ads/demo", f"u{number}")]
                    await tell_accounts(on.system, on.vault, on.vault.admit(runs, every=number % 10 == 0))
                over.set()
            await asyncio.to_thread(until, lambda: len(heard) >= stored[0], "all that was stored")
            await following.stop()
            assert heard == [str(number).encode() for number in range(stored[0])]

    asyncio.run(run())
