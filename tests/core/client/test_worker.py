"""The worker's state machine, one input at a time: what it says, what it repeats, what it forgets."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.group import TrainingGroup, group_of
from rover_bus.client.lease import REPORTED_ROWS, Assigned, HeldLease, Work
from rover_bus.client.pace import Pace
from rover_bus.client.worker import ANY_PLACE, Worker
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset
from rover_bus.events.requests import (
    ALREADY,
    OK,
    STALE,
    FailureReply,
    FailureRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    LeaveReply,
    LeaveRequest,
    RefusedReply,
    RegisterReply,
    RegisterRequest,
    RoutingTable,
    ServerAddress,
    StepGroup,
)

R = TypeVar("R")
DATA = Dataset(records=1000, batch_size=10)
ROUTING = RoutingTable(
    timeline=7, generation=0, epoch=1, owners=[(0, 0, 4096)], servers=[ServerAddress(0, 3, ["tcp:x:1"])]
)


def expect(worker: Worker, kind: type[R], now: float = 0.0) -> R:
    """The next request, which must be of a kind."""
    request = worker.next_request(now)
    assert isinstance(request, kind), request
    return request


def joined(external: bool = False, generation: int = 0) -> Worker:
    """A worker that is admitted and has registered its data."""
    worker = Worker(ANY_PLACE if external else Member("worker", 1, 1), "n", external=external)
    worker.want(DATA, "clicks.csv")
    welcome(worker, generation)
    return worker


def welcome(worker: Worker, generation: int = 0) -> None:
    request = expect(worker, JoinRequest)
    routing = ROUTING if generation == 0 else None
    reply = JoinReply(
        term=1,
        generation=generation,
        member=Member("worker", 1, 1),
        uid="u",
        timeline=7,
        heartbeat_s=1.0,
        routing=routing,
    )
    worker.receive(request, reply, 0.0)
    register = expect(worker, RegisterRequest)
    worker.receive(register, RegisterReply(term=1, dataset=DATA), 0.0)


def grant(worker: Worker, token: int, first: int, count: int, now: float = 0.0, **reply: Any) -> LeaseRequest:
    request = expect(worker, LeaseRequest, now)
    answers = reply.pop("answers", [OK] * len(request.progress.tokens))
    worker.receive(
        request,
        LeaseReply(
            term=1,
            request=request.request,
            outcome="granted",
            tokens=[token],
            firsts=[first],
            counts=[count],
            answers=answers,
            **reply,
        ),
        now,
    )
    return request


def take(worker: Worker) -> Assigned:
    assigned = worker.take()
    assert assigned is not None
    return assigned


def test_a_worker_says_as_it_joins_whether_its_control_group_holds_it_to_its_cores() -> None:
    for held in (True, False, None):
        worker = Worker(Member("worker", 1, 1), "n", cores_held=held)
        assert expect(worker, JoinRequest).cores_held is held


def test_one_lease_is_kept_ahead_of_the_one_in_work() -> None:
    worker = joined()
    grant(worker, 11, 0, 3)
    assert not isinstance(worker.next_request(0.0), LeaseRequest)
    assert take(worker) == Assigned(0, 11, 0, 0)
    second = grant(worker, 12, 3, 3)
    assert second.held == [11]
    assert not worker.hungry
    assert [take(worker).number for _ in range(5)] == [1, 2, 3, 4, 5]
    assert worker.take() is None
    assert worker.hungry


def test_progress_is_the_prefix_of_done_batches_and_rides_with_its_tokens() -> None:
    worker = joined()
    grant(worker, 11, 0, 5)
    taken = [take(worker) for _ in range(5)]
    for assigned in (taken[0], taken[2], taken[1], taken[4]):
        worker.finish(assigned, 0.9, servers=(3,))
    request = expect(worker, LeaseRequest, 0.9)
    assert (request.progress.tokens, request.progress.uptos, request.progress.servers) == ([11], [3], [3])
    assert request.held == []


def test_a_report_is_repeated_unchanged_until_it_is_answered() -> None:
    """P6, P7: otherwise a skipped row of the first report would be lost or counted with the second."""
    worker = joined()
    grant(worker, 11, 0, 9)
    rows = (SkippedRow(4, 4, 5, "no label"),)
    worker.finish(take(worker), 0.1, Work(skipped=rows, values_missing=2))
    first = expect(worker, LeaseRequest, 0.1)
    worker.finish(take(worker), 0.2, Work(values_missing=5))
    assert not worker.interrupts(first, 0.2), "what it reports is to be answered first"
    refusal = RefusedReply(term=2, code="not_ready", message="", retry_s=0.2)
    worker.receive(first, refusal, 0.2)
    assert worker.next_request(0.3) is None
    again = expect(worker, LeaseRequest, 0.5)
    assert again.progress == first.progress
    assert again.progress.skipped == list(rows)
    worker.receive(again, LeaseReply(term=2, request=2, outcome="wait", answers=[OK]), 0.5)
    later = expect(worker, LeaseRequest, 0.6)
    assert (later.progress.uptos, later.progress.missing, later.progress.skipped) == ([2], [(1, 5)], [])


def test_request_numbers_count_up_and_heartbeats_bear_the_last_one() -> None:
    worker = joined()
    assert grant(worker, 11, 0, 4).request == 1
    take(worker)
    assert grant(worker, 12, 4, 4).request == 2
    beat = expect(worker, HeartbeatRequest, 5.0)
    assert (beat.request, beat.held) == (2, [11, 12])


def test_a_cancelled_lease_is_worked_on_no_more() -> None:
    worker = joined()
    grant(worker, 11, 0, 4)
    in_hand = take(worker)
    grant(worker, 12, 4, 2)
    beat = expect(worker, HeartbeatRequest, 1.5)
    worker.receive(beat, HeartbeatReply(term=1, cancelled=[11]), 1.5)
    assert not worker.holds(in_hand)
    worker.finish(in_hand, 1.6)
    assert take(worker) == Assigned(0, 12, 0, 4)
    assert expect(worker, LeaseRequest, 1.6).progress.tokens == []


def test_a_stale_or_completed_token_is_forgotten_and_its_retrained_samples_are_not() -> None:
    worker = joined()
    grant(worker, 11, 0, 2)
    worker.finish(take(worker), 0.1, Work(samples_retrained=10))
    request = expect(worker, LeaseRequest, 0.1)
    worker.receive(request, LeaseReply(term=1, request=2, outcome="wait", answers=[STALE]), 0.1)
    assert worker.take() is None
    grant(worker, 13, 7, 1, 0.2)
    worker.finish(take(worker), 0.2)
    request = expect(worker, LeaseRequest, 0.2)
    assert (request.progress.tokens, request.progress.samples_retrained) == ([13], 10)
    worker.receive(request, LeaseReply(term=1, request=4, outcome="wait", answers=[ALREADY]), 0.2)
    assert expect(worker, LeaseRequest, 0.3).held == []


def test_a_new_generation_drops_everything_and_joins_again_under_the_same_name() -> None:
    """P8."""
    worker = joined()
    grant(worker, 11, 0, 4)
    old = take(worker)
    asked = expect(worker, LeaseRequest, 0.05)
    worker.receive(asked, RefusedReply(term=1, code="stale_generation", message=""), 0.05)
    assert worker.take() is None
    assert worker.routing is None
    welcome(worker, generation=1)
    request = grant(worker, 1 << 40 | 1, 0, 4, 0.05)
    assert (request.generation, request.request, request.held) == (1, 3, [])
    worker.finish(old, 0.05)
    assert take(worker).generation == 1
    assert expect(worker, LeaseRequest, 0.05).progress.tokens == []


def test_a_replaced_worker_ends_and_an_external_one_that_was_lost_joins_anew() -> None:
    worker = joined()
    request = expect(worker, LeaseRequest)
    worker.receive(request, RefusedReply(term=1, code="stale_incarnation", message="replaced"), 0.0)
    assert worker.over
    assert worker.next_request(9.0) is None
    external = joined(external=True)
    before = expect(external, LeaseRequest)
    external.receive(before, RefusedReply(term=1, code="not_admitted", message="lost"), 0.0)
    join = expect(external, JoinRequest)
    assert (join.member, join.nonce) == (ANY_PLACE, "n+2")


def test_a_planned_worker_that_is_not_admitted_stops_with_the_reason() -> None:
    worker = joined()
    request = expect(worker, LeaseRequest)
    worker.receive(request, RefusedReply(term=1, code="not_admitted", message="was lost"), 0.0)
    assert worker.over
    assert worker.end is not None
    assert (worker.end.code, str(worker.end)) == ("not_admitted", "was lost")


def test_leaving_part_commits_and_is_the_last_word() -> None:
    worker = joined()
    grant(worker, 11, 0, 4)
    worker.finish(take(worker), 1.0)
    worker.leave("drained")
    assert worker.take() is None
    goodbye = expect(worker, LeaveRequest, 1.0)
    assert (goodbye.reason, goodbye.progress.tokens, goodbye.progress.uptos) == ("drained", [11], [1])
    worker.receive(goodbye, LeaveReply(term=1, answers=[OK]), 1.0)
    assert worker.over


def test_a_failure_bears_the_progress_and_only_an_external_worker_says_goodbye_after_it() -> None:
    for external in (False, True):
        worker = joined(external=external)
        grant(worker, 11, 0, 4)
        worker.finish(take(worker), 1.0)
        worker.fail(FailureRequest(**worker.who(), token=11, exception="KeyError"))
        report = expect(worker, FailureRequest, 1.0)
        assert (report.token, report.progress.uptos) == (11, [1])
        worker.receive(report, FailureReply(term=1, charged=True), 1.0)
        assert worker.over is not external
        if external:
            worker.receive(expect(worker, LeaveRequest, 1.0), LeaveReply(term=1), 1.0)
            assert worker.over


def test_orders_on_heartbeats_are_obeyed() -> None:
    worker = joined()
    grant(worker, 11, 0, 4)
    newer = RoutingTable(timeline=7, generation=0, epoch=2, owners=[], servers=[ServerAddress(0, 4, [])])
    other = RoutingTable(timeline=7, generation=5, epoch=9, owners=[], servers=[])
    for now, routing in ((5.0, newer), (5.2, other)):
        worker.receive(expect(worker, HeartbeatRequest, now), HeartbeatReply(term=1, routing=routing), now)
        worker.want_routing()
    assert worker.routing == newer
    worker.receive(expect(worker, HeartbeatRequest, 9.0), HeartbeatReply(term=1, order="drain"), 9.0)
    assert worker.draining
    assert worker.take() is None


def test_routing_that_a_server_has_overtaken_is_not_news() -> None:
    """Taken for news it is handed out again and again without a wait, until the patience of whoever asks is used up."""
    tables = [RoutingTable(timeline=7, generation=0, epoch=n, owners=[], servers=[]) for n in range(4)]
    worker = joined()
    grant(worker, 11, 0, 4)
    worker.receive(expect(worker, HeartbeatRequest, 5.0), HeartbeatReply(term=1, routing=tables[2]), 5.0)
    assert worker.newer_routing(None) == tables[2]
    assert worker.newer_routing(tables[1]) == tables[2]
    assert worker.newer_routing(tables[2]) is None
    assert worker.newer_routing(tables[3]) is None


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 12), st.sampled_from([0, 1, REPORTED_ROWS]))
def test_whatever_the_order_of_acks_every_remark_is_reported_once_and_only_with_its_batch(
    order: list[int], asked: int, rows: int
) -> None:
    lease = HeldLease(1, 0, 0, 12)
    for _ in range(12):
        lease.take()
    seen: list[int] = []
    before = 0

    def look() -> None:
        nonlocal before
        while (report := lease.report()) is not None:
            upto, remarks = report
            assert before < upto <= lease.upto
            assert all(work.values_missing == number + 1 for number, work in remarks)
            numbers = [work.values_missing for _, work in remarks]
            assert numbers == list(range(before + 1, upto + 1)), "a remark left without its batch"
            seen.extend(numbers)
            before = upto

    for count, number in enumerate(order):
        skipped = tuple(SkippedRow(row, row, row, "") for row in range(rows))
        lease.finish(number, Work(skipped=skipped, values_missing=number + 1))
        lease.finish(number, Work(values_missing=99))
        if count == asked:
            look()
    look()
    assert seen == list(range(1, 13))


def held(worker: Worker, now: float) -> LeaseRequest:
    """The lease request on its way, which a master holds: it reports nothing."""
    request = expect(worker, LeaseRequest, now)
    assert not request.progress.tokens
    assert not worker.interrupts(request, now)
    return request


def test_the_last_batch_in_hand_interrupts_a_request_that_the_master_holds() -> None:
    """P7: what it reports goes under the same number, so that a grant that crosses it on the way is found again."""
    worker = joined()
    grant(worker, 11, 0, 2)
    first, last = take(worker), take(worker)
    asked = held(worker, 0.5)
    assert not worker.finish(first, 0.6)
    assert not worker.interrupts(asked, 0.6), "an epoch cannot end with it"
    assert worker.finish(last, 0.7)
    assert worker.interrupts(asked, 0.7)
    worker.give_up()
    report = expect(worker, LeaseRequest, 0.7)
    assert (report.request, report.progress.uptos) == (asked.request, [2])


def test_a_heartbeat_and_a_farewell_interrupt_a_request_that_the_master_holds() -> None:
    worker = joined()
    asked = held(worker, 0.5)
    assert worker.interrupts(asked, 1.0)
    worker.give_up()
    beat = expect(worker, HeartbeatRequest, 1.0)
    assert beat.request == asked.request
    worker.receive(beat, HeartbeatReply(term=1), 1.0)
    again = held(worker, 1.1)
    assert again.request == asked.request
    worker.leave("done")
    assert worker.interrupts(again, 1.1)
    worker.give_up()
    expect(worker, LeaveRequest, 1.1)


def test_a_request_bears_its_number_until_it_brought_a_lease() -> None:
    worker = joined()
    numbers = []
    for now in (0.1, 0.2, 0.3):
        asked = held(worker, now)
        numbers.append(asked.request)
        worker.receive(asked, LeaseReply(term=1, request=asked.request, outcome="wait"), now)
    numbers.append(grant(worker, 11, 0, 1, 0.4).request)
    take(worker)
    numbers.append(expect(worker, LeaseRequest, 0.5).request)
    assert numbers == [1, 1, 1, 1, 2]


def test_pace_measures_working_time_only_and_follows_a_slowdown() -> None:
    pace = Pace()
    pace.resume(0.0)
    for n in range(1, 101):
        pace.finish(n * 0.1)
    assert abs(pace.rate - 10.0) < 0.01
    pace.resume(1000.0)  # a long wait for leases
    pace.finish(1000.1)
    assert abs(pace.rate - 10.0) < 0.1
    for n in range(1, 16):
        pace.finish(1000.1 + 2.0 * n)
    assert pace.rate < 1.5


def in_group() -> Worker:
    """A worker of a synchronous job that holds two batches, the first of them in hand."""
    worker = joined()
    group = StepGroup(number=4, members=[Member("worker", 0, 1), Member("worker", 1, 1)], hosts=["h", "i"])
    grant(worker, 1, 10, 2, group=group)
    return worker


def test_a_worker_of_a_group_takes_the_steps_that_others_wait_for_before_it_leaves() -> None:
    worker = in_group()
    first = worker.take()
    assert first is not None
    assert first.group is not None
    assert group_of(first.group, worker.member) == TrainingGroup(4, 1, ("h", "i"))
    worker.drain()
    assert not worker.draining
    second = worker.take()
    assert second is not None
    for assigned in (first, second):
        worker.finish(assigned, 0.0)
    request = grant(worker, 2, 30, 1)  # the others have been granted one more
    assert request.retiring
    third = worker.take()
    assert third is not None
    assert third.group == first.group
    worker.finish(third, 0.0)
    request = expect(worker, LeaseRequest)
    worker.receive(request, LeaseReply(term=1, request=request.request, outcome="drain", answers=[OK]), 0.0)
    assert worker.take() is None
    assert worker.resting


def test_a_worker_without_a_group_leaves_after_the_batch_in_hand() -> None:
    worker = joined()
    grant(worker, 1, 10, 2)
    worker.drain()
    assert worker.take() is None
    assert worker.draining
