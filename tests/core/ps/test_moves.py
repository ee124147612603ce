"""Slots that move between servers while workers push: rows, optimizer state and applied sets go together, whatever is repeated."""

from __future__ import annotations

import itertools
from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_bus.events.errors import Refused
from rover_bus.events.requests import MoveOrder, RoutingTable, ServerAddress
from rover_bus.ps import admission, messages, moving
from rover_bus.ps.admission import Fence
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import LinkLost, Receive, Refresh
from rover_bus.ps.frame import BodyReader, unpack
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.messages import Fetch, Fetched
from rover_bus.ps.moving import Departure
from rover_bus.ps.patience import MOST_S, Patience
from rover_bus.ps.ranges import mask_of, members_of
from rover_bus.ps.routing import owner_of_slots
from rover_bus.ps.spec import Adagrad, Adam, Add, Dense, Growing, Hashed, Normal
from rover_bus.ps.store import BatchKey, ServersUnreachable
from rover_bus.ps.transfer import Apply, Ask, Transfer

TABLES = (
    Growing(name="item", width=4, optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Growing(name="user", width=4, optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Hashed(name="word", rows=10_000, width=2, optimizer=Adam(rate=0.1), init=Normal(0.1)),
    Dense(name="w", shape=(300, 70), optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Growing(name="count", width=1, optimizer=Add(), dtype="int64"),
)


def compress(owner):
    """Runs of slots with one owner."""
    edges = [0, *(at for at in range(1, len(owner)) if owner[at] != owner[at - 1]), len(owner)]
    return [(owner[first], first, end) for first, end in itertools.pairwise(edges)]


class Rollout:
    """Moves over the servers of a cluster, a step at a time, as a master and two servers would do them."""

    def __init__(self, cluster):
        self.cluster, self.moves = cluster, 0
        self.lost = set()  # numbers of requests whose answer is lost once

    def order(self, source, target, slots):
        self.moves += 1
        address = {s.index: s for s in self.cluster.routing.servers}
        for index, core in self.cluster.cores.items():
            address.setdefault(index, ServerAddress(index, core.state.incarnation, []))
        return MoveOrder(
            move=self.moves,
            plan=1,
            epoch=self.cluster.routing.epoch,
            slots=slots,
            source=address[source],
            target=address[target],
        )

    def begin(self, order):
        """Return a generator that fetches one answer at every `next`, and the transfer."""
        for index in (order.source.index, order.target.index):
            self.cluster.cores[index].follow_moves([order])
        transfer = Transfer(order, self.cluster.cores[order.target.index])
        return self.steps(transfer), transfer

    def steps(self, transfer):
        steps, result, error, asked = transfer.steps(), None, None, 0
        while True:
            try:
                effect = steps.throw(error) if error else steps.send(result)
            except StopIteration:
                return
            result = error = None
            match effect:
                case Apply(function):
                    try:
                        result = function()
                    except Refused as refused:
                        error = refused
                case Ask(server, frame):
                    asked += 1
                    result = carry(self.cluster.cores[server.index], frame)
                    if asked in self.lost:
                        error = LinkLost("lost by the test")
                    yield asked

    def routed(self, order):
        """The master decides: the slots belong to the target."""
        owner = [self.cluster.routing.servers[at].index for at in owner_of_slots(self.cluster.routing)]
        for first, end in order.slots:
            owner[first:end] = [order.target.index] * (end - first)
        cores = self.cluster.cores
        servers = [ServerAddress(i, cores[i].state.incarnation, []) for i in sorted(set(owner))]
        owners = compress(owner)
        old = self.cluster.routing
        self.cluster.routing = RoutingTable(
            history=old.history,
            generation=old.generation,
            epoch=old.epoch + 1,
            owners=owners,
            servers=servers,
        )
        return self.cluster.routing

    def decide(self, order):
        table = self.routed(order)
        for core in self.cluster.cores.values():
            core.route(table)
            core.follow_moves([])

    def move(self, source, target, slots, between=lambda: None):
        order = self.order(source, target, slots)
        steps, transfer = self.begin(order)
        for _ in steps:
            if not self.cluster.cores[source].state.frozen:
                between()
        assert transfer.status.phase == "ready", transfer.status
        self.decide(order)


def carry(core, frame):
    return unpack(bytearray(b"".join(core.answer(*unpack(bytearray(b"".join(frame)))))))


class Training:
    """The same batches into servers and into one process: after every one of them both must be equal, to the bit."""

    def __init__(self, cluster, seed=3):
        self.servers, self.alone = cluster.join(), LocalParameters(cluster.seed)
        self.rng, self.number = np.random.default_rng(seed), 0
        for parameters in (self.servers, self.alone):
            parameters.declare(*TABLES)

    def step(self):
        rng = self.rng
        ids = {
            "item": rng.integers(0, 500, 40),
            "user": rng.integers(0, 300, (10, 3)),
            "word": rng.integers(0, 10_000, 60),
        }
        draws = {}
        for parameters in (self.servers, self.alone):
            pulled = parameters.pull(ids)
            for name, values in sorted(pulled.items()):
                draws.setdefault(name, rng.standard_normal(values.shape).astype("f4"))
            add = {"count": (np.arange(self.number * 7, self.number * 7 + 20), 1)}
            parameters.push(BatchKey(0, self.number), {name: draws[name] for name in pulled}, add=add)
            parameters.flush()
        self.number += 1

    def check(self):
        there, here = self.servers.export(), self.alone.export()
        for name, whole in here.items():
            assert np.array_equal(there[name].values, whole.values), name
            assert np.array_equal(there[name].ids, whole.ids) if whole.ids is not None else True


@pytest.fixture
def moved(make_cluster):
    cluster = make_cluster(servers=3)
    return cluster, Rollout(cluster), Training(cluster)


def test_a_move_under_load_changes_nothing_but_the_place(moved):
    cluster, rollout, training = moved
    for _ in range(20):
        training.step()
    rollout.move(0, 1, [(0, 700), (1000, 1200)], training.step)
    rollout.move(1, 2, [(0, 300), (2000, 2100)], training.step)
    rollout.move(2, 0, [(100, 200), (3000, 4096)], training.step)
    for _ in range(10):
        training.step()
    training.check()
    assert {len(core.state.groups) for core in cluster.cores.values()} == {1}


def test_a_server_gives_everything_away_and_gets_it_back(moved):
    cluster, rollout, training = moved
    rows = [core.statistics()["rows"] for core in cluster.cores.values()]
    for _ in range(3):
        mine = [(first, end) for owner, first, end in cluster.routing.owners if owner == 2]
        rollout.move(2, 0, mine, training.step)
        assert [server.index for server in cluster.routing.servers] == [0, 1]
        while cluster.cores[2].sweep():
            pass
        assert cluster.cores[2].statistics()["rows"] == 0
        rollout.move(0, 2, mine, training.step)
    training.check()
    for _ in range(3):
        for core in cluster.cores.values():
            while core.sweep():
                pass
    after = [core.statistics()["rows"] for core in cluster.cores.values()]
    assert sum(after) >= sum(rows)
    assert sum(after) == sum(
        len(whole.values) if whole.ids is not None else -(-whole.values.size // 64)
        for whole in training.alone.export().values()
    ) + hidden_rows(cluster)


def hidden_rows(cluster):
    """Rows of the hashed table behind its end: 4096 slots of 3 rows for 10,000."""
    return 4096 * 3 - 10_000


def test_rows_that_left_make_room_for_others_and_memory_does_not_grow(moved):
    cluster, rollout, training = moved
    for _ in range(30):
        training.step()
    capacities = []
    for _ in range(6):
        for source, target in ((0, 1), (1, 0)):
            rollout.move(source, target, [(0, 1000)])
            while cluster.cores[source].sweep():
                pass
        capacities.append(
            [store.rows.count for core in cluster.cores.values() for _, store in core.tables.families()]
        )
    assert capacities[1] == capacities[-1]
    training.check()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_lost_and_whenever_a_move_ends_nothing_is_lost_or_twice(make_cluster, data):
    cluster = make_cluster(servers=3)
    rollout, training = Rollout(cluster), Training(cluster, data.draw(st.integers(0, 99)))
    training.step()
    for _ in range(data.draw(st.integers(1, 5))):
        source, target = data.draw(st.sampled_from([(a, b) for a in range(3) for b in range(3) if a != b]))
        mine = np.concatenate(
            [np.arange(f, e) for o, f, e in cluster.routing.owners if o == source] or [np.empty(0, int)]
        )
        if not len(mine):
            continue
        first = data.draw(st.integers(0, len(mine) - 1))
        some = mine[first : first + data.draw(st.integers(1, 2000))]
        rollout.lost = set(data.draw(st.lists(st.integers(1, 8), max_size=4)))
        order = rollout.order(
            source,
            target,
            [(first, end) for one, first, end in compress(np.isin(np.arange(4096), some).tolist()) if one],
        )
        steps, transfer = rollout.begin(order)
        until = data.draw(st.integers(1, 12) | st.just(100))
        for asked in steps:
            if data.draw(st.booleans()) and not cluster.cores[source].state.frozen:
                training.step()
            if asked >= until:
                break
        if transfer.status.phase == "ready":
            rollout.decide(order)
        else:
            for core in cluster.cores.values():
                core.follow_moves([])
        if data.draw(st.booleans()):
            for core in cluster.cores.values():
                core.sweep()
        training.step()
    training.check()


# --- what each rule is for ----------------------------------------------------------------------------------------------


def fetch(cluster, order, number, hand_over=False, target=None):
    state = cluster.cores[order.source.index].state
    target = target or (order.target.index, order.target.incarnation)
    request = Fetch(
        fence=Fence(state.history, state.generation, 0, state.incarnation),
        move=order.move,
        number=number,
        target=target,
        hand_over=hand_over,
    )
    header, body = carry(cluster.cores[order.source.index], messages.encode(request))
    return messages.decode_reply(header), body


class Greedy(Departure):
    """Takes new changes into a repeated answer."""

    def check(self, fetch):
        super().check(fetch)
        return True


@pytest.mark.parametrize(("departure", "complete"), [(Departure, True), (Greedy, False)])
def test_a_repeated_answer_takes_in_no_new_changes_or_they_are_lost(moved, monkeypatch, departure, complete):
    """The network doubles request 2, and the second answer reaches nobody. What changed in between must come with request 3."""
    monkeypatch.setattr("rover_bus.ps.core.Departure", departure)
    cluster, rollout, training = moved
    training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    next(steps)
    next(steps)
    training.step()
    fetch(cluster, order, 2)  # the double, late
    for _ in steps:
        pass
    assert transfer.status.phase == "ready"
    rollout.decide(order)
    if complete:
        training.check()
    else:
        with pytest.raises(AssertionError):
            training.check()


class Deaf(Departure):
    """Logs no changes."""

    def note(self, family, store, keys, places):
        pass


def test_without_the_change_log_updates_are_lost(moved, monkeypatch):
    monkeypatch.setattr("rover_bus.ps.core.Departure", Deaf)
    _, rollout, training = moved
    rollout.move(0, 1, [(0, 1000)], training.step)
    with pytest.raises(AssertionError):
        training.check()


class Warm(ServerCore):
    """Goes on taking pushes while it hands over."""

    def decide_push(self, state, fence, batch):
        return super().decide_push(msgspec.structs.replace(state, frozen={}), fence, batch)


@pytest.mark.parametrize("core", [ServerCore, Warm])
def test_pushes_wait_while_slots_are_handed_over_or_they_are_lost(make_cluster, core):
    cluster = make_cluster(servers=2, core=core)
    rollout, training = Rollout(cluster), Training(cluster)
    training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    steps, _ = rollout.begin(order)
    for _ in steps:
        pass
    if core is Warm:
        training.step()
        rollout.decide(order)
        with pytest.raises(AssertionError):
            training.check()
        return
    perform, waits = training.servers.perform, []

    def decide_after_three_waits(effect):
        if isinstance(effect, Refresh):
            waits.append(cluster.cores[0].statistics()["pushes"])
            if len(waits) == 3:
                rollout.decide(order)
        return perform(effect)

    training.servers.perform = decide_after_three_waits
    training.step()
    assert waits == waits[:1] * 3
    assert cluster.cores[0].statistics()["refused_moving"] == 3
    training.check()


def test_a_move_that_the_log_did_not_decide_leaves_everything_as_it_was(moved):
    cluster, rollout, training = moved
    training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    for _ in steps:
        pass
    assert transfer.status.phase == "ready"
    for core in cluster.cores.values():
        core.follow_moves([])
    training.step()
    training.check()
    assert not cluster.cores[1].state.arrived
    reply, _ = fetch(cluster, order, 9, hand_over=True)
    assert reply.code == messages.UNKNOWN_MOVE
    assert not cluster.cores[0].state.frozen


def test_only_the_target_that_the_master_named_gets_rows(moved):
    cluster, rollout, _ = moved
    order = rollout.order(0, 1, [(0, 1000)])
    cluster.cores[0].follow_moves([order])
    assert fetch(cluster, order, 1, target=(1, 99))[0].code == "stale_move"
    assert fetch(cluster, order, 2)[0].code == "stale_move"
    assert isinstance(fetch(cluster, order, 1)[0], Fetched)


def test_a_server_serves_no_slots_that_never_arrived_and_drops_none_that_nobody_fetched(moved):
    cluster, rollout, _ = moved
    table = rollout.routed(rollout.order(0, 1, [(0, 10)]))
    for index in (0, 1):
        with pytest.raises(Refused) as refused:
            cluster.cores[index].route(table)
        assert refused.value.code == "cannot_move"


class Forgetful(ServerCore):
    def take_in(self, move, fetched, body, last):
        return super().take_in(move, msgspec.structs.replace(fetched, closed_before=0), body, last)


@pytest.mark.parametrize(("core", "repeated"), [(ServerCore, True), (Forgetful, False)])
def test_slots_bring_what_their_source_had_closed_or_an_old_batch_counts_twice(make_cluster, core, repeated):
    """Epoch 0 is over at the source, which forgot its sets; the target has not heard of it. A zombie sends a batch of it again."""
    cluster = make_cluster(servers=2, core=core)
    rollout, worker, zombie = Rollout(cluster), cluster.join(), cluster.join()
    for each in (worker, zombie):
        each.declare(TABLES[4])
    ids = np.arange(100)
    worker.push(BatchKey(0, 1), {}, add={"count": (ids, 1)})
    worker.flush()
    cluster.cores[0].close_epochs(1)
    rollout.move(0, 1, [(0, 1000)])
    zombie.push(BatchKey(0, 1), {}, add={"count": (ids, 1)})
    zombie.flush()
    assert (worker.export()["count"].values.max() == 1) == repeated


def test_a_push_that_only_one_server_had_is_applied_to_the_moved_slots_once(moved):
    """It reached the target before the hand-over, and its source never: then the target applies it to what has moved, alone."""
    cluster, rollout, _ = moved
    worker = cluster.join()
    worker.declare(TABLES[4])
    ids = np.arange(2000)
    original = worker.perform

    def only_to_target(effect):
        if type(effect).__name__ == "Send":
            core = cluster.cores[worker.routing.servers[effect.position].index]
            if core.state.index != 1:
                raise LinkLost("cut")
        return original(effect)

    worker.perform = only_to_target
    worker.exchange._patience_s = 0.3
    with pytest.raises(ServersUnreachable):
        worker.push(BatchKey(0, 5), {}, add={"count": (ids, 1)})
    worker.perform = original
    rollout.move(0, 1, [(0, 1365)])
    assert len(cluster.cores[1].state.groups) <= 2
    worker.flush()
    assert worker.export()["count"].values.tolist() == [[1]] * 2000
    assert len(cluster.cores[1].state.groups) == 1


def test_slots_that_were_on_their_way_when_the_job_went_back_are_dropped_by_who_survives(moved):
    """Everything had arrived, the log had not decided, and the source was lost: what came belongs to the past (P8, P11)."""
    cluster, rollout, training = moved
    training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    for _ in steps:
        pass
    assert transfer.status.phase == "ready"
    survivor = cluster.cores[1]
    mine = survivor.tables.owned
    survivor.admit(history=0, generation=1, state="kept at generation 1", seed=7)
    assert admission.keeps(survivor.state.admitted)
    table = msgspec.structs.replace(cluster.routing, generation=1, epoch=1)
    survivor.route(table)
    while survivor.sweep():
        pass
    assert not survivor.state.arrived
    assert survivor.tables.owned.tolist() == mine.tolist()
    item = survivor.tables.store(("item",))
    assert not len(item.scan(np.arange(1000), 0, 10**6).keys.keys)
    survivor.begin_arrival(rollout.order(0, 1, [(0, 1000)]))  # and they may come again


def test_a_table_that_the_source_does_not_know_yet_makes_the_move_begin_again(moved):
    cluster, rollout, training = moved
    extra = Hashed(name="late", rows=5000, width=1, optimizer=Add(), dtype="int64")
    cluster.cores[1].tables.declare([extra])
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    for _ in steps:
        pass
    assert transfer.status.phase == "failed"
    assert "late" in transfer.status.detail
    for core in cluster.cores.values():
        core.follow_moves([])
    cluster.cores[0].tables.declare([extra])
    rollout.move(0, 1, [(0, 1000)], training.step)
    training.check()


def test_a_table_declared_when_the_copy_is_through_brings_what_it_was_trained(moved):
    cluster, rollout, training = moved
    word = next(table for table in TABLES if table.name == "word")
    late = msgspec.structs.replace(word, name="late", rows=6000)
    trained = []

    def between():
        training.step()
        (departure,) = cluster.cores[0]._departing.values()
        if departure.copied:
            gradients = {}
            for parameters in (training.servers, training.alone):
                parameters.declare(late)
                pulled = parameters.pull({"late": np.arange(6000)})
                gradients.setdefault("late", training.rng.standard_normal(pulled["late"].shape).astype("f4"))
                parameters.push(BatchKey(1, len(trained)), gradients)
                parameters.flush()
            trained.append(True)

    rollout.move(0, 1, [(0, 1000)], between)
    assert trained, "nothing was trained after the copy: this test tests nothing"
    training.check()


def test_a_truncated_answer_writes_nothing_that_counts(moved):
    cluster, rollout, training = moved
    training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    for index in (0, 1):
        cluster.cores[index].follow_moves([order])
    cluster.cores[1].begin_arrival(order)
    reply, body = fetch(cluster, order, 1)
    with pytest.raises(Exception, match="lacks an array"):
        cluster.cores[1].take_in(1, reply, BodyReader(memoryview(body)[: len(body) // 2 // 64 * 64]), False)
    for core in cluster.cores.values():
        core.follow_moves([])
    training.step()
    training.check()


def test_the_change_log_names_each_row_once(make_cluster):
    log = moving.ChangeLog(np.ones(4096, bool))
    cluster = make_cluster(servers=1)
    training = Training(cluster)
    training.step()
    tables = cluster.cores[0].tables
    store = tables.store(("item",))
    for _ in range(moving.MERGE_AT + 3):
        ids, places = store.listing("item")
        log.note(
            tables.catalogue.families["item"],
            store,
            moving.Keys(("item",), np.array([len(ids)]), ids),
            places,
        )
    [part] = log.drain()
    assert part.keys.keys.tolist() == store.listing("item")[0].tolist()
    assert log.drain() == []


def test_a_worker_keeps_its_connections_when_slots_move(moved):
    _, rollout, training = moved
    training.step()
    assert training.servers.made == 3
    for source, target in ((0, 1), (1, 2), (2, 0)):
        rollout.move(source, target, [(0, 1000)])
        training.step()
    assert training.servers.made == 3
    training.check()


def test_a_worker_connects_only_to_the_server_that_joins(moved):
    cluster, rollout, training = moved
    mine = [(first, end) for owner, first, end in cluster.routing.owners if owner == 2]
    rollout.move(2, 0, mine)
    training.step()
    rollout.move(0, 2, mine)
    training.step()
    assert training.servers.made == 4
    training.check()


def test_a_connection_that_broke_is_made_again_with_all_others(moved):
    _, rollout, training = moved
    training.step()
    rollout.move(0, 1, [(0, 1000)])
    lost = iter([True])
    training.servers.lose = lambda effect: isinstance(effect, Receive) and next(lost, False)
    training.step()
    assert training.servers.made == 6
    training.check()


@given(
    wanted=st.lists(st.tuples(st.integers(0, 4095), st.integers(1, 4096)), max_size=12),
    slots=st.lists(st.integers(0, 4095), max_size=50),
)
def test_slots_are_found_by_comparison_as_by_looking_each_up(wanted, slots):
    mask = mask_of((first, max(first + 1, end)) for first, end in wanted)
    some = np.array(slots, np.int16)
    assert np.array_equal(members_of(some, mask), mask[some])


def test_rows_that_changed_are_sent_again_in_pieces_and_not_before_the_copy_has_reached_them(
    moved, monkeypatch
):
    monkeypatch.setattr("rover_bus.ps.transfer.FEW_ROWS", 10)
    monkeypatch.setattr("rover_bus.ps.transfer.CHUNK_BYTES", 2048)
    cluster, rollout, training = moved
    for _ in range(5):
        training.step()
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    for asked in steps:
        if asked < 40 and not cluster.cores[0].state.frozen:
            training.step()
    assert transfer.status.phase == "ready"
    assert asked > 40
    rollout.decide(order)
    training.step()
    training.check()


def test_a_worker_goes_before_rows_that_move_but_they_are_not_forgotten():
    patience, done = Patience(), []
    patience.note_answer(0.0, gave_values=True)
    for name in ("first", "second", "third"):
        patience.put(partial(done.append, name), lambda: None, 0.001)
    assert patience.pause_s(0.001, 1.0) == pytest.approx(MOST_S)
    patience.take(0.001).do()  # a worker was just given values
    assert patience.take(0.002) is None  # its push may come any moment
    patience.note_answer(0.0025, gave_values=False)
    assert patience.take(0.0025) is None  # its next pull is on its way
    patience.note_answer(0.003, gave_values=True)
    patience.take(0.003).do()
    assert patience.take(0.004) is None
    patience.take(0.001 + MOST_S).do()  # it has waited long enough
    assert done == ["first", "second", "third"]


def test_rows_that_move_use_the_first_half_of_the_time_that_a_worker_usually_takes():
    patience, done = Patience(), []
    for step in range(100):  # asks 4 ms after it was given values
        patience.note_answer(step * 0.005, gave_values=True)
        patience.note_request(step * 0.005 + 0.004)
    patience.note_answer(1.0, gave_values=True)
    for name in ("first", "second", "third"):
        patience.put(partial(done.append, name), lambda: None, 1.0)
    patience.take(1.0005).do()
    assert patience.pause_s(1.001, 1.0) == 0.0
    patience.take(1.0015).do()
    assert patience.take(1.0025) is None  # what begins now may not be done in time
    patience.note_request(1.003)
    assert patience.take(1.003) is None
    assert done == ["first", "second"]


def test_without_workers_nothing_waits():
    patience, done = Patience(), []
    patience.put(lambda: done.append("at once"), lambda: None, 5.0)
    assert patience.pause_s(5.0, 1.0) == 0.0
    patience.take(5.0).do()
    assert done == ["at once"]
    assert patience.pause_s(5.0, 1.0) == 1.0


def test_what_waits_when_a_server_ends_is_dropped():
    patience, dropped = Patience(), []
    patience.put(lambda: None, lambda: dropped.append(1), 0.0)
    patience.drop()
    assert dropped == [1]
    assert patience.take(9.0) is None


def test_the_kind_of_a_request_is_seen_without_reading_it():
    fence = Fence(0, 0, 0, 1)
    fetch = Fetch(fence=fence, move=1, number=1, target=(1, 1))
    kinds = {
        "values": messages.Pull(fence=fence),
        "leisurely": fetch,
        "hand-over": msgspec.structs.replace(fetch, hand_over=True),
        "push": messages.Push(fence=fence, epoch=0, number=1),
    }
    headers = {name: unpack(bytearray(b"".join(messages.encode(kind))))[0] for name, kind in kinds.items()}
    assert [name for name, header in headers.items() if messages.asks_for_values(header)] == ["values"]
    assert [name for name, header in headers.items() if messages.is_leisurely(header)] == ["leisurely"]
    assert not messages.is_leisurely(b"")
    assert not messages.is_leisurely(bytes(headers["leisurely"])[:8])
