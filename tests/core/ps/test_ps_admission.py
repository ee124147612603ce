"""Applied once per (slot, epoch, batch): the histories of the protocol, each with its rule on and with its rule off."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_bus.events.errors import Refused
from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import EMPTY, ServerStart
from rover_bus.ps import admission, messages
from rover_bus.ps.admission import Admission, Applied, Apply, Fence, Refusal, Repeat, SlotGroup
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import Reset, Send
from rover_bus.ps.frame import BodyReader, unpack
from rover_bus.ps.intervals import Intervals
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.spec import Add, Dense, Growing, Hashed
from rover_bus.ps.store import BatchKey, GenerationChanged, ServersUnreachable

WITNESS = Hashed(name="witness", rows=64, width=1, optimizer=Add(), dtype="int32")


def count(worker, epoch, number, positions, **options):
    """Push one batch: each sample adds 1 at its own position."""
    worker.push(BatchKey(epoch, number), {}, add={"witness": (np.array(positions), 1)}, **options)


def witness(cluster):
    return cluster.join_and_declare().read("witness", np.arange(64)).ravel()


@pytest.fixture
def join(make_cluster):
    def joined(core=ServerCore, workers=1, **options):
        cluster = make_cluster(core=core)

        def join_and_declare():
            worker = cluster.join(**options)
            worker.declare(WITNESS)
            return worker

        cluster.join_and_declare = join_and_declare
        return cluster, *(join_and_declare() for _ in range(workers))

    return joined


class AppliesTwice(ServerCore):
    """Forgets what it has applied."""

    @staticmethod
    def decide_push(state, fence, batch):
        return admission.decide_request(state, fence) or Apply(tuple(range(len(state.groups))))


class Watermark(ServerCore):
    """Remembers the highest batch only, and takes everything below it for applied."""

    @staticmethod
    def decide_push(state, fence, batch):
        filled = [Intervals([(0, max(e for _, e in s))]) for g in state.groups for s in g.applied.values()]
        done = any(batch.number in numbers for numbers in filled)
        return admission.decide_request(state, fence) or (Repeat() if done else Apply((0,)))


class Unfenced(ServerCore):
    """Applies whatever comes, whomever it was meant for."""

    @staticmethod
    def decide_push(state, fence, batch):
        return Apply((0,))


# --- a zombie's push ----------------------------------------------------------------------------------------------------


def zombie_repeats(join, core):
    cluster, zombie, heir = join(core, workers=2)
    count(zombie, 0, 3, [1, 2])
    zombie.flush()  # then it pauses; its lease is given to another, who computes the batch again
    count(heir, 0, 3, [1, 2])
    heir.flush()
    return cluster, heir


def test_a_zombies_push_of_an_already_applied_batch_is_ignored(join):
    cluster, heir = zombie_repeats(join, ServerCore)
    assert witness(cluster).sum() == 2
    assert heir.acknowledged()[0].repeated
    assert [core.statistics()["updates_ignored"] for core in cluster.cores.values()] == [1, 1]


def test_without_applied_sets_the_zombies_push_counts_twice(join):
    cluster, _ = zombie_repeats(join, AppliesTwice)
    assert witness(cluster).sum() == 4


def test_the_same_batch_from_another_lease_is_ignored(join):
    """The lease token is no part of a push: it changes exactly when the dedupe is needed (P2)."""
    assert not {"token", "lease", "worker"} & set(messages.Push.__struct_fields__)
    cluster, first, second = join(workers=2)
    for worker in (first, second, first):
        count(worker, 0, 5, [9])
        worker.flush()
    assert witness(cluster)[9] == 1


# --- a set, not a watermark ---------------------------------------------------------------------------------------------


def refused_then_retried(join, core):
    cluster, early, late = join(core, workers=2)
    early.lose = lambda effect: isinstance(effect, Send | Reset)  # batch 4 does not arrive at first
    with pytest.raises(ServersUnreachable):
        count(early, 0, 4, [4])
    count(late, 0, 5, [5])
    count(late, 0, 6, [6])
    late.flush()
    early.lose = lambda effect: False
    early.flush()  # batch 4, behind 5 and 6
    early.flush()
    return cluster


def test_a_refused_push_retried_behind_later_ones_is_applied_once(join):
    cluster = refused_then_retried(join, ServerCore)
    assert np.flatnonzero(witness(cluster)).tolist() == [4, 5, 6]
    assert witness(cluster).max() == 1


def test_with_a_watermark_the_retried_push_would_be_lost(join):
    assert np.flatnonzero(witness(refused_then_retried(join, Watermark))).tolist() == [5, 6]


# --- fences -------------------------------------------------------------------------------------------------------------


def push_to(core, fence, number=0):
    push = messages.Push(fence=fence, epoch=0, number=number)
    header, body = unpack(b"".join(core.answer(*unpack(b"".join(messages.encode(push))))))
    BodyReader(body).end()
    return messages.decode_reply(header)


def admitted(core=ServerCore, generation=2, timeline=8):
    server = core(0, 5)
    server.admit(timeline=timeline, generation=generation, start=EMPTY, seed=1)
    server.route(divide_slots([ServerAddress(0, 5, [])], timeline, generation, epoch=3))
    return server


def test_a_server_that_is_not_admitted_applies_nothing():
    reply = push_to(ServerCore(0, 5), Fence(8, 2, 3, 5))
    assert (reply.code, reply.retry_s > 0) == ("not_admitted", True)


@pytest.mark.parametrize(
    ("fence", "code"),
    [
        (Fence(7, 2, 3, 5), "stale_timeline"),
        (Fence(8, 1, 3, 5), "stale_generation"),
        (Fence(8, 3, 0, 5), "behind"),
        (Fence(8, 2, 3, 4), "stale_incarnation"),
        (Fence(8, 2, 3, 6), "stale_incarnation"),
        (Fence(8, 2, 2, 5), "stale_routing"),
        (Fence(8, 2, 4, 5), "behind"),
    ],
)
def test_a_push_for_another_life_is_refused_and_changes_nothing(fence, code):
    server = admitted()
    before = server.state
    reply = push_to(server, fence)
    assert reply.code == code
    assert (server.state, server.version) == (before, 0)
    assert server.statistics()[f"refused_{code}"] == 1
    if code.startswith("stale"):
        assert reply.routing == server.state.routing
    assert isinstance(
        push_to(admitted(Unfenced), fence), messages.Acked
    )  # without the fence it would be applied


def test_an_old_routing_table_is_refused_and_a_new_one_followed():
    server, servers = admitted(), [ServerAddress(0, 5, [])]
    with pytest.raises(Refused, match="routing 2 is over"):
        server.route(divide_slots(servers, 8, 2, epoch=2))
    with pytest.raises(Refused) as refused:
        server.route(divide_slots(servers, 9, 2, epoch=9))
    assert refused.value.code == "stale_timeline"
    server.route(divide_slots(servers, 8, 2, epoch=9))
    assert push_to(server, Fence(8, 2, 3, 5)).routing.epoch == 9


def test_slots_of_a_running_server_do_not_move_yet():
    server = admitted()
    with pytest.raises(Refused) as refused:
        server.route(divide_slots([ServerAddress(0, 5, []), ServerAddress(1, 6, [])], 8, 2, epoch=4))
    assert refused.value.code == "cannot_move"


def test_a_rewound_job_begins_empty_and_its_workers_are_told(join, make_cluster):
    cluster, worker = join()
    count(worker, 0, 0, [1])
    worker.flush()
    servers = cluster.routing.servers
    cluster.routing = divide_slots(servers, 0, generation=1)
    for core in cluster.cores.values():
        core.admit(timeline=0, generation=1, start=ServerStart("empty", 1), seed=7)
        core.route(cluster.routing)
    count(worker, 0, 1, [2])
    with pytest.raises(GenerationChanged, match="generation 1"):
        worker.flush()
    count(worker, 0, 0, [1])
    worker.flush()
    assert witness(cluster).sum() == 1
    assert worker.acknowledged()[-1].generation == 1


def test_a_generation_that_is_over_does_not_come_back():
    server = admitted()
    with pytest.raises(Refused, match="generation 1 is over"):
        server.admit(timeline=8, generation=1, start=EMPTY, seed=1)
    state = server.state
    server.admit(timeline=8, generation=2, start=EMPTY, seed=1)  # a repeated order changes nothing
    assert server.state is state


# --- sets that stay small; slots that differ ------------------------------------------------------------------------------


def test_settled_batches_are_folded_and_closed_epochs_forgotten():
    server = admitted()
    fence = Fence(8, 2, 3, 5)
    for number in range(0, 20, 2):
        push_to(server, fence, number)
    assert len(server.state.groups[0].applied[0]) == 10
    server.settle(0, 20)  # batch 3, say, was dead-lettered: no worker may apply it any more
    assert list(server.state.groups[0].applied[0]) == [(0, 20)]
    assert push_to(server, fence, 3).repeated
    server.close_epochs(1)
    assert server.state.groups[0].applied == {}
    assert push_to(server, fence, 99).repeated


def test_slots_that_hold_a_batch_ignore_it_while_others_apply_it(join):
    """What a later move leaves behind: some slots arrived with an applied set of their own (P3)."""
    for table, whole_sum, push in (
        (Hashed(name="h", rows=9000, width=1, optimizer=Add()), 9000, {"add": {"h": (np.arange(9000), 1)}}),
        (Growing(name="g", width=2, optimizer=Add()), 128, {"add": {"g": (np.arange(64), np.ones((64, 2)))}}),
        (
            Dense(name="d", shape=(50, 4096), optimizer=Add()),
            50 * 4096,
            {"gradients": {"d": np.ones((50, 4096), "f4")}},
        ),
    ):
        cluster, worker = join()
        worker.declare(table)
        for core in cluster.cores.values():
            [whole] = core.state.groups
            [(first, end)] = whole.slots
            middle = (first + end) // 2
            groups = (
                SlotGroup(((first, middle),), {}),
                SlotGroup(((middle, end),), {0: Intervals([(6, 7)])}),
            )
            core.state = msgspec.structs.replace(core.state, groups=groups)
        for _ in range(2):
            worker.push(BatchKey(0, 6), **{"gradients": {}, **push})
        worker.flush()
        values = worker.export()[table.name].values
        assert 0 < values.sum() < whole_sum
        assert set(np.unique(values)) <= {0, 1}
        assert [core.statistics()["updates_ignored"] for core in cluster.cores.values()] == [1, 1]
        for core in cluster.cores.values():
            core.settle(0, 9)
            assert len(core.state.groups) == 1  # the exception is gone


numbers = st.lists(st.integers(0, 40), max_size=60)


@given(numbers, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))))
def test_intervals_are_a_set_of_numbers(added, pairs):
    model: set[int] = set()
    intervals = Intervals()
    for number in added:
        intervals = intervals.add(number)
        model.add(number)
    assert Intervals([(number, number + 1) for number in added]) == intervals
    intervals = intervals.union(pairs)
    model |= {number for first, end in pairs for number in range(first, end)}
    assert {number for number in range(-1, 43) if number in intervals} == model
    assert intervals.count == len(model)
    flat = [bound for pair in intervals for bound in pair]
    assert flat == sorted(set(flat))


@given(numbers)
def test_a_batch_is_applied_exactly_when_it_is_new(pushes):
    table = divide_slots([ServerAddress(0, 1, [])])
    state = Admission(
        index=0, incarnation=1, start=EMPTY, routing=table, groups=(SlotGroup(((0, 4096),), {}),)
    )
    seen = set()
    for number in pushes:
        decision = admission.decide_push(state, Fence(0, 0, 0, 1), BatchKey(2, number))
        assert isinstance(decision, Repeat if number in seen else Apply)
        assert not isinstance(decision, Refusal)
        if isinstance(decision, Apply):
            state = admission.evolve(state, Applied(BatchKey(2, number), decision.groups))
        seen.add(number)


def test_who_waits_for_the_servers_of_a_generation_goes_on_with_them_alone(make_cluster):
    """The master may lease batches of a new generation before a worker has heard of its servers (P8)."""
    cluster = make_cluster()
    worker = cluster.join()
    worker.declare(WITNESS)
    addresses = [ServerAddress(index, 10 + index, []) for index in cluster.cores]
    cluster.routing = divide_slots(addresses, 0, 1)
    worker.follow(1)
    assert worker.exchange.route.table.generation == 1


def test_who_waits_for_servers_that_never_come_is_told(cluster):
    worker = cluster.join(patience_s=5.0)
    with pytest.raises(ServersUnreachable, match="generation 1"):
        worker.follow(1)
