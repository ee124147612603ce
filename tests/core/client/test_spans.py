"""What the batches of a stream are: spans fixed at the grant, cut into batches, told and reported by the worker (P1, P6, S9)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rover_bus.client.lease import HeldLease, Work
from rover_bus.client.spans import HighWater, Records, cut, flow
from rover_bus.client.worker import Worker
from rover_bus.events.data_facts import SkippedRow
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset
from rover_bus.events.requests import (
    OK,
    JoinReply,
    LeaseReply,
    LeaseRequest,
    RegisterReply,
)

STREAM = Dataset(records=0, batch_size=10, partitions=["a", "b"])


def streaming(known: Dataset | None = None) -> Worker:
    """A worker that is admitted and has registered its stream."""
    worker = Worker(Member("worker", 0, 1), "n")
    worker.want(STREAM, "/data")
    join = worker.next_request(0.0)
    assert join is not None
    member = Member("worker", 0, 1)
    worker.receive(
        join,
        JoinReply(term=1, member=member, uid="u", timeline=7, heartbeat_s=1.0, dataset=known),
        0.0,
    )
    register = worker.next_request(0.0)
    assert register is not None
    worker.receive(register, RegisterReply(term=1, dataset=STREAM), 0.0)
    return worker


def asked(worker: Worker, now: float = 0.0) -> LeaseRequest:
    request = worker.next_request(now)
    assert isinstance(request, LeaseRequest), request
    return request


def grant(worker: Worker, now: float = 0.0, **leases: Any) -> LeaseRequest:
    request = asked(worker, now)
    answers = [OK] * len(request.progress.tokens)
    reply = LeaseReply(term=1, request=request.request, outcome="granted", answers=answers, **leases)
    worker.receive(request, reply, now)
    return request


def test_a_batch_is_cut_from_its_span_and_the_last_one_of_a_span_is_short() -> None:
    spans = [("a", 0, 3, 100, 125), ("b", 3, 4, 0, 10)]
    assert [cut(spans, number, 10) for number in range(5)] == [
        Records("a", 100, 110),
        Records("a", 110, 120),
        Records("a", 120, 125),
        Records("b", 0, 10),
        None,
    ]


def test_a_lease_over_two_returned_spans_reads_each_batch_where_it_belongs() -> None:
    worker = streaming()
    grant(worker, tokens=[1], firsts=[1], counts=[3], spans=[("a", 1, 3, 110, 125), ("b", 3, 4, 0, 10)])
    taken = [worker.take() for _ in range(3)]
    assert [assigned.records for assigned in taken if assigned] == [
        Records("a", 110, 120),
        Records("a", 120, 125),
        Records("b", 0, 10),
    ]


def test_each_lease_of_one_answer_gets_its_own_spans() -> None:
    worker = streaming()
    spans = [("b", 7, 8, 40, 43), ("a", 2, 4, 20, 40)]
    grant(worker, tokens=[1, 2], firsts=[7, 2], counts=[1, 2], spans=spans)
    taken = [worker.take() for _ in range(3)]
    assert [(each.token, each.records) for each in taken if each] == [
        (1, Records("b", 40, 43)),
        (2, Records("a", 20, 30)),
        (2, Records("a", 30, 40)),
    ]


def test_batches_of_a_fixed_data_set_name_no_records() -> None:
    worker = streaming()
    worker.want(Dataset(records=100, batch_size=10))
    register = worker.next_request(0.0)
    assert register is not None
    worker.receive(register, RegisterReply(term=1, dataset=STREAM), 0.0)
    grant(worker, tokens=[1], firsts=[0], counts=[1])
    assigned = worker.take()
    assert assigned is not None
    assert assigned.records is None


def test_a_lease_request_tells_how_far_each_partition_can_be_read() -> None:
    worker = streaming()
    worker.see(HighWater({"a": 25, "b": 10}, []))
    assert asked(worker).high_water == {"a": 25, "b": 10}


def test_seals_are_told_once_every_partition_has_one() -> None:
    worker = streaming()
    worker.see(HighWater({"a": 25, "b": 10}, ["a"]))
    assert grant(worker, tokens=[1], firsts=[0], counts=[1], spans=[("a", 0, 1, 0, 10)]).sealed == []
    worker.see(HighWater({"a": 25, "b": 12}, ["a", "b"]))
    worker.take()
    assert asked(worker).sealed == ["a", "b"]


def test_what_can_be_read_of_a_stream_interrupts_a_request_that_the_master_holds() -> None:
    worker = streaming()
    assert not worker.see(HighWater({"a": 25, "b": 10}, [])), "nothing is on its way"
    request = asked(worker)
    assert not worker.see(HighWater({"a": 25, "b": 10}, [])), "it says so already"
    assert not worker.interrupts(request, 0.05)
    assert worker.see(HighWater({"a": 26, "b": 10}, []))
    assert worker.interrupts(request, 0.05)
    worker.give_up()
    again = asked(worker)
    assert (again.request, again.high_water) == (request.request, {"a": 26, "b": 10})


def test_what_others_have_registered_is_known_from_the_join_on() -> None:
    assert streaming().known is None
    assert streaming(known=STREAM).known == STREAM


def row(batch: int) -> SkippedRow:
    return SkippedRow(batch * 10, batch * 10, batch * 10 + 2, "no label")


def test_a_report_names_the_skipped_rows_of_one_file_and_the_next_one_those_of_another() -> None:
    lease = HeldLease(1, 0, 0, 5)
    files = ["a", "", "a", "b", "b"]
    for number, file in enumerate(files):
        lease.take()
        lease.finish(number, Work(skipped=(row(number),), file=file) if file else Work(values_missing=1))
    first = lease.report()
    assert first is not None
    assert (first[0], [number for number, _ in first[1]]) == (3, [0, 1, 2])
    second = lease.report()
    assert second is not None
    assert (second[0], [number for number, _ in second[1]]) == (5, [3, 4])
    assert lease.report() is None


def test_leases_of_two_partitions_are_reported_one_file_after_the_other() -> None:
    worker = streaming()
    spans = [("a", 0, 1, 0, 10), ("b", 1, 2, 0, 10)]
    grant(worker, tokens=[1, 2], firsts=[0, 1], counts=[1, 1], spans=spans)
    for file in ("/data/a", "/data/b"):
        assigned = worker.take()
        assert assigned is not None
        worker.finish(assigned, 0.0, Work(skipped=(row(assigned.number),), file=file))
    seen = []
    for _ in range(2):
        progress = grant(worker, tokens=[], firsts=[], counts=[]).progress
        seen.append(
            (progress.tokens, progress.skipped_file, [skipped.position for skipped in progress.skipped])
        )
    assert seen == [([1], "/data/a", [0]), ([2], "/data/b", [10])]


growth = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)), max_size=12)


@given(growth, st.integers(1, 20))
def test_one_reader_alone_gets_every_record_once_however_the_partitions_grow(
    steps: list[dict[str, int]], batch_size: int
) -> None:
    rows, left = {"a": 0, "b": 0, "c": 0}, list(steps)

    def look() -> HighWater:
        for name, more in (left.pop(0) if left else {}).items():
            rows[name] += more
        return HighWater(dict(rows), [] if left else sorted(rows))

    got = [
        (records.partition, offset)
        for records in flow(look, batch_size)
        if records
        for offset in range(records.first, records.end)
    ]
    assert len(got) == len(set(got))
    assert set(got) == {(name, offset) for name, count in rows.items() for offset in range(count)}


def test_s9_one_reader_alone_passes_over_a_dry_partition_and_waits_when_all_are() -> None:
    views = iter([{"a": 5, "b": 0}, {"a": 5, "b": 0}, {"a": 5, "b": 0}, {"a": 5, "b": 3}])
    batches = flow(lambda: HighWater(next(views), []), 10)
    assert [next(batches), next(batches), next(batches)] == [Records("a", 0, 5), None, Records("b", 0, 3)]
