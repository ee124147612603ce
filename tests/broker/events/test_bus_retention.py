"""Purging by kind, over both brokers: what is found by counting goes below a sequence, and nothing that a follower has not read."""

import asyncio
from typing import Any

from bus_worlds import Suite, World

from rover_bus.events import positions, retention, subjects
from rover_bus.events.journal import Journal
from rover_bus.events.log import LogBatch
from rover_bus.events.outbox import Outbox
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.streams import FACTS, FACTS_KEPT

suite = Suite()
REPORTED, ENDED = subjects.job_fact("demo", "job.reported"), subjects.job_fact("demo", "job.ended")
MANY = FACTS_KEPT["job.reported"].newest


def retention_of(bus: Any) -> retention.Retention:
    journal = Journal(bus, subjects.job_log("demo"), "demo", "m0", LogBatch, lambda: 0)
    outbox = Outbox(bus, "demo", "m0", lambda left, until: None)  # type: ignore[arg-type,return-value]
    followers = [positions.of_job("demo"), positions.of_all()]
    return retention.Retention(
        bus, journal, outbox, RetentionSettings(), [subjects.job_facts("demo")], followers
    )


async def fill(bus: Any, count: int) -> list[int]:
    return [await bus.append(FACTS, REPORTED, b"%d" % number) for number in range(count)]


@suite.body
async def the_newest_of_a_kind_are_kept_and_what_is_kept_for_ever_stays(world: World) -> None:
    bus = await world.connect()
    await bus.append(FACTS, ENDED, b"for ever")
    sequences = await fill(bus, round(MANY * retention.SLACK) + 1)
    await retention_of(bus)._round()
    assert [stored.sequence async for stored in bus.read(FACTS, REPORTED)] == sequences[-MANY:]
    assert await bus.count(FACTS, ENDED) == 1
    assert await positions.purged_beyond(bus, [subjects.job_facts()], sequences[0]) == [REPORTED]
    assert await positions.purged_beyond(bus, [subjects.job_facts()], sequences[-MANY]) == []


@suite.body
async def nothing_above_the_place_of_a_living_follower_is_taken(world: World) -> None:
    bus = await world.connect()
    sequences = await fill(bus, round(MANY * retention.SLACK) + 1)
    place = positions.FollowerPosition(
        stream=FACTS, subjects=["rover.job.*.job.reported"], position=sequences[10]
    )
    reporting = asyncio.create_task(positions.report_for_ever(bus, positions.of_all("brain"), lambda: place))
    while not await positions.of_followers(bus, [positions.of_all()]):  # noqa: ASYNC110 - it is time that is waited for
        await asyncio.sleep(0.02)
    await retention_of(bus)._round()
    reporting.cancel()
    await asyncio.gather(reporting, return_exceptions=True)
    assert [stored.sequence async for stored in bus.read(FACTS, REPORTED)] == sequences[11:]


test_in_memory, test_over_nats = suite.tests()
