"""S9 and the rest of a stream's life in virtual time: real masters, real sessions, partitions that grow while they are trained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rover_bus.client.lease import Assigned, Work
from rover_bus.client.spans import HighWater
from rover_bus.events import subjects
from rover_bus.events.codec import decode
from rover_bus.events.data_facts import RowsSkipped, SkippedRow
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import Dataset, LeaseSpec
from rover_bus.events.memory_broker import CALM, Faults

Play = Any
World = Any
STREAM = Dataset(records=0, batch_size=10, epochs=1, partitions=["a", "b", "c"])
ROUGH = Faults(
    delay_s=(0.0, 0.02),
    drop=0.05,
    duplicate=0.1,
    reorder=0.1,
    reorder_s=(0.0, 0.7),
    append_lost=0.02,
    ack_lost=0.02,
)
PATIENT = LeaseSpec(target_s=1.0, heartbeat_s=3.0)


async def begin(world: World, rows: dict[str, int], workers: int = 2) -> None:
    world.dataset = STREAM
    world.stream = HighWater(dict(rows), [])
    await world.begin(workers=workers)
    for index in range(workers):
        world.worker(f"w{index}", index)


def seal(world: World) -> None:
    world.stream = HighWater(world.stream.rows, sorted(world.stream.rows))


def exact(world: World, end: Any) -> None:
    """Every record of every partition was applied once, and the ledger says the same."""
    there = {(name, offset) for name, rows in world.stream.rows.items() for offset in range(rows)}
    assert end.state == "completed", end
    assert set(world.learnt) == there
    assert set(world.learnt.values()) <= {1}, "a record stood in two batches"
    summary = end.summary
    assert summary["samples_total"] == len(there)
    assert summary["samples_committed"] + summary["samples_dead_lettered"] == len(there)
    assert not world.broken


def meanings(world: World) -> dict[int, set[Any]]:
    """What each batch was, wherever it was trained."""
    found: dict[int, set[Any]] = {}
    for done in world.trained.values():
        for assigned in done:
            found.setdefault(assigned.number, set()).add(assigned.records)
    return found


def test_s9_when_a_partition_runs_dry_its_worker_gets_another(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 95, "b": 0, "c": 0}, workers=1)
        await asyncio.sleep(5.0)
        trained = world.trained["w0"]
        assert [assigned.records.partition for assigned in trained] == ["a"] * 10
        assert trained[-1].records[1:] == (90, 95), "a short batch waits for nothing"
        world.stream.rows["b"] = 200
        await asyncio.sleep(3.0)
        assert {assigned.records.partition for assigned in trained[10:]} == {"b"}
        world.stream.rows["a"] = 120
        await asyncio.sleep(3.0)
        assert min(each.records.first for each in trained[10:] if each.records.partition == "a") == 95, (
            "a batch that was granted is never extended"
        )
        seal(world)
        exact(world, await world.ended())

    play(scenario)


def test_s9_a_dry_stream_keeps_its_workers_alive_and_its_job_open(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 0, "b": 0, "c": 0})
        await asyncio.sleep(60.0)
        assert not await world.facts("job.ended")
        assert not await world.facts("member.lost"), "an idle worker was taken for dead"
        world.stream.rows["c"] = 7
        seal(world)
        exact(world, await world.ended())

    play(scenario)


def test_s9_seals_close_the_job_only_when_every_partition_has_one(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 50, "b": 0, "c": 0})
        world.stream = HighWater(world.stream.rows, ["a"])
        await asyncio.sleep(10.0)
        assert not await world.facts("job.ended"), "partitions that had nothing yet were forgotten"
        world.stream.rows.update(b=30, c=5)
        seal(world)
        exact(world, await world.ended())

    play(scenario)


def test_s9_a_worker_that_dies_in_mid_span_leaves_the_same_records_to_others(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 333, "b": 333, "c": 0})
        await asyncio.sleep(1.2)
        last = world.trained["w0"][-1]
        world.kill("w0")
        exited = HostExited(
            host="h", job="j", member=Member("worker", 0, 1), exit=Exit(reason="killed", signal=9)
        )
        await world.publish(exited, subjects.host_fact("h", "exited"))
        world.stream.rows["a"] = 400
        await asyncio.sleep(5.0)
        seal(world)
        end = await world.ended()
        exact(world, end)
        assert end.summary["workers_lost"] == 1
        assert all(len(records) == 1 for records in meanings(world).values()), "a batch changed its records"
        assert last.number + 2 in {assigned.number for assigned in world.trained["w1"]}

    play(scenario)


def test_s9_a_successor_of_the_master_knows_every_span(play: Play) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 100, "b": 100, "c": 100})
        world.start("master-1", world.lead("master-1"))
        for _ in range(3):
            await asyncio.sleep(1.1)
            for name in world.stream.rows:
                world.stream.rows[name] += 17
        world.kill("master-0")
        for _ in range(5):
            await asyncio.sleep(1.1)
            for name in world.stream.rows:
                world.stream.rows[name] += 17
        seal(world)
        end = await world.ended()
        exact(world, end)
        assert end.summary["masters_elected"] == 2
        assert all(len(records) == 1 for records in meanings(world).values())
        partitions = world.deciders["master-1"].state.ledger.streams.partitions
        watermarks = {name: part.watermark for name, part in partitions.items()}
        assert watermarks == world.stream.rows, "a watermark stands where all before it is committed"

    play(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_s9_a_stream_in_rough_weather_loses_nothing_and_trains_nothing_twice(play: Play, seed: int) -> None:
    async def scenario(world: World) -> None:
        await begin(world, {"a": 60, "b": 0, "c": 31})
        for step in range(40):
            await asyncio.sleep(1.0)
            world.stream.rows["abc"[step % 3]] += 7 + step
        world.broker.faults = CALM
        seal(world)
        end = await world.ended()
        exact(world, end)
        assert all(len(records) == 1 for records in meanings(world).values())

    play(scenario, seed=seed, faults=ROUGH, leases=PATIENT)


def test_skipped_rows_of_several_partitions_are_counted_and_named_by_their_own_file(play: Play) -> None:
    def bad(assigned: Assigned) -> Work:
        records = assigned.records
        assert records is not None
        if records.first % 20:
            return Work()
        row = SkippedRow(assigned.number * 10 + 3, records.first + 3, records.first + 5, "no label")
        return Work(skipped=(row,), file=f"/data/{records.partition}")

    async def scenario(world: World) -> None:
        world.dataset = STREAM
        world.stream = HighWater({"a": 40, "b": 40, "c": 20}, ["a", "b", "c"])
        await world.begin(workers=1)
        world.worker("w0", bad=bad)
        end = await world.ended()
        exact(world, end)
        assert end.summary["samples_dead_lettered"] == 5
        facts = [decode(body, RowsSkipped) for body in await world.facts("rows.skipped")]
        named = sorted((fact.file, row.row) for fact in facts for row in fact.rows)
        assert named == [("/data/a", 3), ("/data/a", 23), ("/data/b", 3), ("/data/b", 23), ("/data/c", 3)]

    play(scenario)
