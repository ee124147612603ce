"""What each rule of a move is for: the history that breaks without it, and what every other party may do meanwhile."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from moving_slots import TABLES, Rollout, Training, carry

from rover_bus.events.errors import InputError, Refused
from rover_bus.events.starts import ServerStart
from rover_bus.ps import admission, messages, moving
from rover_bus.ps.admission import Fence
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import LinkLost, Refresh
from rover_bus.ps.frame import BodyReader
from rover_bus.ps.messages import Fetch, Fetched
from rover_bus.ps.moving import Arrival, Departure, RowLog
from rover_bus.ps.spec import Adagrad, Add, Dense, Growing, Normal
from rover_bus.ps.store import BatchKey, ServersUnreachable


def fetch(cluster, order, number, hand_over=False, target=None):
    state = cluster.cores[order.source.index].state
    target = target or (order.target.index, order.target.incarnation)
    request = Fetch(
        fence=Fence(state.timeline, state.generation, 0, state.incarnation),
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


class Hasty(Arrival):
    """Takes every row for one that never came before."""

    def take_in(self, fetched, body, tables, last):
        super().take_in(msgspec.structs.replace(fetched, rounds=0), body, tables, False)


@pytest.mark.parametrize(("arrival", "complete"), [(Arrival, True), (Hasty, False)])
def test_rows_that_come_again_are_looked_up_or_they_are_here_twice(moved, monkeypatch, arrival, complete):
    """Nobody looks for the rows of the copy, because each is sent once; those that changed since lie where the copy was written."""
    monkeypatch.setattr("rover_bus.ps.core.Arrival", arrival)
    _, rollout, training = moved
    for _ in range(3):
        training.step()
    rollout.move(0, 1, [(0, 1000)], training.step)
    if complete:
        training.check()
    else:
        with pytest.raises(InputError, match="is in two parts"):
            training.check()


class Unasking(RowLog):
    """Takes a row that the copy has not met for one that it will meet, in growing tables, too."""

    def _ours(self, places):
        return places[self._copied[places]]


@pytest.mark.parametrize(("log", "complete"), [(RowLog, True), (Unasking, False)])
def test_a_new_row_in_an_old_place_is_sent_although_the_copy_has_passed_it_or_it_is_lost(
    moved, monkeypatch, log, complete
):
    monkeypatch.setattr("rover_bus.ps.moving.RowLog", log)
    cluster, rollout, training = moved
    for _ in range(20):
        training.step()
    rollout.move(0, 1, [(0, 700)])
    while cluster.cores[0].sweep():
        pass
    monkeypatch.setattr("rover_bus.ps.transfer.CHUNK_BYTES", 1024)
    rollout.move(0, 2, [(700, 1300)], training.step)
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


MOVING = np.arange(1000)


def arrive(rollout, most_answers=10**6):
    """Bring slots 0 to 1000 from server 0 to server 1, as far as so many answers go; no routing follows."""
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    for _ in itertools.islice(steps, most_answers):
        pass
    return order, transfer.status.phase


def survive(core, generation=1):
    core.admit(timeline=0, generation=generation, start=ServerStart("kept", generation), seed=7)
    assert core.state.start == ServerStart("kept", generation)


def rows_in(core, slots):
    """Every row of some slots with its whole state, by table and key."""
    found = {}
    for _, store in core.tables.families():
        names, counts, ids = store.scan(slots, 0, 10**6).keys
        owners = np.repeat(names, counts).tolist()
        pieces = store.rows.copy_out(store.scan(slots, 0, 10**6).places)
        for at, key in enumerate(zip(owners, ids.tolist(), strict=True)):
            found[key] = [piece[at].tolist() for piece in pieces]
    return found


def test_slots_that_were_on_their_way_when_the_job_went_back_are_dropped_by_who_survives(moved):
    """Everything had arrived, the log had not decided, and the source was lost: the first routing says that it is not ours (P8)."""
    cluster, rollout, training = moved
    training.step()
    assert arrive(rollout)[1] == "ready"
    survivor = cluster.cores[1]
    mine = survivor.tables.owned
    survive(survivor)
    survivor.route(msgspec.structs.replace(cluster.routing, generation=1, epoch=1))
    while survivor.sweep():
        pass
    assert not survivor.state.arrived
    assert survivor.tables.owned.tolist() == mine.tolist()
    assert not len(survivor.tables.store(("item",)).scan(MOVING, 0, 10**6).keys.keys)
    survivor.begin_arrival(rollout.order(0, 1, [(0, 1000)]))  # and they may come again


@pytest.mark.parametrize("rewinds", [1, 2])
def test_a_survivor_keeps_slots_that_the_log_has_given_it_though_it_never_heard_so(moved, rewinds):
    """P11: the routing was logged and the source lost before the target heard; the job may go back again before it is routed."""
    cluster, rollout, training = moved
    training.step()
    order, phase = arrive(rollout)
    assert phase == "ready"
    source, survivor = cluster.cores[0], cluster.cores[1]
    expected = rows_in(source, MOVING)
    assert len({table for table, _ in expected}) == len(TABLES)
    for generation in range(1, rewinds + 1):
        survive(survivor, generation)
    survivor.route(msgspec.structs.replace(rollout.routed(order), generation=rewinds, epoch=1))
    assert np.isin(MOVING, survivor.tables.owned).all()
    assert rows_in(survivor, MOVING) == expected
    assert all(admission.holds(group, BatchKey(0, 0)) for group in survivor.state.groups)


def test_what_had_not_arrived_whole_is_dropped_at_once(moved):
    cluster, rollout, training = moved
    training.step()
    order, phase = arrive(rollout, most_answers=1)
    assert phase == "copying"
    survive(cluster.cores[1])
    with pytest.raises(Refused, match="has not kept"):
        cluster.cores[1].route(msgspec.structs.replace(rollout.routed(order), generation=1, epoch=1))


def test_an_order_of_a_former_generation_brings_nothing_before_the_first_routing(moved):
    cluster, rollout, _ = moved
    survive(cluster.cores[1])
    with pytest.raises(Refused, match="another generation"):
        cluster.cores[1].begin_arrival(rollout.order(0, 1, [(0, 1000)]))


def test_tables_that_the_source_does_not_know_yet_have_their_first_values_in_slots_that_arrive(moved):
    """Only the target has room for them, while the source has too many slots (docs/design/0046)."""
    cluster, rollout, training = moved
    word = next(table for table in TABLES if table.name == "word")
    late = (
        msgspec.structs.replace(word, name="late", rows=6000),
        Dense(name="later", shape=(200, 64), optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
        Growing(name="latest", width=1, optimizer=Add(), dtype="int64"),
    )
    rollout.move(1, 0, [(1400, 2000)], training.step)  # leaves places in the target with what was trained
    cluster.cores[1].tables.declare(late)
    rollout.move(0, 1, [(0, 1000)], training.step)
    for parameters in (training.servers, training.alone):
        parameters.declare(*late)
    training.step()
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
