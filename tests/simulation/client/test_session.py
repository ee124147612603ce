"""Sessions against a real master on the bus in memory, in virtual time: the scenarios of issue 4 as a worker lives them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from rover_bus.client.lease import Assigned, Work
from rover_bus.client.session import reason_to_stop
from rover_bus.events import subjects
from rover_bus.events.codec import decode, encode
from rover_bus.events.data_facts import CommitRefused, RowsSkipped, SkippedRow
from rover_bus.events.errors import Refused
from rover_bus.events.facts import JobStopRequested, MemberLost
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import Dataset, LeaseSpec
from rover_bus.events.log import Granted, LogBatch
from rover_bus.events.memory_broker import CALM, Faults
from rover_bus.events.requests import FailureRequest
from rover_bus.events.streams import LOG

Play = Any
World = Any

ROUGH = Faults(
    delay_s=(0.0, 0.02),
    drop=0.05,
    duplicate=0.1,
    reorder=0.1,
    reorder_s=(0.0, 0.7),
    append_lost=0.02,
    ack_lost=0.02,
)


PATIENT = LeaseSpec(
    target_s=2.0, heartbeat_s=3.0
)  # in rough weather three lost heartbeats in a row are no death


async def two_workers(world: World) -> Any:
    await world.begin()
    world.worker("w0", 0)
    world.worker("w1", 1)
    return await world.ended()


def exact(world: World, end: Any) -> None:
    """Every sample is committed, and every batch of it is on the servers."""
    assert end.state == "completed", end
    assert end.summary["samples_committed"] + end.summary["samples_dead_lettered"] == 2100
    assert end.summary["samples_dead_lettered"] == 0
    assert world.every_batch_was_applied()
    assert not world.broken


def test_two_workers_train_every_batch_of_every_epoch_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        exact(world, await two_workers(world))
        assert sum(world.applied.values()) <= 210 + 20, "more than the tails was trained twice"
        assert all(len(done) > 50 for done in world.trained.values())

    play(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_lost_doubled_and_late_messages_lose_nothing_and_commit_nothing_twice(play: Play, seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(60.0)
        world.broker.faults = CALM
        exact(world, await world.ended())

    play(scenario, seed=seed, faults=ROUGH, leases=PATIENT)


def leased_to(world: World, index: int) -> set[int]:
    """The batches that a worker was granted so far."""
    batches = world.broker.streams[LOG].select([subjects.job_log("j")])
    records = (record for stored in batches for record in decode(stored.body, LogBatch).records)
    granted = (record for record in records if isinstance(record, Granted) and record.worker == index)
    return {
        number
        for record in granted
        for first, count in zip(record.firsts, record.counts, strict=True)
        for number in range(first, first + count)
    }


def test_s1_the_rest_of_a_dead_workers_lease_is_trained_next_by_others(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(2.3)
        last = world.trained["w0"][-1]
        world.kill("w0")
        held = leased_to(world, 0)
        left = held - {each.number for each in world.trained["w0"]}
        assert left, "it died with work in hand"
        exited = HostExited(
            host="h", job="j", member=Member("worker", 0, 1), exit=Exit(reason="killed", signal=9)
        )
        before = len(world.trained["w1"])
        await world.publish(exited, subjects.host_fact("h", "exited"))
        end = await world.ended()
        exact(world, end)
        numbers = [
            assigned.number for assigned in world.trained["w1"][before:] if assigned.epoch == last.epoch
        ]
        assert left <= set(numbers)
        first_again = min(numbers.index(number) for number in held if number in numbers)
        assert first_again < len(numbers) // 2, "the remainder waited behind fresh batches"
        assert end.summary["samples_retrained"] <= 60
        assert end.summary["workers_lost"] == 1, (
            "a death that was reported by an exit was noticed again as silence"
        )

    play(scenario)


def test_s3_a_paused_worker_that_was_replaced_ends_and_its_late_progress_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        world.worker("w0", 0)
        await asyncio.sleep(1.5)
        world.broker.partition("w0")
        await asyncio.sleep(5.0)
        world.worker("w0-again", 0, 2)
        await asyncio.sleep(2.0)
        world.broker.heal("w0")
        end = await world.ended()
        exact(world, end)
        paused = world.sessions["w0"].worker
        assert paused.end is not None
        assert paused.end.code == "stale_incarnation"
        assert reason_to_stop(paused) is None
        lost = [decode(body, MemberLost) for body in await world.facts("member.lost")]
        assert [str(fact.member) for fact in lost] == ["worker-0.1"]
        refused = [decode(body, CommitRefused) for body in await world.facts("commit.refused")]
        assert {str(fact.member) for fact in refused} == {"worker-0.1"}

    play(scenario)


def test_an_external_worker_that_was_lost_joins_again_as_another_life(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin(workers=0)
        world.worker("mine", external=True)
        await asyncio.sleep(1.5)
        world.broker.partition("mine")
        await asyncio.sleep(6.0)
        world.broker.heal("mine")
        exact(world, await world.ended())
        assert world.sessions["mine"].worker.incarnations == 2
        assert world.sessions["mine"].worker.member == Member("worker", 0, 2)

    play(scenario)


def test_a_take_over_passes_without_the_loop_standing_still(play: Play) -> None:
    async def scenario(world: World) -> None:
        times: list[float] = []

        async def note(session: Any, assigned: Assigned) -> None:
            times.append(asyncio.get_running_loop().time())

        await world.begin(workers=1)
        await asyncio.sleep(0.5)
        world.start("master-1", world.lead("master-1"))
        world.worker("w0", 0, meet=note)
        await asyncio.sleep(4.0)
        world.kill("master-0")
        end = await world.ended()
        exact(world, end)
        assert end.summary["masters_elected"] == 2
        gaps = [after - before for before, after in pairwise(times) if before > 1.0]
        within_epoch = sorted(gaps)[:-1]  # the end of an epoch may wait for its last commit
        assert max(within_epoch) < 0.2, "a worker that holds leases waited for a master"

    play(scenario)


@pytest.mark.parametrize("down_s", [0.1, 5.0])
def test_a_broker_restart_loses_nothing(play: Play, down_s: float) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(1.7)
        world.broker.restart(down_s)
        exact(world, await world.ended())
        assert world.sessions["w0"].worker.member.incarnation == 1

    play(scenario)


def test_s5_a_worker_without_work_waits_and_gets_what_returns(play: Play) -> None:
    """The slow worker holds the tail and dies; the fast one, which found nothing, trains it."""

    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("slow", 0, step_s=3.0)
        world.worker("fast", 1, step_s=0.01)
        await asyncio.sleep(15.0)
        world.kill("slow")
        world.worker("next", 0, 2, step_s=0.01)
        exact(world, await world.ended())

    play(scenario)


def test_s6_other_data_is_refused_with_the_difference(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        await asyncio.sleep(1.0)
        world.dataset = Dataset(records=999, batch_size=10, epochs=2)
        world.worker("w1", 1)
        await asyncio.sleep(1.0)
        [error] = world.broken
        assert isinstance(error, Refused)
        assert "records is 1050, not 999" in str(error)

    play(scenario)


def test_skipped_rows_and_missing_values_are_counted_once_however_often_their_report_is_repeated(
    play: Play,
) -> None:
    def bad(assigned: Assigned) -> Work:
        if assigned.number % 10:
            return Work(values_missing=1)
        row = assigned.number * 10
        return Work(skipped=(SkippedRow(row, row, row + 1, "no label"),), values_missing=1)

    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        world.worker("w0", 0, bad=bad)
        await asyncio.sleep(60.0)
        world.broker.faults = CALM
        end = await world.ended()
        assert end.summary["samples_dead_lettered"] == 2 * 11
        assert end.summary["samples_committed"] == 2100 - 22
        assert end.summary["values_missing"] == 210
        rows = [row for body in await world.facts("rows.skipped") for row in decode(body, RowsSkipped).rows]
        assert sorted(row.position for row in rows) == sorted([100 * n for n in range(11)] * 2)

    play(scenario, seed=4, faults=ROUGH, leases=PATIENT)


def test_a_drained_job_commits_what_is_done_and_stops(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(2.0)
        stop = JobStopRequested(job="j", mode="drain", reason="enough")
        await world.publish(stop, subjects.job_fact("j", stop.kind()))
        end = await world.ended(10.0)
        assert end.state == "stopped"
        trained = sum(len(done) for done in world.trained.values())
        assert end.summary["samples_committed"] == trained * 10

    play(scenario)


def test_a_worker_that_is_asked_to_leave_part_commits_and_another_trains_the_rest(play: Play) -> None:
    async def scenario(world: World) -> None:
        async def leave_at_30(session: Any, assigned: Assigned) -> None:
            if len(world.trained["w0"]) == 30:
                session.drain()

        await world.begin(workers=1)
        world.worker("w0", 0, meet=leave_at_30)
        await asyncio.sleep(3.0)
        world.worker("w0-again", 0, 2)
        end = await world.ended()
        exact(world, end)
        assert len(world.trained["w0"]) == 31
        assert set(world.applied.values()) == {1}, (
            "something was trained twice although it had been committed"
        )

    play(scenario)


def test_a_new_generation_drops_what_is_held_and_trains_from_the_start(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(3.0)
        world.kill("ps-0")
        gone = HostExited(host="h", job="j", member=Member("ps", 0, 1), exit=Exit(reason="killed", signal=9))
        await world.publish(gone, subjects.host_fact("h", "exited"))
        world.start("ps-0", world.serve(0, 2))
        end = await world.ended()
        assert end.state == "completed", end
        assert end.summary["rewinds"] == 1
        assert end.summary["samples_committed"] == 2100
        assert world.every_batch_was_applied(generation=1)
        assert world.sessions["w0"].worker.generation == 1
        assert world.sessions["w0"].worker.member.incarnation == 1

    play(scenario, on_server_lost="restart")


def test_s28_the_same_exception_on_every_life_ends_the_job_with_its_name(play: Play) -> None:
    async def scenario(world: World) -> None:
        async def fail(session: Any, assigned: Assigned) -> None:
            worker = session.worker
            await session.fail(
                FailureRequest(
                    **worker.who(),
                    token=assigned.token,
                    exception="KeyError",
                    message="7",
                    fingerprint="KeyError@x:1",
                )
            )
            world.failed.append(worker.member)
            raise Refused("the program ended", "failed")

        world.failed = []
        await world.begin(workers=1)
        for incarnation in range(
            1, 5
        ):  # three bury the first batch; the fourth fails on the next one just the same
            world.worker(f"w{incarnation}", 0, incarnation, meet=fail)
            await asyncio.sleep(1.0)
            exited = HostExited(
                host="h",
                job="j",
                member=Member("worker", 0, incarnation),
                exit=Exit(reason="failed", status=1),
            )
            await world.publish(exited, subjects.host_fact("h", "exited"))
            await asyncio.sleep(1.0)
        end = await world.ended(5.0)
        assert (end.state, end.reason) == ("failed", "deterministic_failure")
        assert "KeyError" in end.detail
        assert len(world.failed) == 4

    play(scenario)


def test_one_worker_is_elected_and_the_next_one_steps_in_when_it_dies(play: Play) -> None:
    async def scenario(world: World) -> None:
        outcome: dict[str, bool] = {}

        async def evaluate(name: str, index: int) -> None:
            session = world.sessions[name]
            outcome[name] = await session.elect("evaluate")
            if outcome[name] and name != "w0":
                await session.conclude("evaluate", {"auc": 0.5})

        await world.begin(workers=3)
        for index in range(3):
            world.worker(f"w{index}", index)
        await asyncio.sleep(2.0)
        world.start("vote-w0", evaluate("w0", 0))
        await asyncio.sleep(0.2)
        assert outcome == {"w0": True}
        votes = [asyncio.create_task(evaluate(f"w{index}", index)) for index in (1, 2)]
        await asyncio.sleep(1.0)
        assert outcome == {"w0": True}
        world.kill("w0")
        await asyncio.gather(*votes)
        assert sorted(outcome.values()) == [False, True, True]
        assert outcome["w0"]
        world.worker("w0-again", 0, 2)
        assert (await world.ended()).summary["result"] == {"auc": 0.5}

    play(scenario, records=3000)


def test_a_result_is_not_taken_where_the_job_went_back_since_the_election(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin()
        world.worker("w0", 0)
        world.worker("w1", 1)
        await asyncio.sleep(2.0)
        session = world.sessions["w0"]
        assert await session.elect("evaluate")
        world.kill("ps-0")
        gone = HostExited(host="h", job="j", member=Member("ps", 0, 1), exit=Exit(reason="killed", signal=9))
        await world.publish(gone, subjects.host_fact("h", "exited"))
        world.start("ps-0", world.serve(0, 2))
        assert not await session.conclude("evaluate", {"auc": 0.1}), "the model that it is of is gone"
        assert session.worker.generation == 1
        assert not await session.conclude("evaluate", {"auc": 0.2}), "of no election"
        assert not await world.facts("result.reported")
        assert len(await world.facts("task.given")) <= 1
        assert await session.elect("evaluate")
        assert await session.conclude("evaluate", {"auc": 0.3})
        assert (await world.ended()).summary["result"] == {"auc": 0.3}

    play(scenario, on_server_lost="restart")


def test_a_silent_worker_is_lost_although_its_successor_asks_to_join_meanwhile(play: Play) -> None:
    """A join for the next life of a place is no sign of life of the present one."""

    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        world.worker("old", 0)
        await asyncio.sleep(3.0)
        world.kill("old")
        world.worker("new", 0, 2)
        exact(world, await world.ended(60.0))

    play(scenario)


def test_a_goodbye_that_nobody_hears_ends_in_time(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        world.worker("w0", 0)
        await asyncio.sleep(1.0)
        world.kill("master-0")
        session = world.sessions["w0"]
        began = asyncio.get_running_loop().time()
        assert not await session.leave("asked", patience_s=2.0)
        assert asyncio.get_running_loop().time() - began < 2.5

    play(scenario)


def test_a_foreign_message_as_an_answer_is_no_answer(play: Play) -> None:
    """Somebody else answers on the master's subject with bytes of his own; the worker asks on."""

    async def scenario(world: World) -> None:
        await world.begin(workers=1)
        await asyncio.sleep(0.5)
        intruder = world.broker.connect("intruder")
        await intruder.subscribe(
            subjects.rpc("j", 1, "lease"),
            lambda message: message.respond and message.respond(encode({"a": 1})),
            queue="q",
        )
        world.worker("w0", 0)
        await asyncio.sleep(40.0)
        await intruder.close()
        exact(world, await world.ended())

    play(scenario)
