"""Scenarios S1 to S9, S19, S26 to S28 on a bus: what a user of rover_bus sees.

Each is the story of its golden script (tests/core/master/golden/sNN_*.txt, line by line) told through real masters, or a whole
simulated cluster; S4 to S9 also have the peer's mistake beside them in the title.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import msgpack
import pytest

from rover_bus.cli.decode import describe
from rover_bus.events import subjects
from rover_bus.events.codec import decode, decode_any, encode
from rover_bus.events.data_facts import BatchDeadLettered, CommitRefused, DatasetRefused, LeaseSpeculated
from rover_bus.events.errors import UnknownVersion
from rover_bus.events.facts import JobEnded, MemberLost, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import Dataset
from rover_bus.events.log import Granted
from rover_bus.events.memory_links import CALM
from rover_bus.events.requests import (
    OK,
    STALE,
    FailureRequest,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    RefusedReply,
    RegisterRequest,
)
from rover_bus.master.phases import name_of
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan

PATIENT = {"heartbeat_s": 1000.0}
QUIET = Plan(
    seed=9,
    records=300,
    batch_size=5,
    epochs=1,
    workers=2,
    servers=1,
    batch_s=0.1,
    target_s=1.0,
    faults=CALM,
    drop=0.0,
    double=0.0,
    delay_s=0.005,
    in_flight=1,
)


async def exit_of(it, member, reason="killed"):
    fact = HostExited(host="h", job="j", member=member, exit=Exit(reason=reason))
    await it.publish(fact, subjects.host_fact("h", "exited"))


def ends(reply):
    return [(t, f + c) for t, f, c in zip(reply.tokens, reply.firsts, reply.counts, strict=True)]


async def train_all(worker, **more):
    """Lease and commit until there is nothing more; returns the lengths of all leases, in batches."""
    progress, lengths = [], []
    while True:
        reply = await worker.lease(progress, **more)
        lengths += reply.counts
        progress = ends(reply)
        if not reply.tokens:
            return reply.outcome, lengths


def test_s1_a_worker_dies_in_mid_shard_and_the_remainder_is_leased_next(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        first, second = await it.worker(0), await it.worker(1)
        lease = await first.lease()
        await first.beat([(lease.tokens[0], lease.firsts[0] + 1)])
        await exit_of(it, first.member)
        await it.until(lambda: it.facts(MemberLost))
        return lease, await second.lease()

    lease, next_lease = stage(scenario, workers=2, leases=PATIENT)
    assert next_lease.firsts == [lease.firsts[0] + 1]
    assert next_lease.counts == [lease.counts[0] - 1]


def test_s2_a_worker_is_preempted_four_times_and_every_sample_is_trained():
    blows = tuple(Blow(2.0 + number, "preempt", 0.1) for number in range(4))
    verdict = live(replace(QUIET, blows=blows))
    assert verdict.good, verdict.wrong
    assert verdict.summary["workers_lost"] == 4
    assert verdict.summary["samples_dead_lettered"] == 0


def test_s2_or_its_budget_ends_and_the_job_says_so(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        for incarnation in range(1, 4):
            worker = await it.worker(0, incarnation)
            await worker.lease()
            await exit_of(it, worker.member, "preempted")
        await it.until(lambda: it.facts(JobEnded))
        return it.facts(JobEnded)[0]

    end = stage(scenario, leases={**PATIENT, "preemptions": 2})
    assert (end.state, end.reason) == ("failed", "too_many_preemptions")


def test_s3_a_paused_worker_resumes_and_its_ack_completes_nothing(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        paused, other = await it.worker(0), await it.worker(1)
        lease = await paused.lease()
        await exit_of(it, paused.member)  # a partition's false alarm, say
        await it.until(lambda: it.facts(MemberLost))
        again = await other.lease()
        assert again.firsts == lease.firsts
        reply = await paused.beat(ends(lease))
        committed, _ = it.deciders["m0"].state.ledger.samples_done()
        await it.until(lambda: it.facts(CommitRefused))
        return reply, committed, await other.lease(ends(again)), it.facts(CommitRefused)

    reply, committed, done, refused = stage(scenario, workers=2, leases=PATIENT)
    assert isinstance(reply, RefusedReply)
    assert reply.code == "stale_incarnation"
    assert committed == 0
    assert done.answers == [OK]
    assert [str(fact.member) for fact in refused] == ["worker-0.1"]


def test_s3_a_stale_token_is_refused_while_its_worker_lives(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        lost = await worker.lease()
        await worker.lease()  # it never listed the first token: that one returned
        return (await worker.beat(ends(lost))).answers

    assert stage(scenario) == [STALE]


def test_s4_the_master_is_killed_after_nine_of_ten_shards_and_one_is_left(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.master("m1")
        progress = []
        for _ in range(9):
            progress = ends(await worker.lease(progress, wanted=1))
        await worker.beat(progress)
        it.kill("m0")
        await it.leads("m1")
        outcome, lengths = await train_all(worker)
        return outcome, lengths, it.deciders["m1"].state.ledger.samples_done()

    outcome, lengths, done = stage(scenario, records=100, batch=10, leases={**PATIENT, "max_batches": 1})
    assert (outcome, lengths) == ("closed", [1])
    assert done == (100, 0)


def test_s5_who_asks_when_all_is_leased_waits_and_gets_what_returns(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        first, second = await it.worker(0), await it.worker(1)
        await first.lease(wanted=100)
        waits = await second.lease()
        await exit_of(it, first.member)
        await it.until(lambda: it.facts(MemberLost))
        outcome, lengths = await train_all(second, wanted=100)
        return waits.outcome, outcome, sum(lengths)

    assert stage(scenario, workers=2, records=100, leases=PATIENT) == ("wait", "closed", 10)


def test_s6_a_different_data_set_is_refused_with_the_difference(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.worker(0)
        other = await it.worker(1)
        reply = await other.master.ask(
            RegisterRequest(**other.who, dataset=Dataset(records=999, batch_size=10))
        )
        await it.until(lambda: it.facts(DatasetRefused))
        return reply, it.facts(DatasetRefused)[0]

    reply, fact = stage(scenario, workers=2, leases=PATIENT)
    assert reply.code == "differs"
    assert "records is 1000, not 999" in reply.message
    assert fact.difference in reply.message


@pytest.mark.parametrize(("records", "batches"), [(1050, 11), (1, 1), (100, 1), (101, 2)])
def test_s7_lengths_always_sum_to_the_total(stage, records, batches):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        outcome, lengths = await train_all(await it.worker())
        return outcome, sum(lengths), it.deciders["m0"].state.ledger.samples_done()

    assert stage(scenario, records=records, batch=100, leases=PATIENT) == ("closed", batches, (records, 0))


def test_s8_epochs_are_an_unbounded_counter(stage):
    """Epochs without end: the counter only grows, and no epoch is the last."""

    async def scenario(it):
        it.dataset = Dataset(records=20, batch_size=10, epochs=0)
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        progress, epochs = [], []
        for _ in range(300):
            reply = await worker.lease(progress)
            progress = ends(reply)
            epochs.append(reply.epoch)
        return epochs, name_of(it.deciders["m0"].state.phase)

    epochs, phase = stage(scenario, leases={**PATIENT, "max_batches": 1})
    assert epochs == sorted(epochs)
    assert epochs[-1] > 100
    assert phase == "training"


def test_s9_a_dry_partition_is_passed_over(stage):
    async def scenario(it):
        it.dataset = Dataset(records=0, batch_size=10, partitions=["a", "b"])
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        dry = await worker.lease(high_water={"a": 0, "b": 0})
        other = await worker.lease(high_water={"a": 0, "b": 25})
        await worker.lease(ends(other), high_water={"a": 0, "b": 25}, sealed=["b"])
        refilled = await worker.lease(high_water={"a": 7, "b": 25})
        last = await worker.lease(ends(refilled), high_water={"a": 7, "b": 25}, sealed=["a", "b"])
        return dry.outcome, other.spans, refilled.spans, last.outcome

    dry, other, refilled, last = stage(scenario, leases=PATIENT)
    assert dry == "idle"
    assert [(span[0], *span[3:]) for span in other] == [("b", 0, 25)]
    assert [(span[0], *span[3:]) for span in refilled] == [("a", 0, 7)]
    assert last == "closed"


def test_s19_a_host_that_dies_without_a_word_is_known_in_three_heartbeats(stage):
    async def scenario(it):
        loop = asyncio.get_running_loop()
        await it.begin()
        it.master("m0")
        silent, other = await it.worker(0), await it.worker(1)
        lease = await silent.lease()
        died, heartbeat_s = loop.time(), it.spec.leases.heartbeat_s
        while not it.records(MemberLost):
            await other.beat()
            await asyncio.sleep(0.1)
        known_s = loop.time() - died
        return known_s / heartbeat_s, lease.firsts, (await other.lease()).firsts, it.records(MemberLost)

    heartbeats, first, again, lost = stage(scenario, workers=2)
    assert 3.0 <= heartbeats <= 3.5
    assert again == first
    assert [(str(record.member), record.reason) for record in lost] == [("worker-0.1", "silent")]


def test_s26_the_brain_is_down_and_the_job_keeps_its_plan():
    verdict = live(
        replace(QUIET, blows=(Blow(1.5, "kill_brain", for_s=1000.0), Blow(2.5, "kill_worker", 0.3)))
    )
    assert verdict.good, verdict.wrong
    assert verdict.summary["workers_lost"] == 1


def test_s26_a_job_submitted_meanwhile_is_planned_when_the_brain_is_back():
    said = []
    verdict = live(
        replace(QUIET, blows=(Blow(0.0, "kill_brain", for_s=5.0),)),
        say=lambda at_s, what: said.append((at_s, what)),
    )
    assert verdict.good, verdict.wrong
    assert next(at_s for at_s, what in said if what == "worker-0.1 starts") > 5.0


# -- S27 ---------------------------------------------------------------------------------------------------------------------


def newer(event, tag=None, **fields):
    """The same event as a later release would send it: with fields that this one does not know."""
    plain = msgpack.unpackb(encode(event))
    return msgpack.packb({**plain, **fields, **({"type": tag} if tag else {})})


BEAT = HeartbeatRequest(member=Member("worker", 0, 1), timeline=1)


def test_s27_unknown_fields_are_ignored_by_types_and_kept_by_decode():
    body = newer(BEAT, mood="fine", nested={"a": [1, {"b": 2}]})
    assert decode(body, HeartbeatRequest) == BEAT
    shown = json.loads(json.dumps(describe(body)))
    assert shown["mood"] == "fine"
    assert shown["nested"] == {"a": [1, {"b": 2}]}


def test_s27_an_unknown_major_is_refused_by_name_and_shown_whole():
    body = newer(BEAT, "heartbeat.v2", mood="fine")
    with pytest.raises(UnknownVersion, match=r"heartbeat\.v2 is of a newer release.*heartbeat\.v1"):
        decode_any(body)
    assert describe(body)["mood"] == "fine"


def test_s27_a_master_refuses_and_counts_a_newer_major_and_serves_a_newer_minor(stage):
    async def scenario(it):
        await it.begin()
        shell = it.master("m0")
        worker = await it.worker()
        refused = await it.ask_raw(worker.bus, "lease", newer(worker.next_lease(), "lease.v2"))
        served = await it.ask_raw(worker.bus, "lease", newer(worker.next_lease(), mood="fine"))
        await it.broker.connect("future").publish(
            subjects.job_fact("j", "plan.proposed"),
            newer(PlanProposed(job="j", plan=9, workers=9, servers=0), "plan.proposed.v2"),
        )
        await asyncio.sleep(0.5)
        return refused, served, shell.bad_messages, it.deciders["m0"].state.plans.applied

    refused, served, counted, proposal = stage(scenario)
    assert refused.code == "unknown_version"
    assert "Upgrade rover-bus" in refused.message
    assert isinstance(served, LeaseReply)
    assert served.tokens
    assert counted == 2
    assert proposal == 1


def test_s27_a_log_of_a_newer_major_is_not_led_from(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.worker()
        it.kill("m0")
        body = newer(it.batches()[-1], "log.batch.v2")
        await it.broker.connect("future").append("ROVER_LOG", subjects.job_log("j"), body)
        it.master("m1")
        await it.until(lambda: "m1" in it.ends)
        return str(it.ends["m1"])

    assert "newer release" in stage(scenario)


# -- S28 ---------------------------------------------------------------------------------------------------------------------


async def fail(worker, lease, where):
    request = FailureRequest(
        **worker.who,
        token=lease.tokens[0],
        exception="ValueError",
        message="bad shape",
        fingerprint=f"ValueError@{where}",
    )
    await worker.master.ask(request)


def test_s28_the_same_exception_everywhere_ends_the_job_fast_with_the_exception(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        workers = [await it.worker(index) for index in range(3)]
        for worker in workers:
            await fail(worker, await worker.lease(), "train.py:12")
        await it.until(lambda: it.facts(JobEnded))
        return it.facts(JobEnded)[0]

    end = stage(scenario, workers=3, leases={**PATIENT, "deterministic_failures": 3})
    assert (end.state, end.reason) == ("failed", "deterministic_failure")
    assert "bad shape" in end.detail


def test_s28_a_poison_batch_is_not_taken_for_it(stage):
    """The same exception at the same batch, while others commit: the batch is dead-lettered by name, the job goes on."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        other = await it.worker(1)
        for incarnation in range(1, 4):
            worker = await it.worker(0, incarnation)
            await fail(worker, await worker.lease(), "train.py:12")
            await exit_of(it, worker.member, "failed")
            await it.until(lambda n=incarnation: len(it.facts(MemberLost)) == n)
        outcome, _ = await train_all(other)
        return outcome, it.facts(BatchDeadLettered), it.facts(JobEnded), it.records(Granted)

    outcome, dead, ended, _ = stage(
        scenario, workers=2, records=200, leases={**PATIENT, "deterministic_failures": 9}
    )
    assert outcome == "closed"
    assert [(fact.batch, fact.samples) for fact in dead] == [(0, 10)]
    assert not ended or ended[0].state == "completed"


def test_nothing_is_speculated_while_everybody_moves():
    said = []
    verdict = live(replace(QUIET, records=60), say=lambda at_s, what: said.append(what))
    assert verdict.good
    assert verdict.summary["leases_speculated"] == 0
    assert LeaseSpeculated.kind() == "lease.speculated"
    assert LeaseRequest.__struct_config__.tag == "lease.v1"
