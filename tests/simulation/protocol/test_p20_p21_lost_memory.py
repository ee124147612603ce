"""P20, P21: what a broker forgets. Leadership after a restart; snapshots; a log that is full, or has lost its tail."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from snapshots_in_logs import NOTHING_KEPT, TinyChunks, replay, work_through

from rover_bus.brain.service import build_brain
from rover_bus.events import subjects
from rover_bus.events.codec import decode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import (
    JobEnded,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobResumeRequested,
    JobStopRequested,
    MasterElected,
    MemberLeft,
)
from rover_bus.events.formats import FORMAT
from rover_bus.events.host_facts import HostExited, HostRegistered
from rover_bus.events.identity import Exit, HostCapacity, Member
from rover_bus.events.inputs import TookOver
from rover_bus.events.intake import Intake
from rover_bus.events.journal import Journal, LogDamaged, LogTooNew
from rover_bus.events.leadership import Deposed, Leadership
from rover_bus.events.log import Granted, LogBatch, Rewound, SnapshotChunk
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import Faults
from rover_bus.events.outbox import FactOut, Outbox
from rover_bus.events.retention import ROUND_S
from rover_bus.events.shell import Shell
from rover_bus.events.streams import FACTS, LOG, STREAMS
from rover_bus.master.decider import MasterDecider
from rover_bus.master.state import Unopened

# -- P20 -------------------------------------------------------------------------------------------------------------------


class Hurries(Leadership):
    def wait_one_ttl(self):
        """The bucket is empty: take it."""


def terms_after_a_restart(stage, leadership):
    """The broker restarts, its memory buckets are empty; leader and standby both come back, the standby often first."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.leads("m0")
        for number in (1, 2, 3):
            it.master(f"m{number}", leadership_type=leadership)
        await asyncio.sleep(1.0)
        it.broker.restart(0.3)
        await asyncio.sleep(3.0)
        return [fact.term for fact in it.facts(MasterElected)]

    return stage(scenario)


def test_after_a_broker_restart_standbys_leave_the_leader_one_ttl(stage):
    assert terms_after_a_restart(stage, Leadership) == [1]


def test_without_that_a_living_leader_is_replaced(stage):
    assert len(terms_after_a_restart(stage, Hurries)) > 1


def test_when_leader_and_broker_die_together_a_standby_leads_after_its_ttl(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.leads("m0")
        it.master("m1")
        await asyncio.sleep(1.0)
        it.kill("m0")
        it.broker.restart(0.3)
        await it.leads("m1", within_s=3.0)
        return [fact.holder for fact in it.facts(MasterElected)]

    assert stage(scenario) == ["m0", "m1"]


# -- P21: snapshots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", [Shell, TinyChunks])
def test_replay_from_a_snapshot_is_the_replay_of_everything(stage, shell):
    async def scenario(it):
        await it.begin()
        it.master("m0", shell, snapshot_every_batches=7)
        worker = await it.worker()
        await work_through(it, worker, 20)
        return [stored.body for stored in it.stored()], it.deciders["m0"].dump()

    bodies, live = stage(scenario)
    assert replay(bodies).dump() == live
    starts = [
        at
        for at, body in enumerate(bodies)
        if isinstance(first := decode(body, LogBatch).records[0], SnapshotChunk) and first.index == 0
    ]
    assert len(starts) >= 2
    for start in starts:
        assert replay(bodies[start:]).dump() == live


def test_a_snapshot_in_the_middle_of_traffic_shortens_the_log_and_loses_nothing(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", TinyChunks, snapshot_every_batches=7, keep=NOTHING_KEPT)
        worker = await it.worker()
        await work_through(it, worker, 20)
        await asyncio.sleep(ROUND_S)
        before = it.deciders["m0"].dump()
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        first = it.batches()[0].records[0]
        after = it.deciders["m1"]
        after.state.term, after.state.counts.masters_elected = 1, 1
        return before, after.dump(), first, len(it.records(Granted))

    before, after, first, granted = stage(scenario)
    assert before == after
    assert isinstance(first, SnapshotChunk)
    assert first.index == 0
    assert granted < 20


class PurgesAtOnce(TinyChunks):
    def _note_snapshot(self, piece, sequence):
        if isinstance(piece[0], SnapshotChunk) and piece[0].index == 0:
            self.journal.snapshot = sequence
            purge = self.bus.purge(LOG, self.journal.subject, before=sequence)
            self.purging = asyncio.create_task(purge)


def log_after_a_death_amid_a_snapshot(stage, shell):
    """The leader dies when the first chunk of its snapshot is stored and the last is not."""

    async def scenario(it):
        await it.begin()
        it.master("m0", shell, snapshot_every_batches=7)
        worker = await it.worker()
        working = asyncio.create_task(work_through(it, worker, 20))
        await it.until(lambda: len(it.records(SnapshotChunk)) == 3)
        it.kill("m0")
        working.cancel()
        chunks = it.records(SnapshotChunk)
        assert chunks[-1].index + 1 < chunks[-1].count
        it.master("m1")
        await it.until(lambda: it.shells["m1"].leading or "m1" in it.ends)
        return it.deciders["m1"].state, it.ends.get("m1")

    return stage(scenario, slow_broker)


def slow_broker():
    return MemoryBroker(1, Faults(delay_s=(0.01, 0.02)))


def test_older_batches_stay_until_the_snapshot_is_whole(stage):
    state, end = log_after_a_death_amid_a_snapshot(stage, TinyChunks)
    assert end is None
    assert state.ledger.next_token > 1


def test_purged_too_early_the_job_is_forgotten_and_nobody_leads_it(stage):
    state, end = log_after_a_death_amid_a_snapshot(stage, PurgesAtOnce)
    assert isinstance(state, Unopened)
    assert isinstance(end, LogDamaged)
    assert "begins with a snapshot of which a part is not there" in str(end)


# -- P21: a full log ------------------------------------------------------------------------------------------------------------


def small_log(discard):
    def make():
        streams = [
            spec.replace(discard=discard, max_bytes=6_000) if spec.name == LOG else spec for spec in STREAMS
        ]
        return MemoryBroker(1, streams=streams)

    return make


def test_a_full_log_holds_replies_and_loses_nothing(stage):
    """Commits stall; once there is room again the very same requests are answered."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        working = asyncio.create_task(work_through(it, worker, 40))
        await asyncio.sleep(60.0)
        assert not working.done()
        stalled = worker.requests
        assert it.shells["m0"].leading
        it.broker.streams[LOG].spec = it.broker.streams[LOG].spec.replace(max_bytes=0)
        await asyncio.wait_for(working, 60.0)
        firsts = [first for record in it.records(Granted) for first in record.firsts]
        return stalled, firsts, sum(count for record in it.records(Granted) for count in record.counts)

    stalled, firsts, batches = stage(scenario, small_log("new"), leases={"heartbeat_s": 1000.0})
    assert 1 < stalled < 40
    assert len(firsts) == len(set(firsts))
    assert batches == 100


def test_with_old_messages_discarded_the_job_is_gone(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(it, worker, 40)
        it.kill("m0")
        it.master("m1")
        await it.until(lambda: "m1" in it.ends or it.shells["m1"].leading)
        return it.deciders["m1"].state, it.ends.get("m1")

    state, end = stage(scenario, small_log("old"), leases={"heartbeat_s": 1000.0})
    assert isinstance(state, Unopened) or end is not None


# -- P21: a log that lost its tail -----------------------------------------------------------------------------------------------


class SeesNothing(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, TookOver):
            input = replace(input, log_lost=False)
        return super().decide(input, now)


def power_cut(it, keep):
    """The machine of the broker loses power; of the log only the first `keep` batches were on the disk."""
    it.broker.streams[LOG].truncate(it.stored()[keep - 1].sequence)
    it.broker.restart(0.3)


def after_a_power_cut(stage, policy, decider):
    """A worker leaves, which is stored, published and then forgotten by the broker's disk: the facts are newer than the log."""

    async def scenario(it):
        await it.begin()
        it.master("m0", decider=decider)
        await it.worker(0, role="ps")
        worker = await it.worker()
        await work_through(it, worker, 3)
        keep = len(it.stored())
        await worker.leave()
        await it.until(lambda: it.facts(MemberLeft))
        power_cut(it, keep)
        await asyncio.sleep(0.5)
        it.kill("m0")
        it.master("m1", decider=decider)
        await it.leads("m1")
        await asyncio.sleep(1.0)
        committed, _ = it.deciders["m1"].state.ledger.samples_done()
        return [(end.state, end.reason) for end in it.facts(JobEnded)], it.records(Rewound), committed

    return stage(scenario, servers=1, on_server_lost=policy, leases={"heartbeat_s": 1000.0})


def test_a_log_that_lost_its_tail_ends_the_job_by_name(stage):
    ends, _, _ = after_a_power_cut(stage, "fail", MasterDecider)
    assert ends == [("failed", "log_lost")]


def test_or_begins_it_again_in_a_new_generation(stage):
    ends, rewound, committed = after_a_power_cut(stage, "restart", MasterDecider)
    assert ends == []
    assert [record.generation for record in rewound] == [1]
    assert committed == 0


@pytest.mark.parametrize("policy", ["fail", "restart"])
def test_without_the_rule_a_master_goes_on_from_a_past_that_others_have_seen_pass(stage, policy):
    ends, rewound, committed = after_a_power_cut(stage, policy, SeesNothing)
    assert (ends, rewound) == ([], [])
    assert committed > 0


def test_a_living_leader_whose_log_lost_its_tail_stops_at_its_next_append(stage):
    """What it knows is void: it must not append behind a gap, nor wait for ever for a sequence that is gone."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await work_through(it, worker, 3)
        power_cut(it, len(it.stored()) - 1)
        asking = asyncio.create_task(worker.lease())
        await it.until(lambda: "m0" in it.ends)
        asking.cancel()
        return it.ends["m0"]

    end = stage(scenario)
    assert isinstance(end, Deposed)
    assert "lost its tail" in str(end)


def test_a_standby_that_followed_the_lost_tail_does_not_lead_from_it(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.master("m1")
        await work_through(it, worker, 3)
        power_cut(it, len(it.stored()) - 1)
        it.kill("m0")
        await it.until(lambda: "m1" in it.ends)
        return it.ends["m1"], it.shells["m1"].leading

    end, leads = stage(scenario)
    assert isinstance(end, Deposed)
    assert not leads


# -- P21: nobody goes on from what the broker has forgotten -----------------------------------------------------------------


class NeverLooksBack(Journal):
    async def still_there(self):
        """What was acknowledged once is there for ever."""
        return True


def idle_leader_after_a_power_cut(stage, journal):
    """The log loses its tail, and its leader has nothing to append."""

    async def scenario(it):
        await it.begin()
        it.master("m0", journal_type=journal)
        worker = await it.worker()
        await work_through(it, worker, 3)
        power_cut(it, len(it.stored()) - 1)
        await asyncio.sleep(2.0)
        return it.ends.get("m0"), it.shells["m0"].leading

    return stage(scenario, leases={"heartbeat_s": 1000.0})


def test_a_leader_learns_at_the_next_connection_that_its_log_lost_its_tail(stage):
    end, leads = idle_leader_after_a_power_cut(stage, Journal)
    assert isinstance(end, Deposed)
    assert not leads


def test_without_looking_back_it_leads_on_from_what_nobody_can_replay(stage):
    assert idle_leader_after_a_power_cut(stage, NeverLooksBack) == (None, True)


def test_facts_that_the_broker_forgot_are_told_again(stage):
    """The log is whole, the facts are not: who told them stops, and who comes next tells what is missing."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.worker()
        told = kinds_told(it)
        facts = it.stored(FACTS)
        it.broker.streams[FACTS].truncate(facts[-3].sequence)
        it.broker.restart(0.3)
        await it.until(lambda: "m0" in it.ends)
        left = kinds_told(it)
        it.master("m1")
        await it.leads("m1")
        await asyncio.sleep(1.0)
        return told, left, kinds_told(it)

    told, left, again = stage(scenario)
    assert len(left) < len(told)
    assert again[: len(told)] == told


class LooksLate(Shell):
    async def _look_back_for_ever(self):
        await asyncio.sleep(3.0)
        await super()._look_back_for_ever()


class Trusting(Outbox):
    async def _look_back(self):
        """What was stored is there for ever."""


def kinds_told(it):
    """The facts of this job's log, in the order in which they were told."""
    return [fact.kind() for fact in it.facts() if fact.position]


def told_again_after_a_loss(stage, outbox):
    """Facts are lost in a power cut while another one is on its way: when that is stored, the newest of ours is there again."""

    async def scenario(it):
        await it.begin()
        leader = it.master("m0", LooksLate)
        leader.outbox = outbox(leader.bus, "j", "m0", leader.outbox._facts_after)
        await it.worker()
        told = kinds_told(it)
        it.broker.streams[FACTS].truncate(it.stored(FACTS)[-3].sequence)
        it.broker.restart(0.3)
        leader.outbox.put([FactOut(JobResumed(job="j", position=(900, 0)), (900, 0), 1)])
        await asyncio.sleep(5.0)
        it.master("m1")
        if "m0" in it.ends:
            await it.leads("m1")
        await asyncio.sleep(1.0)
        return told, kinds_told(it)

    return stage(scenario)


def test_facts_that_were_lost_while_another_was_on_its_way_are_told_again(stage):
    told, again = told_again_after_a_loss(stage, Outbox)
    assert again[: len(told)] == told


def test_a_fact_that_leaves_unasked_hides_the_loss_of_those_before_it(stage):
    told, again = told_again_after_a_loss(stage, Trusting)
    assert again[: len(told)] != told


class Unshaken(Shell):
    @property
    def _shaken(self):
        return False

    @_shaken.setter
    def _shaken(self, value):
        """A broker that was away has forgotten nothing."""


def told_when_the_power_fails_during_a_take_over(stage, shell):
    """A successor has read which facts were told last; then they are lost, before it leads."""

    async def scenario(it):
        class Struck(shell):
            def _after(self, term, last):
                if self.holder == "m1":
                    it.broker.streams[FACTS].truncate(it.stored(FACTS)[-3].sequence)
                    it.broker.restart(0.3)
                return super()._after(term, last)

        await it.begin()
        it.master("m0")
        await it.worker()
        told = kinds_told(it)
        it.kill("m0")
        it.master("m1", Struck)
        await asyncio.sleep(5.0)
        if "m1" in it.ends:
            it.master("m2", Struck)
            await it.leads("m2")
        await asyncio.sleep(2.0)
        return told, kinds_told(it)

    return stage(scenario)


def test_who_takes_over_while_the_broker_is_away_reads_again_what_was_told(stage):
    told, again = told_when_the_power_fails_during_a_take_over(stage, Shell)
    assert again[: len(told)] == told


def test_else_it_tells_only_what_follows_the_facts_that_are_lost(stage):
    told, again = told_when_the_power_fails_during_a_take_over(stage, Unshaken)
    assert again[: len(told)] != told


def facts_decided_after_a_loss(stage, shell):
    """Facts of others are lost that the log says were consumed. Before a master is there again, others bear their numbers."""

    async def scenario(it):
        await it.begin()
        it.master("m0", shell)
        worker = await it.worker()
        for index in range(5):
            stranger = Member("worker", 50 + index, 1)
            exited = HostExited(host="h", job="j", member=stranger, exit=Exit(reason="killed"))
            await it.publish(exited, subjects.host_fact("h", "exited"))
        await worker.lease()
        it.kill("m0")
        await asyncio.sleep(1.0)
        it.broker.streams[FACTS].truncate(2)
        it.broker.restart(0.3)
        await asyncio.sleep(1.0)
        await it.publish(JobPauseRequested(job="j"))
        for index in range(9):
            stranger = Member("worker", 70 + index, 1)
            exited = HostExited(host="h", job="j", member=stranger, exit=Exit(reason="killed"))
            await it.publish(exited, subjects.host_fact("h", "exited"))
        it.master("m1", shell)
        await it.leads("m1")
        await asyncio.sleep(1.0)
        return it.deciders["m1"].state.paused

    return stage(scenario)


class CountsNumbers(Shell):
    async def _lead(self):
        self.journal.inputs_ms = 1 << 62
        await super()._lead()


def test_a_fact_that_bears_the_number_of_a_lost_one_is_decided(stage):
    assert facts_decided_after_a_loss(stage, Shell)


def test_by_its_number_alone_it_would_be_taken_for_known(stage):
    assert not facts_decided_after_a_loss(stage, CountsNumbers)


def leader_that_heard_what_is_lost(stage, shell):
    """Facts of others are lost; the log and the leader's own facts, all older, are whole."""

    async def scenario(it):
        await it.begin()
        it.master("m0", shell)
        worker = await it.worker()
        await asyncio.sleep(1.0)
        kept = it.broker.streams[FACTS].last
        for index in range(5):
            stranger = Member("worker", 50 + index, 1)
            exited = HostExited(host="h", job="j", member=stranger, exit=Exit(reason="killed"))
            await it.publish(exited, subjects.host_fact("h", "exited"))
        await worker.lease()
        it.broker.streams[FACTS].truncate(kept)
        it.broker.restart(0.3)
        await asyncio.sleep(3.0)
        await it.publish(JobPauseRequested(job="j"))
        await asyncio.sleep(2.0)
        if "m0" in it.ends:
            it.master("m1", shell)
            await asyncio.sleep(5.0)
        return it.records(JobPaused)

    return stage(scenario, leases={"heartbeat_s": 1000.0})


class TrustsItsNumbers(Intake):
    async def still_stored(self):
        return True


class NeverListensBack(Shell):
    intake_type = TrustsItsNumbers


def test_a_leader_hears_what_bears_the_number_of_a_fact_that_it_had_heard(stage):
    assert leader_that_heard_what_is_lost(stage, Shell)


def test_else_it_is_deaf_until_the_numbers_have_passed(stage):
    assert not leader_that_heard_what_is_lost(stage, NeverListensBack)


def test_facts_whose_numbers_are_used_again_are_not_taken_for_known_ones(stage):
    """P17 drops what was consumed by its number; after a loss other facts bear these numbers."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        for index in range(30):
            stranger = Member("worker", 50 + index, 1)
            exited = HostExited(host="h", job="j", member=stranger, exit=Exit(reason="killed"))
            await it.publish(exited, subjects.host_fact("h", "exited"))
        await it.worker()
        it.kill("m0")
        it.broker.streams[FACTS].truncate(0)
        it.broker.restart(0.3)
        it.master("m1")
        await it.leads("m1")
        await it.publish(JobStopRequested(job="j", mode="cancel"))
        await it.until(lambda: it.facts(JobEnded))
        return it.facts(JobEnded)[0].state

    assert stage(scenario) == "cancelled"


# -- P21: numbers that are used again ------------------------------------------------------------------------------------------


class ForgetfulOutbox(Outbox):
    """Gives facts the names that they had before terms stood in them."""

    async def _publish(self, item):
        await super()._publish(replace(item, term=0))


def told_after_a_lost_tail(stage, **parts):
    """The log loses what its facts still tell; where it was, another master's records stand now. Which terms are told?"""

    async def scenario(it):
        await it.begin()
        first = it.master("m0")
        for name, part in parts.items():
            setattr(first, name, part(first.bus, "j", "m0", first.outbox._facts_after))
        worker = await it.worker()
        await work_through(it, worker, 3)
        keep = len(it.stored())
        await worker.leave()
        await it.until(lambda: it.facts(MemberLeft))
        power_cut(it, keep)
        it.kill("m0")
        second = it.master("m1")
        for name, part in parts.items():
            setattr(second, name, part(second.bus, "j", "m1", second.outbox._facts_after))
        await it.leads("m1")
        await asyncio.sleep(2.0)
        lost = it.facts(MemberLeft)[0].position
        written = [stored.sequence for stored in it.stored()]
        assert lost[0] in written, "another batch stands where the lost one stood"
        return [fact.holder for fact in it.facts(MasterElected)], it.shells["m1"].journal.term

    return stage(scenario, on_server_lost="restart", leases={"heartbeat_s": 1000.0})


def test_facts_whose_places_in_the_log_were_used_before_are_told(stage):
    assert told_after_a_lost_tail(stage)[0] == ["m0", "m1"]


def test_named_by_their_place_alone_they_would_be_dropped_as_repeats(stage):
    assert told_after_a_lost_tail(stage, outbox=ForgetfulOutbox)[0] == ["m0"]


def test_a_term_that_facts_have_told_is_never_used_again(stage):
    """The log lost the record of a term, its fact did not: platforms would call the next sets of that term stale (P18)."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.worker()
        it.kill("m0")
        keep = len(it.stored())
        it.master("m1")
        await it.leads("m1")
        await it.until(lambda: len(it.facts(MasterElected)) == 2)
        power_cut(it, keep)
        it.kill("m1")
        it.master("m2")
        await it.leads("m2")
        await asyncio.sleep(1.0)
        return [(fact.holder, fact.term) for fact in it.facts(MasterElected)]

    assert stage(scenario, on_server_lost="restart", leases={"heartbeat_s": 1000.0}) == [
        ("m0", 1),
        ("m1", 2),
        ("m2", 3),
    ]


class Unchained(Journal):
    """Takes whatever comes under the next number."""

    def take(self, stored):
        self._last = None
        return super().take(stored)


def standby_that_was_away(stage, journal):
    """While a standby is cut off, the log loses a tail that it followed, and grows past it by another master's hand."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.master("m1", journal_type=journal)
        await work_through(it, worker, 3)
        await asyncio.sleep(1.0)
        it.broker.partition("m1")
        power_cut(it, len(it.stored()) - 2)
        it.kill("m0")
        it.master("m2")
        await it.leads("m2")
        for ask in (JobPauseRequested, JobResumeRequested, JobPauseRequested):
            await it.publish(ask(job="j"))
            await asyncio.sleep(0.5)
        it.broker.heal("m1")
        await asyncio.sleep(3.0)
        it.kill("m2")
        await it.until(lambda: "m1" in it.ends or it.shells["m1"].leading)
        replayed = MasterDecider("j")
        for batch in it.batches():
            if batch.holder != "m1":
                for record in batch.records:
                    replayed.evolve(record)
        known = it.deciders["m1"].state
        return it.ends.get("m1"), known.ledger.samples_done() == replayed.state.ledger.samples_done()

    return stage(scenario, leases={"heartbeat_s": 1000.0})


def test_a_standby_notices_that_the_log_grew_behind_another_batch_than_it_knows(stage):
    end, _ = standby_that_was_away(stage, Journal)
    assert isinstance(end, Deposed)
    assert "does not follow the batch that was read here last" in str(end)


def test_without_the_chain_it_leads_from_a_past_that_never_was(stage):
    assert standby_that_was_away(stage, Unchained) == (None, False)


# -- a log with a hole: no power cut makes one -------------------------------------------------------------------------------


def remove(broker, subject, at):
    """`nats stream rmm`: one batch of a log is gone, the others stay. Returns the sequences on both sides of the hole."""
    stream = broker.streams[LOG]
    sequences = [stored.sequence for stored in stream.select([subject])]
    del stream.messages[sequences[at]]
    stream.subjects[subject].remove(sequences[at])
    return sequences[at - 1] if at else 0, sequences[at + 1]


def newest_snapshot(it):
    """Where in the log the newest complete snapshot begins, as its last batch names it."""
    return [stored.sequence for stored in it.stored()].index(it.batches()[-1].snapshot)


def ends_behind_a_hole(stage, at, shell, snapshot_every_batches):
    """One batch is removed while a master leads. Returns how two later ones ended, and the sequences on both sides of the hole."""

    async def scenario(it):
        await it.begin()
        it.master("m0", shell, snapshot_every_batches=snapshot_every_batches)
        worker = await it.worker()
        await work_through(it, worker, 12)
        first = newest_snapshot(it) if shell is TinyChunks else 0
        before, behind = remove(it.broker, subjects.job_log("j"), first + at)
        await worker.lease()
        it.master("m1")
        await it.until(lambda: "m1" in it.ends)
        assert it.shells["m0"].leading, "who followed the log from its beginning knows what was there"
        it.kill("m0")
        it.master("m2")
        await it.until(lambda: "m2" in it.ends)
        return [it.ends[name] for name in ("m1", "m2")], before, behind

    return stage(scenario)


@pytest.mark.parametrize("at", [0, 4])
def test_nobody_leads_from_a_log_with_a_hole_and_says_so_in_one_line(stage, at):
    ends, before, behind = ends_behind_a_hole(stage, at, Shell, 2000)
    for end in ends:
        assert isinstance(end, LogDamaged)
        line = str(end)
        assert "\n" not in line
        assert "rover submit --name" in line
        assert (f"between batches {before} and {behind}" if at else f"begins with batch {behind}") in line


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nor_from_one_whose_snapshot_has_a_hole(stage, at):
    ends, _, _ = ends_behind_a_hole(stage, at, TinyChunks, 9)
    assert all(isinstance(end, LogDamaged) for end in ends)


def test_the_brain_says_it_of_its_own_log_and_learns_anew_from_an_empty_one(stage):
    async def scenario(it):
        def lead(name):
            shell, decider = build_brain(
                it.broker.connect(name),
                process=ServiceProcess(name, asyncio.get_running_loop().time, lambda: 0),
                timeline=7,
            )
            it.tasks[name] = asyncio.create_task(shell.run())
            return decider, it.tasks[name]

        await it.begin()
        capacity = HostCapacity(cores=2.0, memory_bytes=1 << 30)
        registered = HostRegistered(host="h", daemon="d", capacity=capacity)
        brain, _ = lead("b0")
        await it.until(lambda: brain.state.jobs)
        await it.publish(registered, subjects.host_fact("h", "registered"))
        await it.until(lambda: len(it.stored(LOG, subjects.BRAIN_LOG)) >= 3)
        it.kill("b0")
        remove(it.broker, subjects.BRAIN_LOG, 1)
        _, second = lead("b1")
        await it.until(second.done)
        await it.broker.connect("people").purge(LOG, subjects.BRAIN_LOG)
        brain, _ = lead("b2")
        await it.until(lambda: brain.state.jobs and brain.state.hosts)
        return second.exception()

    end = stage(scenario, plan=False)
    assert isinstance(end, LogDamaged)
    assert f"nats stream purge {LOG} --subject rover.brain.log" in str(end)


def test_a_log_of_a_later_release_is_led_from_by_none_of_this_one(stage):
    """A record that this release does not know, in a format that it does not read: no damage, and the line names the way back."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.until(lambda: it.shells["m0"].leading)
        it.master("standby")
        last = it.stored()[-1]
        later = msgspec.msgpack.decode(last.body)
        later |= {
            "format": FORMAT + 1,
            "number": later["number"] + 1,
            "records": [{"type": "of.tomorrow.v1"}],
        }
        later_one = it.broker.connect("later")
        await later_one.append(LOG, subjects.job_log("j"), msgspec.msgpack.encode(later))
        await it.until(lambda: "standby" in it.ends)
        it.kill("m0")
        it.master("m1")
        await it.until(lambda: "m1" in it.ends)
        return it.ends["standby"], it.ends["m1"]

    for end in stage(scenario):
        assert isinstance(end, LogTooNew)
        assert end.exit_code == 9
        assert f"is written in format {FORMAT + 1}" in str(end)
