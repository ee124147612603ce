"""What format 2 writes otherwise: the same to every reader, smaller, and only where the stack is in that format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.brain.log import ClusterObserved, FreezeObserved, FreezesTurned
from rover_bus.events.codec import decode, decode_any, encode, format_of, type_of
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import MembersDesired
from rover_bus.events.host_facts import ClusterModeSet, FreezeSet
from rover_bus.events.identity import DesiredMember, MasterSeat, Member, Resources
from rover_bus.events.journal import Journal
from rover_bus.events.later_forms import MembersDesiredV2, as_written, least_format
from rover_bus.events.log import LogBatch, RecordPiece
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import LOG
from rover_bus.events.subjects import job_log
from rover_bus.events.virtual_time import run

members = st.builds(
    DesiredMember,
    member=st.builds(Member, st.sampled_from(["worker", "ps"]), st.integers(0, 9), st.integers(1, 9)),
    host=st.sampled_from(["h1", "h2", ""]),
    command=st.sampled_from([[], ["python", "train.py"]]),
    environment=st.dictionaries(st.sampled_from("AB"), st.sampled_from("xy")),
    resources=st.builds(Resources, cores=st.sampled_from([0.0, 2.5]), memory_bytes=st.integers(0, 2)),
    directory=st.sampled_from(["", "/work"]),
    grace_s=st.sampled_from([0.0, 30.0]),
    start_patience_s=st.sampled_from([60.0, 900.0]),
    restart=st.booleans(),
    after_loss=st.booleans(),
)
desired = st.builds(
    MembersDesired,
    cause=st.just("c:1"),
    by=st.just("ada"),
    job=st.just("j"),
    position=st.sampled_from([None, (3, 1)]),
    term=st.integers(0, 3),
    plan=st.integers(0, 3),
    members=st.lists(members, max_size=6),
    uid=st.just("u"),
    masters=st.lists(st.builds(MasterSeat, host=st.just("h1"), first=st.integers(1, 2)), max_size=2),
    proposal=st.integers(0, 3),
    hosts=st.just(["h1", "h2"]),
    slow_hosts=st.just(["h2"]),
    reason=st.just("repair"),
)


@settings(deadline=None)  # a busy machine is no failure
@given(desired)
def test_each_desired_state_is_read_as_it_was_decided(fact: MembersDesired) -> None:
    body = encode(as_written(fact, 2))
    assert type_of(body) == "members.desired.v2"
    assert decode_any(body) == fact
    assert encode(as_written(fact, 1)) == encode(fact)


def test_what_members_share_is_written_once() -> None:
    fact = many(1_000)
    former, later = len(encode(fact)), len(encode(as_written(fact, 2)))
    assert former > 150 * 1_000
    assert later < 16 * 1_000


def many(count: int) -> MembersDesired:
    return MembersDesired(
        plan=1,
        members=[
            DesiredMember(
                member=Member("worker", index, 1),
                host=f"h{index % 7}",
                command=["python", "train.py"],
                directory="/work",
            )
            for index in range(count)
        ],
    )


@pytest.mark.parametrize("member", [("worker", 0, 1, 2, 1), ("worker", 0, 1, 1, 2), ("worker", 0, 1, 0, 1)])
def test_a_desired_state_that_names_what_it_does_not_hold_is_no_event(member: tuple) -> None:
    body = encode({"type": "members.desired.v2", "plan": 1, "members": [member], "on": ["h1"], "terms": [{}]})
    with pytest.raises(BadMessage):
        decode_any(body)


@pytest.mark.parametrize(
    ("writes", "tag", "least"), [(1, "members.desired.v1", 1), (2, "members.desired.v2", 2)]
)
def test_a_log_says_what_must_be_read_to_read_it(writes: int, tag: str, least: int) -> None:
    fact = many(3)

    async def program() -> None:
        bus = MemoryBroker().connect("m")
        writer = journal(bus)
        writer.writes = writes
        for record in (fact, fact.replace(plan=2)):
            await writer.append([record], {})
        stored = [each async for each in bus.read(LOG, job_log("j"))]
        assert [format_of(each.body) for each in stored] == [least, least]
        assert tag.encode() in stored[0].body
        reader = journal(bus)
        assert [list(reader.take(each)[1]) for each in stored] == [[fact], [fact.replace(plan=2)]]

    run(program())


def test_a_record_in_pieces_is_put_together_in_either_format() -> None:
    fact = many(40_000)

    async def program() -> None:
        bus = MemoryBroker().connect("m")
        for writes in (1, 2):
            writer = journal(bus)
            writer.writes = writes
            pieces = writer.fit_together([fact, fact, fact])
            assert isinstance(pieces[0].stored[0], RecordPiece)
            reader = journal(bus)
            whole = [reader._put_together(each.stored) for each in pieces]
            assert list(whole[-1]) == [fact, fact, fact]

    run(program())


def journal(bus) -> Journal:
    return Journal(bus, job_log("j"), "j", "m", LogBatch, lambda: 0)


def test_a_reader_of_one_form_alone_does_not_take_the_other() -> None:
    with pytest.raises(BadMessage):
        decode(encode(as_written(many(1), 2)), MembersDesired)
    assert isinstance(as_written(many(1), 2), MembersDesiredV2)


def test_a_log_of_the_brain_with_a_freeze_takes_a_later_release_to_be_read() -> None:
    said = FreezeSet(freeze="sale", begins_s=0.0, ends_s=1.0)
    freeze = FreezeObserved(fact=said, cause="F:1")
    turned = FreezesTurned(in_force={"sale": 1.0}, cause="look")
    mode = ClusterObserved(fact=ClusterModeSet(mode="auto"), cause="F:2")
    assert [least_format([each]) for each in (mode, freeze, turned, said)] == [1, 2, 2, 2]
