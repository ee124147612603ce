"""P6, P7: progress is a commit, an interval may have two holders, a retry repeats the grant and nothing else."""

from __future__ import annotations

import msgspec

from rover_bus.events.deciding import Hold
from rover_bus.events.inputs import Requested
from rover_bus.events.log import Granted, Returned
from rover_bus.events.requests import (
    ALREADY,
    OK,
    HeartbeatRequest,
    LeaseReply,
    LeaseRequest,
    Progress,
    RefusedReply,
)
from rover_bus.master.decider import MasterDecider
from rover_bus.master.ledger import Ledger

# -- P6 ------------------------------------------------------------------------------------------------------------------


class WholeLeasesOnly(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, Requested) and isinstance(input.request, HeartbeatRequest):
            input = Requested(msgspec.structs.replace(input.request, progress=Progress()))
        return super().decide(input, now)


def released_after_a_death(desk, decider_type):
    """A worker reports two of its four batches and dies; where does the lease of its successor begin?"""
    it = desk(decider_type)
    token = it.lease(0, 1).tokens[0]
    it.beat(0, 1, progress=[(token, 2)])
    it.exit(it.planned("worker", 0))
    it.join("worker", 0)
    return it.lease(0, 1).firsts


def test_the_remainder_of_a_dead_workers_lease_returns_not_the_whole(desk):
    assert released_after_a_death(desk, MasterDecider) == [2]


def test_without_partial_commits_all_of_it_is_trained_again(desk):
    assert released_after_a_death(desk, WholeLeasesOnly) == [0]


class ForgetsTwins(Ledger):
    def _pair(self, record, token):
        """Nobody knows that this interval is leased twice."""


def leased_twice(desk, ledger_type):
    """Worker 0 holds the tail and does not move; worker 1 is given the same batches."""
    it = desk(workers=2, records=40)
    it.ledger.__class__ = ledger_type
    it.first = it.lease(0, 1, wanted=9, rate=1.0).tokens
    it.lease(1, 1, rate=1.0)
    it.now += 60.0
    it.beat(0, 1, held=it.first)
    assert isinstance(it.lease(1, 2, rate=1.0), Hold)
    it.tick(0.25)
    [(_, it.second)] = it.released
    assert it.records(Granted)[-1].peer in it.first
    return it


def test_an_interval_returns_only_when_its_last_holder_is_gone(desk):
    it = leased_twice(desk, Ledger)
    it.exit(it.planned("worker", 1))
    assert it.ledger.unassigned == 0


def test_without_twins_it_is_free_while_somebody_works_on_it(desk):
    it = leased_twice(desk, ForgetsTwins)
    it.exit(it.planned("worker", 1))
    assert it.ledger.unassigned > 0


def finished_by_the_second(desk, ledger_type):
    it = leased_twice(desk, ledger_type)
    token, end = it.second.tokens[0], it.second.firsts[0] + it.second.counts[0]
    it.lease(1, 3, progress=[(token, end)], wanted=0)
    return it.records(Granted)[-1].peer, it.beat(0, 1, held=it.first).cancelled


def test_a_commit_cancels_the_other_holder(desk):
    peer, cancelled = finished_by_the_second(desk, Ledger)
    assert cancelled == [peer]


def test_without_twins_the_other_holder_goes_on_in_vain(desk):
    assert finished_by_the_second(desk, ForgetsTwins)[1] == []


# -- P7 ------------------------------------------------------------------------------------------------------------------


class NeverTakesBack(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, Requested) and isinstance(input.request, LeaseRequest):
            held = self.state.ledger.holders[input.request.member.index].leases
            input = Requested(msgspec.structs.replace(input.request, held=[*held]))
        return super().decide(input, now)


def grant_whose_reply_was_lost(desk, decider_type):
    """The worker never saw the answer to request 1, and asks again under a new number without listing its token."""
    it = desk(decider_type, records=40)
    lost = it.lease(0, 1)
    return it, lost, it.lease(0, 2)


def test_a_token_that_is_not_listed_returns_and_is_leased_again(desk):
    it, lost, reply = grant_whose_reply_was_lost(desk, MasterDecider)
    assert it.records(Returned)[-1].tokens == lost.tokens
    assert reply.firsts == lost.firsts


def test_without_the_list_the_batches_wait_for_ever(desk):
    it, lost, _ = grant_whose_reply_was_lost(desk, NeverTakesBack)
    held = it.ledger.holders[0].leases
    assert lost.tokens[0] in held
    assert not it.records(Returned)


class DropsRetries(MasterDecider):
    def decide(self, input, now):
        request = getattr(input, "request", None)
        if isinstance(request, LeaseRequest) and self.state.ledger.holders[0].request == request.request:
            input = Requested(msgspec.structs.replace(request, progress=Progress()))
        return super().decide(input, now)


def retried_with_more_progress(desk, decider_type):
    """Request 2 was answered, the answer lost; while it asks again the worker finishes its first lease and says so."""
    it = desk(decider_type)
    first = it.lease(0, 1)
    second = it.lease(0, 2, held=first.tokens)
    reply = it.lease(0, 2, progress=[(first.tokens[0], 4)])
    return it, second, reply


def test_a_retry_gets_the_same_grant_and_its_progress_counts(desk):
    it, second, reply = retried_with_more_progress(desk, MasterDecider)
    assert reply.tokens == second.tokens
    assert reply.answers == [OK]
    assert it.ledger.samples_done() == (40, 0)
    assert it.lease(0, 2, progress=[(1, 4)]).answers == [ALREADY]


def test_with_the_whole_retry_deduped_its_progress_is_lost(desk):
    it, _, reply = retried_with_more_progress(desk, DropsRetries)
    assert reply.answers == []
    assert it.ledger.samples_done() == (0, 0)


class GrantsAnew(MasterDecider):
    def decide(self, input, now):
        if isinstance(input, Requested) and isinstance(input.request, LeaseRequest):
            self.state.ledger.holders[0].request = 0
        return super().decide(input, now)


def duplicated_request(desk, decider_type):
    """The network delivers request 1 a second time. One answer is enough for the worker, which drops the other."""
    it = desk(decider_type)
    first, second = it.lease(0, 1), it.lease(0, 1)
    return it, first, second


def test_a_doubled_request_is_one_grant(desk):
    it, first, second = duplicated_request(desk, MasterDecider)
    assert first.tokens == second.tokens
    assert it.ledger.outstanding == 1


def test_without_request_numbers_it_is_two_and_one_is_held_by_nobody(desk):
    it, first, second = duplicated_request(desk, GrantsAnew)
    assert first.tokens != second.tokens
    assert it.ledger.outstanding == 2


def late_copy_of_an_old_request(desk, decider_type):
    it = desk(decider_type)
    it.lease(0, 1)
    it.lease(0, 2, held=[1])
    return it, it.lease(0, 1)


def test_a_request_below_the_last_one_is_refused(desk):
    it, reply = late_copy_of_an_old_request(desk, MasterDecider)
    assert isinstance(reply, RefusedReply)
    assert reply.code == "stale_request"
    assert it.ledger.outstanding == 2


def test_without_that_fence_a_late_copy_takes_work_that_nobody_will_do(desk):
    it, reply = late_copy_of_an_old_request(desk, GrantsAnew)
    assert isinstance(reply, LeaseReply)
    assert it.ledger.outstanding == 3


class CountsOn(MasterDecider):
    last = 0

    def decide(self, input, now):
        decided = super().decide(input, now)
        ledger = getattr(self.state, "ledger", None)
        if ledger is not None and (holder := ledger.holders.get(0)):
            self.last = holder.request = max(self.last, holder.request)
        return decided


def first_request_of_a_new_life(desk, decider_type):
    it = desk(decider_type)
    it.lease(0, 5)
    it.exit(it.planned("worker", 0))
    it.join("worker", 0)
    return it.lease(0, 1)


def test_request_numbers_begin_anew_with_an_incarnation(desk):
    assert isinstance(first_request_of_a_new_life(desk, MasterDecider), LeaseReply)


def test_with_numbers_that_go_on_a_new_life_is_shut_out(desk):
    assert first_request_of_a_new_life(desk, CountsOn).code == "stale_request"
