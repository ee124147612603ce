"""Slots that move between servers while workers push: rows, optimizer state and applied sets go together, whatever is repeated."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moving_slots import TABLES, Rollout, Training, compress

from rover_bus.ps import transfer
from rover_bus.ps.catalogue import Keys
from rover_bus.ps.exchange import Receive
from rover_bus.ps.moving import Departure, MovingPart
from rover_bus.ps.ranges import mask_of, members_of
from rover_bus.ps.transfer import CHUNK_BYTES, LARGEST_CHUNK, TransferPace


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


def test_a_move_that_began_before_any_table_was_declared_takes_what_was_trained_since(make_cluster):
    cluster = make_cluster(servers=2)
    rollout = Rollout(cluster)
    order = rollout.order(0, 1, [(0, 1000)])
    steps, transfer = rollout.begin(order)
    next(steps)
    training = Training(cluster)
    training.step()
    for _ in steps:
        if not cluster.cores[0].state.frozen:
            training.step()
    assert transfer.status.phase == "ready"
    rollout.decide(order)
    training.step()
    training.check()


def test_a_source_that_answers_late_is_asked_for_more_at_a_time(moved, monkeypatch):
    _, rollout, training = moved
    training.step()
    wanted, advance = [], Departure.advance

    def watched(departure, fetch, tables):
        wanted.append(fetch.most_bytes)
        advance(departure, fetch, tables)

    monkeypatch.setattr(Departure, "advance", watched)
    rollout.move(0, 1, [(0, 300)], training.step)
    assert set(wanted) == {CHUNK_BYTES}
    wanted.clear()
    rollout.answer_s = 0.05
    rollout.move(0, 2, [(300, 1200)], training.step)
    assert wanted[:3] == [CHUNK_BYTES, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES]
    assert max(wanted) == LARGEST_CHUNK
    training.check()


def test_no_pace_is_kept_for_a_source_that_is_late_again_and_again(moved, monkeypatch):
    _, rollout, training = moved
    training.step()
    paces = []

    def pace(seconds):
        paces.append(seconds)
        return TransferPace(seconds)

    monkeypatch.setattr(transfer, "TransferPace", pace)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 2048)
    monkeypatch.setattr(transfer, "LARGEST_CHUNK", 8192)
    rollout.move(0, 1, [(0, 300)], training.step)
    assert min(paces) > 0
    paces.clear()
    rollout.answer_s = 0.05
    rollout.move(0, 2, [(300, 1200)], training.step)
    assert paces[0] > 0, "one late answer may be chance"
    assert set(paces[1:]) == {0.0}, "workers wait for a slow source anyway"
    training.check()


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


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    first=st.integers(0, 32),
    end=st.none() | st.integers(0, 32),
)
def test_some_of_the_rows_of_an_answer_keep_their_tables_and_places(counts, first, end):
    names = tuple(f"t{at}" for at in range(len(counts)))
    rows = [(name, key) for name, count in zip(names, counts, strict=True) for key in range(count)]
    keys = Keys(names, np.array(counts), np.array([key for _, key in rows], np.int64))
    some = MovingPart(TABLES[0], keys, np.arange(len(rows))).some(slice(first, end))
    found = zip(np.repeat(some.keys.names, some.keys.counts), some.keys.keys, strict=True)
    assert list(found) == rows[first:end]
    assert some.places.tolist() == list(range(len(rows)))[first:end]


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
