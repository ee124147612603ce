"""P18, P21: what the log remembers of facts that left, what is kept, and that nothing which appends waits for either."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rover_bus.brain.service import build_brain
from rover_bus.cli.views.progress import JobProgress
from rover_bus.events import outbox, positions, retention, streams, subjects
from rover_bus.events.codec import decode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import JobFact, JobPauseRequested, JobReported
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.inputs import Observed
from rover_bus.events.journal import Journal
from rover_bus.events.log import Granted, LogBatch, SnapshotChunk
from rover_bus.events.memory_bus import MemoryBus
from rover_bus.events.settings import RetentionSettings
from rover_bus.events.shell import Shell
from rover_bus.events.streams import FACTS, Kept
from rover_bus.master.decider import MasterDecider

NOTHING_KEPT = RetentionSettings(log_age_s=0, log_size_bytes=0)
ROUND_S = retention.ROUND_S


async def work_through(worker, leases, pause_s=0.3):
    progress = []
    for _ in range(leases):
        reply = await worker.lease(progress)
        progress = [(t, f + c) for t, f, c in zip(reply.tokens, reply.firsts, reply.counts, strict=True)]
        await asyncio.sleep(pause_s)


def fill_facts(it, full=True):
    """FACTS refuses what comes from now on, or takes it again."""
    stream = it.broker.streams[FACTS]
    stream.spec = stream.spec.replace(max_bytes=max(stream.size_bytes, 1) if full else 0)


def from_the_log(it):
    return [fact for fact in it.facts(JobFact) if fact.position is not None]


def told_once_in_order(it):
    places_ = [fact.position for fact in from_the_log(it)]
    assert places_ == sorted(places_), "out of order"
    assert len(places_) == len(set(places_)), "told twice"
    return places_


def places_in(it):
    """Where in the log the facts come from that its records make, by a replay of everything."""
    decider, made = MasterDecider("j"), []
    for stored in it.stored():
        for index, record in enumerate(decode(stored.body, LogBatch).records):
            decider.evolve(record)
            items = decider.outgoing(record, (stored.sequence, index), 1)
            made += [item.position for item in items if isinstance(item, outbox.FactOut)]
    return made


async def everything_left(it):
    await it.until(lambda: len(from_the_log(it)) == len(places_in(it)))


# -- B8: nothing that appends waits for what leaves ------------------------------------------------------------------------


def test_while_facts_cannot_be_stored_leases_go_on_and_the_due_snapshot_is_taken(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", snapshot_every_batches=7)
        worker = await it.worker()
        fill_facts(it)
        stored = len(it.stored(FACTS))
        await asyncio.wait_for(work_through(worker, 20), 60.0)
        assert len(it.stored(FACTS)) == stored
        granted, last = len(it.records(Granted)), it.batches()[-1]
        fill_facts(it, full=False)
        await everything_left(it)
        told_once_in_order(it)
        return granted, last.snapshot, last.waiting

    granted, snapshot, waiting = stage(scenario, records=10_000)
    assert granted == 20
    assert snapshot > 0, "no complete snapshot is named"
    assert waiting > 0


def test_what_waits_is_bounded_in_memory_and_said_and_leaves_in_the_end(stage, monkeypatch, caplog):
    monkeypatch.setattr(outbox, "MAX_WAITING", 5)
    logging.getLogger("rover").setLevel(logging.WARNING)

    async def scenario(it):
        await it.begin()
        leader = it.master("m0", snapshot_every_batches=7)
        worker = await it.worker()
        fill_facts(it)
        held, working = [], asyncio.create_task(work_through(worker, 20, pause_s=6.0))
        while not working.done():
            await asyncio.sleep(1.0)
            held.append(len(leader.outbox._queue))
        waiting = it.batches()[-1].waiting
        fill_facts(it, full=False)
        await everything_left(it)
        await work_through(worker, 2)
        await everything_left(it)
        return max(held), waiting, told_once_in_order(it)

    held, waiting, told = stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})
    assert held <= 5 < waiting < len(told)
    assert "facts wait: the job goes on" in caplog.text
    assert "more facts wait than memory holds" in caplog.text
    assert "facts leave again" in caplog.text


@pytest.mark.parametrize("most", [5, 1000])
def test_a_successor_tells_all_that_its_predecessor_could_not(stage, monkeypatch, most):
    """More facts than a standby keeps ready: it makes them again from the log, and drops none without a word."""
    monkeypatch.setattr(outbox, "MAX_WAITING", most)

    async def scenario(it):
        await it.begin()
        it.master("m0", snapshot_every_batches=7)
        worker = await it.worker()
        it.master("m1")
        fill_facts(it)
        await work_through(worker, 20, pause_s=6.0)
        it.kill("m0")
        await it.leads("m1")
        fill_facts(it, full=False)
        await everything_left(it)
        return told_once_in_order(it)

    assert len(stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})) > 20


def test_so_does_one_that_begins_with_a_snapshot_which_covers_them(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", snapshot_every_batches=7)
        worker = await it.worker()
        fill_facts(it)
        await work_through(worker, 20)
        waited = it.batches()[-1].waiting
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        fill_facts(it, full=False)
        await everything_left(it)
        told_once_in_order(it)
        return waited

    assert stage(scenario, records=10_000) > 0


# -- B7: a take-over reads what it must -----------------------------------------------------------------------------------------


class CountsReads(MemoryBus):
    """Counts what is read of each stream."""

    async def read(self, stream, subject, *, first=1):
        async for stored in super().read(stream, subject, first=first):
            self.reads = getattr(self, "reads", 0) + (stream == FACTS)
            yield stored


def facts_read_by_a_successor(stage, seconds):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(worker, round(seconds / 2), pause_s=2.0)
        it.kill("m0")
        successor = it.master("m1")
        successor.bus.__class__ = CountsReads
        await it.leads("m1")
        await asyncio.sleep(1.0)
        told_once_in_order(it)
        return successor.bus.reads, len(it.facts())

    return stage(scenario, records=100_000, leases={"heartbeat_s": 1000.0})


def test_a_take_over_reads_as_few_facts_of_an_old_job_as_of_a_young_one(stage):
    (young, _), (old, stored) = facts_read_by_a_successor(stage, 20), facts_read_by_a_successor(stage, 1000)
    assert stored > 100
    assert old <= young + 2 < 12


def test_a_new_job_hears_nothing_that_hosts_said_before_it_was_handed_in(stage):
    async def scenario(it):
        for index in range(300):
            exited = HostExited(
                host="h", job="j", member=Member("worker", index, 1), exit=Exit(reason="done")
            )
            await it.publish(exited, subjects.host_fact("h", "exited"))
        await it.begin()
        leader = it.master("m0")
        heard, decide = [], leader.decider.decide

        def observe(input, now):
            if isinstance(input, Observed):
                heard.append(input.fact.kind())
            return decide(input, now)

        leader.decider.decide = observe
        await it.worker()
        return heard

    assert stage(scenario) == ["job.submitted", "plan.proposed"]


def test_a_job_that_is_handed_in_behind_its_master_is_heard(stage):
    async def scenario(it):
        it.master("m0")
        await it.leads("m0")
        await it.begin()
        await it.worker()
        return len(it.records(Granted))

    stage(scenario)


# -- keep_log: every kept moment can be replayed ----------------------------------------------------------------------------------


class Remembers(Shell):
    """Keeps the state that stood behind each batch."""

    def _release(self, records):
        super()._release(records)
        if not self._pending:
            self.moments[self.journal.sequence] = self.decider.dump()


def replayed(it, sequence):
    """The state at a moment: from the snapshot that the batch's own header names."""
    stored = {each.sequence: each for each in it.stored()}
    first = decode(stored[sequence].body, LogBatch).snapshot
    decider, journal = (
        MasterDecider("j"),
        Journal(None, subjects.job_log("j"), "j", "reader", LogBatch, lambda: 0),
    )
    for at in sorted(stored):
        if first <= at <= sequence:
            snapshot, records = journal.take(stored[at])
            if snapshot is not None:
                decider.restore(snapshot)
            for record in records:
                decider.evolve(record)
    return decider.dump()


def kept_of_a_log(stage, keep_log, leases=60):
    async def scenario(it):
        await it.begin()
        leader = it.master("m0", Remembers, snapshot_every_batches=7, keep=keep_log, moments={})
        worker = await it.worker()
        await work_through(worker, leases, pause_s=3.0)
        await asyncio.sleep(ROUND_S)
        kept = it.stored()
        for stored in kept:
            if stored.sequence in leader.moments and not _in_a_snapshot(stored):
                assert replayed(it, stored.sequence) == leader.moments[stored.sequence]
        return kept, len(leader.moments)

    return stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})


def _in_a_snapshot(stored):
    return any(isinstance(record, SnapshotChunk) for record in decode(stored.body, LogBatch).records)


def test_what_a_snapshot_covers_is_kept_and_every_moment_of_it_can_be_replayed(stage):
    kept, written = kept_of_a_log(stage, RetentionSettings())
    assert len(kept) >= written
    assert decode(kept[0].body, LogBatch).after == ""


def test_what_is_older_than_keep_log_goes_down_to_a_snapshot(stage):
    kept, written = kept_of_a_log(stage, RetentionSettings(log_age_s=90.0))
    first = decode(kept[0].body, LogBatch).records[0]
    assert isinstance(first, SnapshotChunk)
    assert first.index == 0
    assert len(kept) < written
    assert kept[-1].time_ms - kept[0].time_ms >= 90_000


def test_what_is_more_than_keep_log_goes_too(stage):
    everything, _ = kept_of_a_log(stage, RetentionSettings())
    whole = sum(len(stored.body) for stored in everything)
    kept, _ = kept_of_a_log(stage, RetentionSettings(log_size_bytes=whole // 2))
    assert whole // 8 < sum(len(stored.body) for stored in kept) <= whole // 2


def test_nothing_goes_that_has_not_been_published_nor_before_the_newest_snapshot(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", snapshot_every_batches=7, keep=NOTHING_KEPT)
        worker = await it.worker()
        fill_facts(it)
        await work_through(worker, 20)
        await asyncio.sleep(2 * ROUND_S)
        held = len(it.stored()), it.stored()[0].sequence
        fill_facts(it, full=False)
        await asyncio.sleep(2 * ROUND_S)
        await work_through(worker, 1)
        return held, it.stored()[0].sequence, it.batches()[-1].snapshot

    held, first, snapshot = stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})
    assert held == (max(held[0], 20), 1)
    assert first == snapshot


def away_while_its_place_is_purged(stage, follow):
    """A follower of the log is cut off for longer than its word counts; meanwhile what it read last is purged."""

    async def scenario(it):
        await it.begin()
        it.master("m0", snapshot_every_batches=7, keep=NOTHING_KEPT)
        worker = await it.worker()
        seen = await follow(it)
        it.broker.partition("away")
        await work_through(worker, 40, pause_s=5.0)
        await asyncio.sleep(ROUND_S)
        it.broker.heal("away")
        await asyncio.sleep(5.0)
        return await seen()

    return stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})


def test_a_standby_whose_place_was_purged_reads_the_snapshot_and_says_so(stage):
    async def follow(it):
        it.master("away")
        await asyncio.sleep(1.0)

        async def seen():
            await it.until(lambda: "away" in it.ends)
            it.master("again")
            it.kill("m0")
            await it.leads("again")
            return str(it.ends["away"]), it.deciders["again"].state.ledger.next_token

        return seen

    said, token = away_while_its_place_is_purged(stage, follow)
    assert "was purged beyond batch" in said
    assert token > 40


def test_so_does_a_command_that_follows_a_job(stage, caplog):
    logging.getLogger("rover").setLevel(logging.WARNING)

    async def follow(it):
        progress = JobProgress(it.broker.connect("away"), "j")
        await progress.follow()

        async def seen():
            await it.until(lambda: progress.state.ledger is not None)
            await progress.stop()
            return progress.state.ledger.next_token

        return seen

    assert away_while_its_place_is_purged(stage, follow) > 40
    assert "reads the state from the newest snapshot" in caplog.text


# -- facts: by kind ----------------------------------------------------------------------------------------------------------------


REPORTED = subjects.job_facts("j", "job.reported")


def test_of_facts_that_are_said_again_and_again_the_newest_are_kept(stage, monkeypatch):
    monkeypatch.setitem(streams.FACTS_KEPT, "job.reported", Kept(newest=10))

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(worker, 60, pause_s=3.0)
        await asyncio.sleep(ROUND_S + 5.0)
        left, others = it.stored(FACTS, REPORTED), len(it.facts()) - len(it.facts(JobReported))
        worker.bus.__class__ = MemoryBus
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        await asyncio.sleep(1.0)
        told_once_in_order(it)
        return len(left), others

    left, others = stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})
    assert 10 <= left <= 12
    assert others > 3


def test_nothing_that_a_living_follower_has_not_read_is_taken(stage, monkeypatch):
    monkeypatch.setitem(streams.FACTS_KEPT, "job.reported", Kept(newest=2))

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(worker, 10, pause_s=3.0)
        read_to = it.stored(FACTS, REPORTED)[3].sequence
        place = positions.FollowerPosition(
            stream=FACTS, subjects=["rover.job.*.job.reported"], position=read_to
        )
        reader = it.broker.connect("reader")
        reporting = asyncio.create_task(
            positions.report_for_ever(reader, positions.of_all("reader"), lambda: place)
        )
        await work_through(worker, 60, pause_s=3.0)
        held = it.stored(FACTS, REPORTED)[0].sequence
        reporting.cancel()
        await asyncio.sleep(2 * ROUND_S)
        missed = await positions.purged_beyond(reader, ["rover.job.*.job.reported"], read_to)
        return read_to, held, it.stored(FACTS, REPORTED)[0].sequence, missed

    read_to, held, in_the_end, missed = stage(scenario, records=10_000, leases={"heartbeat_s": 1000.0})
    assert read_to < held
    assert held <= read_to + 20
    assert in_the_end > held
    assert missed == ["rover.job.j.job.reported"]


def test_a_service_that_missed_facts_says_so_and_goes_on(stage, monkeypatch, caplog):
    """Nobody leads for long, and what people asked meanwhile is purged: the state is the snapshot's and the newest that is kept."""
    logging.getLogger("rover").setLevel(logging.WARNING)

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(worker, 3)
        it.kill("m0")
        asked = [await it.publish(JobPauseRequested(job="j")) for _ in range(5)]
        subject = subjects.job_fact("j", "job.pause_requested")
        people = it.broker.connect("people")
        await positions.mark_purged(people, subject, asked[-1])
        await people.purge(FACTS, subject, before=asked[-1])
        it.master("m1")
        await it.leads("m1")
        await it.until(lambda: it.deciders["m1"].state.paused)
        await asyncio.sleep(1.0)

    stage(scenario)
    assert "facts were purged before they were read here" in caplog.text


def test_the_brain_lets_go_of_what_hosts_said_long_ago(stage, monkeypatch):
    monkeypatch.setitem(streams.FACTS_KEPT, "host.exited", Kept(age_s=600.0))
    exited = subjects.host_fact("h", "exited")

    async def say(it, count, pause_s):
        for index in range(count):
            fact = HostExited(host="h", job="j", member=Member("worker", index, 1), exit=Exit(reason="done"))
            await it.publish(fact, exited)
            await asyncio.sleep(pause_s)

    async def scenario(it):
        brain, _ = build_brain(
            it.broker.connect("b0"),
            process=ServiceProcess("b0", asyncio.get_running_loop().time, lambda: 0),
            timeline=5,
        )
        it.tasks["b0"] = asyncio.create_task(brain.run())
        await say(it, 40, 30.0)
        await asyncio.sleep(ROUND_S)
        return [stored.time_ms for stored in it.stored(FACTS, exited)]

    left = stage(scenario)
    assert 20 <= len(left) < 30
    assert left[-1] - left[0] <= 720_000
