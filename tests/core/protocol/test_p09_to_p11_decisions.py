"""Cuts as decisions: how often, when they are complete, what they keep alive, what ends them. See also golden/s23*, golden/p11*."""

from __future__ import annotations

import math

import pytest

from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointOpened,
    CheckpointSearchOrdered,
    CheckpointStaged,
    CheckpointSuperseded,
    HostPartDigested,
    HostPartFailed,
    HostPartMirrored,
    HostStorageSearched,
    PartStaged,
    ServerRestored,
)
from rover_bus.events.checkpoints import PartReport, RestoreReport
from rover_bus.events.data_facts import EpochOpened
from rover_bus.events.facts import JobEnded, JobStopRequested
from rover_bus.events.host_facts import HostLeft
from rover_bus.events.job import CheckpointSpec, Dataset
from rover_bus.events.log import Committed, Granted, PartAsked, Rewound
from rover_bus.events.requests import HeartbeatRequest
from rover_bus.master.cut import Cut, position, rewound
from rover_bus.master.cutting import DIGEST_PATIENCE_S, PARITY_PATIENCE_S
from rover_bus.master.ledger import Ledger
from rover_bus.master.pacing import interval_s, mean_time_between_losses_s
from rover_bus.master.phases import name_of

HALF = [(0, 2048)], [(2048, 4096)]


@pytest.fixture
def it(desk):
    return desk(
        servers=2,
        records=100,
        epochs=2,
        leases={"max_batches": 1},
        checkpoint=CheckpointSpec(every_s=1.0),
        on_server_lost="restore",
    )


def commit(it, batches, servers=(1, 1)):
    """Worker 0 trains some batches."""
    for _ in range(batches):
        it.requests = getattr(it, "requests", 0) + 1
        reply = it.lease(0, it.requests, servers=servers)
        it.beat(0, it.requests, [(reply.tokens[0], reply.firsts[0] + reply.counts[0])], servers=servers)


def rest(it, seconds):
    """Time passes, and everybody is heard."""
    for _ in range(round(seconds / 0.5)):
        it.tick(0.5)
        it.beat(0, getattr(it, "requests", 0))
        for index in range(2):
            it.beat(index, role="ps")


def stage(it, index, slots, cut, round=0):
    known = it.state.cuts.known.get(cut)
    identity = known.identity if known is not None else 0
    report = PartReport(cut=cut, identity=identity, round=round, slots=slots)
    return it.ask(HeartbeatRequest(**it.who(index, "ps"), staged=report))


def take(it, cut, digested=True):
    for index in range(2):
        stage(it, index, HALF[index], cut)
    for part in ("ps-0", "ps-1") if digested else ():
        digest(it, cut, part)


def digest(it, cut, part):
    """The daemon of the host that it was staged on makes the digests of a part."""
    generation = it.state.cuts.known[cut].generation
    named = {
        "host": "h",
        "job": "j",
        "uid": it.state.job.uid,
        "cut": cut,
        "generation": generation,
        "part": part,
    }
    it.notice(HostPartDigested(**named))


# -- how often -------------------------------------------------------------------------------------------------------------


def test_the_interval_is_youngs_where_a_cut_is_cheap():
    assert interval_s(0.01, 3600.0, CheckpointSpec(overhead=0.5)) == pytest.approx(
        math.sqrt(2 * 0.01 * 3600), rel=0.01
    )


def test_dalys_correction_counts_where_it_is_dear():
    cost, between = 30.0, 300.0
    assert interval_s(cost, between, CheckpointSpec(overhead=0.5)) == pytest.approx(
        math.sqrt(2 * cost * between) * (1 + math.sqrt(0.05) / 3 + 0.05 / 9) - cost
    )


def test_standing_still_never_takes_more_than_the_bound():
    assert interval_s(2.0, 10.0, CheckpointSpec(overhead=0.02)) == 100.0


@pytest.mark.parametrize(("cost", "between", "wanted"), [(0.0, 3600.0, 3.0), (10.0, 1e9, 50.0)])
def test_it_stays_within_limits(cost, between, wanted):
    limits = CheckpointSpec(overhead=0.5, least_interval_s=3.0, most_interval_s=50.0)
    assert interval_s(cost, between, limits) == wanted


def test_losses_shorten_it_and_calm_training_lengthens_it():
    assert mean_time_between_losses_s(0, 0) > mean_time_between_losses_s(0, 3)
    assert mean_time_between_losses_s(1e6, 3) > mean_time_between_losses_s(0, 3)


def test_nothing_committed_nothing_cut(it):
    rest(it, 2)
    assert it.records(CheckpointOpened) == []
    commit(it, 1)
    rest(it, 0.5)
    assert len(it.records(CheckpointOpened)) == 1


def test_servers_are_told_to_fold_only_what_the_oldest_cut_holds_as_settled_too(it):
    """P3, P11: a batch that died since may be leased again after a rewind, and a survivor must not hold it then."""
    rest(it, 0.5)
    commit(it, 3)
    assert it.beat(0, role="ps").settled == (0, 3)
    rest(it, 1)
    take(it, 1)
    assert len(it.records(CheckpointOpened)) == 1
    commit(it, 4)
    assert it.beat(0, role="ps").settled == (0, 3)
    assert it.beat(0, it.requests).settled == (0, 0)  # a worker has no use for it


def test_with_parity_the_next_cut_waits_until_this_one_is_redundant_but_not_for_ever(desk):
    """P13: a part is rebuilt from the others of the same cut, so none may be overwritten before the next has parity, too."""
    it = desk(
        servers=2, records=1000, leases={"max_batches": 1}, checkpoint=CheckpointSpec(every_s=1.0, parity=1)
    )

    def cut(number, redundant):
        commit(it, 1)
        rest(it, 1)
        assert it.records(CheckpointOpened)[-1].cut == number
        take(it, number)
        for part in ("ps-0", "ps-1") if redundant else ():
            it.notice(
                HostPartMirrored(
                    host="p",
                    job="j",
                    uid=it.state.job.uid,
                    part=part,
                    cut=number,
                    generation=0,
                    of="h",
                    parity=True,
                )
            )

    cut(1, redundant=False)
    cut(2, redundant=True)  # nothing was redundant before: nothing to wait for
    cut(3, redundant=False)
    commit(it, 1)
    rest(it, PARITY_PATIENCE_S - 2.5)
    assert it.records(CheckpointOpened)[-1].cut == 3
    rest(it, 3)
    assert it.records(CheckpointOpened)[-1].cut == 4


# -- P9, P10 -----------------------------------------------------------------------------------------------------------------


def test_a_cut_is_complete_when_its_parts_cover_every_slot(it):
    commit(it, 1)
    rest(it, 1)
    stage(it, 0, [(0, 2048)], 1)
    assert it.records(CheckpointStaged) == []
    stage(it, 1, [(2048, 4096)], 1)
    assert len(it.records(CheckpointStaged)) == 1


def test_p10_the_owner_of_a_missing_slot_is_asked_once_more(it):
    """A slot went from ps-1, which had not staged, to ps-0, which had: neither part has it."""
    commit(it, 1)
    rest(it, 1)
    stage(it, 0, [(0, 2040)], 1)
    reply = stage(it, 1, [(2048, 4096)], 1)
    assert it.records(CheckpointStaged) == []
    assert [(record.index, record.round) for record in it.records(PartAsked)] == [(0, 1)]
    assert reply.cut.round == -1
    assert it.beat(0, role="ps").cut.round == 1
    stage(it, 0, [(0, 2048)], 1, round=1)
    assert len(it.records(CheckpointStaged)) == 1


def test_a_part_that_cannot_be_staged_ends_its_cut_by_name_unless_it_is_tried_again(it):
    commit(it, 1)
    rest(it, 1)
    for again in (True, False):
        identity = it.state.cuts.known[1].identity
        report = PartReport(cut=1, identity=identity, problem="a slot needs 9 MiB", again=again)
        it.ask(HeartbeatRequest(**it.who(1, "ps"), staged=report))
        assert bool(it.records(CheckpointFailed)) != again
    assert it.records(CheckpointFailed)[0].reason == "ps-1.1: a slot needs 9 MiB"


def test_a_part_of_another_cut_or_round_changes_nothing(it):
    commit(it, 1)
    rest(it, 1)
    stage(it, 0, [(0, 4096)], 7)
    stage(it, 0, [(0, 4096)], 1, round=3)
    assert it.state.cuts.known[1].parts == {}


# -- P11 ---------------------------------------------------------------------------------------------------------------------


def test_p11_applied_sets_are_kept_for_the_epoch_of_the_oldest_usable_cut(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 10)
    assert it.ledger.epoch == 1
    assert (
        it.beat(0, role="ps").closed_before == 0
    )  # a batch given up since the cut would else count as applied
    rest(it, 2)
    take(it, 2)
    assert it.state.cuts.known[1].ordered  # it is still being stored
    it.notice(HostLeft(host="h"))
    rest(it, 2)
    commit(it, 1)
    rest(it, 2)
    take(it, 3)
    assert it.beat(0, role="ps").closed_before == 1


def test_a_cut_newer_than_the_one_gone_back_to_is_over(it):
    """Its ledger calls batches committed that the restored server has not seen: with it they would be lost."""
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 2)
    rest(it, 2)
    stage(it, 0, HALF[0], 2)
    before = it.state.cuts.known[2].samples
    it.exit(it.planned("ps", 1))
    assert [(record.cut, "went back" in record.reason) for record in it.records(CheckpointFailed)] == [
        (2, True)
    ]
    assert it.ledger.samples_done()[0] < before
    assert list(it.state.cuts.known) == [1]


def test_an_incomplete_cut_serves_when_it_has_the_slots_that_are_lost(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 2)
    rest(it, 2)
    stage(it, 1, HALF[1], 2)
    it.exit(it.planned("ps", 1))
    assert it.records(Rewound)[-1].cut == 2


def test_p01_batches_of_a_stream_keep_their_records_over_a_rewind():
    """Servers may hold batches that were granted since the cut: granted again with other records, those would be lost."""
    ledger = Ledger.new(Dataset(records=0, batch_size=10, partitions=["p"]))
    ledger.begin_epoch(EpochOpened(epoch=0))
    ledger.admit(0, 1)

    def train(first, count, offset, commits=True):
        span = [("p", first, first + count, offset, offset + 10 * count - 3)]
        token = ledger.next_token
        ledger.grant(
            Granted(
                worker=0,
                incarnation=1,
                request=1,
                first_token=token,
                firsts=[first],
                counts=[count],
                spans=span,
            )
        )
        if commits:
            ledger.commit(
                Committed(worker=0, incarnation=1, request=1, tokens=[token], uptos=[first + count])
            )

    train(0, 2, 0)
    cut = Cut(1, 0, 0, ledger.samples_done()[0], position(ledger), settled=ledger.streams.settled_batches)
    ledger.streams.keep_from(cut.settled)
    train(2, 3, 17)
    train(5, 1, 44, commits=False)
    ledger.streams.seal("p", 90)
    back = rewound(cut, ledger, 1)
    assert back.samples_done() == (17, 0)
    assert list(back.returned) == [(2, 6)]
    assert back.streams.slices(2, 6) == [("p", 2, 5, 17, 44), ("p", 5, 6, 44, 51)]
    assert (back.streams.partitions["p"].watermark, back.streams.partitions["p"].end) == (17, 90)


def test_without_a_cut_the_job_begins_again_from_nothing(it):
    commit(it, 2)
    it.exit(it.planned("ps", 0))
    assert not it.records(Rewound), "first storage is looked at"
    asked = it.records(CheckpointSearchOrdered)[-1]
    it.notice(HostStorageSearched(host=asked.host, job="j", uid=it.state.job.uid, search=asked.search))
    assert it.records(Rewound)[-1].cut == 0
    assert it.records(Rewound)[-1].samples_again == 20


def test_two_servers_lost_one_after_the_other_go_back_together(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    it.exit(it.planned("ps", 0))
    it.exit(it.planned("ps", 1))
    last = it.records(Rewound)[-1]
    assert (last.cut, last.servers, last.generation) == (1, [0, 1], 2)
    assert {str(it.planned("ps", index)) for index in range(2)} == {"ps-0.2", "ps-1.2"}
    for index in range(2):
        assert it.join("ps", index).restore.cut == 1
    assert name_of(it.state.phase) == "training"


# -- P12: without digests it is no source --------------------------------------------------------------------------------------


def completes(it):
    """What the servers are told to be complete: what is older may be overwritten."""
    return it.beat(0, role="ps").cut.complete


def test_p12_a_cut_is_complete_when_each_of_its_parts_has_digests(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1, digested=False)
    assert len(it.records(CheckpointStaged)) == 1
    assert completes(it) == 0
    digest(it, 1, "ps-0")
    assert completes(it) == 0
    digest(it, 1, "ps-1")
    assert completes(it) == 1


def test_p12_the_cut_before_is_kept_until_the_newest_one_has_digests_and_the_next_one_waits(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 1)
    rest(it, 1)
    take(it, 2, digested=False)
    assert completes(it) == 1
    assert sorted(it.state.cuts.known) == [1, 2]
    commit(it, 1)
    rest(it, DIGEST_PATIENCE_S - 2.0)
    assert it.state.cuts.last == 2, "its parts would be staged in the place of those that have no digests yet"
    for part in ("ps-0", "ps-1"):
        digest(it, 2, part)
    rest(it, 1)
    assert (it.state.cuts.last, completes(it)) == (3, 2)


def test_p12_without_a_daemon_cuts_go_on_in_the_place_of_the_one_that_has_no_digests(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 1)
    rest(it, 1)
    take(it, 2, digested=False)
    commit(it, 1)
    rest(it, DIGEST_PATIENCE_S + 1.0)
    assert (it.state.cuts.last, completes(it)) == (3, 1)


def test_p12_a_part_that_is_staged_once_more_needs_digests_of_its_own(it):
    commit(it, 1)
    rest(it, 1)
    stage(it, 0, [(0, 2040)], 1)
    digest(it, 1, "ps-0")
    stage(it, 1, [(2048, 4096)], 1)
    digest(it, 1, "ps-1")
    stage(it, 0, [(0, 2048)], 1, round=1)
    assert len(it.records(CheckpointStaged)) == 1
    assert completes(it) == 0
    digest(it, 1, "ps-0")
    assert completes(it) == 1


def test_p12_damage_that_is_found_while_a_part_is_digested_ends_its_cut_and_the_one_before_is_gone_back_to(
    it,
):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 1)
    rest(it, 1)
    take(it, 2, digested=False)
    named = {"host": "h", "job": "j", "uid": it.state.job.uid, "cut": 2, "generation": 0, "part": "ps-0"}
    it.notice(HostPartFailed(**named, step="digest", reason="bytes 0 to 9 of 0.0 are not what was written"))
    assert "bytes 0 to 9 of 0.0" in it.records(CheckpointFailed)[-1].reason
    it.exit(it.planned("ps", 0))
    assert it.records(Rewound)[-1].cut == 1


def test_p12_a_server_that_finds_no_source_of_the_newest_cut_goes_back_to_the_one_before_and_the_cost_is_told(
    it,
):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 2)
    rest(it, 1)
    take(it, 2, digested=False)
    commit(it, 3)
    it.exit(it.planned("ps", 0))
    assert [(each.cut, each.samples_again) for each in it.records(Rewound)] == [(2, 30)]
    it.join("ps", 0)
    refused = RestoreReport(cut=2, problem="ps-0.1.slot: cut 2 has no digests yet")
    it.ask(HeartbeatRequest(**it.who(0, "ps"), restored=refused))
    assert [(each.cut, each.samples_again) for each in it.records(Rewound)] == [(2, 30), (1, 20)]
    it.join("ps", 0)
    done = RestoreReport(cut=1, source="memory", rows=7, refused=["memory: bytes 0 to 9 of 0.0"])
    it.ask(HeartbeatRequest(**it.who(0, "ps"), restored=done))
    [record] = it.records(ServerRestored)
    assert (record.cut, record.samples_again, record.refused) == (1, 50, ["memory: bytes 0 to 9 of 0.0"])


def test_p21_a_part_of_a_cut_that_the_log_has_lost_is_not_taken_for_the_one_of_the_same_number(it):
    """The power fails: cut 1 is forgotten, more is trained, cut 1 opens anew. What servers staged lacks what was trained since."""
    commit(it, 1)
    rest(it, 1)
    forgotten = it.state.cuts.known[1].identity
    it.state.cuts.known.clear()
    it.state.cuts.last = 0
    commit(it, 2)
    rest(it, 1)
    assert it.state.cuts.known[1].identity != forgotten
    report = PartReport(cut=1, identity=forgotten, slots=HALF[0])
    reply = it.ask(HeartbeatRequest(**it.who(0, "ps"), staged=report))
    assert it.records(PartStaged) == []
    assert (reply.cut.cut, reply.cut.identity) == (1, it.state.cuts.known[1].identity)


# -- ends --------------------------------------------------------------------------------------------------------------------


def test_s23_a_cut_that_could_not_be_stored_ends_by_name_and_still_serves_from_memory(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    it.notice(HostLeft(host="h"))
    assert [record.cut for record in it.records(CheckpointFailed)] == [1]
    it.exit(it.planned("ps", 0))
    assert it.records(Rewound)[-1].cut == 1


def test_s23_at_the_end_no_cut_is_left_without_a_word(it):
    commit(it, 1)
    rest(it, 1)
    take(it, 1)
    commit(it, 2)
    rest(it, 2)
    it.notice(JobStopRequested(job="j", mode="cancel"))
    assert len(it.records(JobEnded)) == 1
    assert [record.cut for record in it.records(CheckpointSuperseded)] == [1, 2]


def test_servers_that_do_not_stage_in_time_are_named(it):
    commit(it, 1)
    rest(it, 1)
    stage(it, 0, HALF[0], 1)
    rest(it, 130)
    assert "ps-1 did not stage in time" in it.records(CheckpointFailed)[0].reason
