"""Parameters as a training loop sees them: one process and several servers must not differ."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rover_bus.events.errors import InputError, NotEnoughMemory, Refused
from rover_bus.ps import spec
from rover_bus.ps.catalogue import Keys, TableEntry
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import Receive, Send
from rover_bus.ps.growing import GrowingStore
from rover_bus.ps.hashed import HashedStore
from rover_bus.ps.hashing import SLOTS, salt_of
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.parts import read_header, read_parts, write_part
from rover_bus.ps.rows import RowBudget
from rover_bus.ps.storage import only
from rover_bus.ps.store import BatchKey

TABLES = (
    spec.Growing(name="user", width=8, optimizer=spec.Adagrad(rate=0.1), init=spec.Normal(0.1)),
    spec.Growing(name="item", width=8, optimizer=spec.Adagrad(rate=0.1), init=spec.Normal(0.1)),
    spec.Hashed(
        name="zip", rows=300, width=8, optimizer=spec.Adam(rate=0.01), init=spec.Uniform(0.1), l2=1e-3
    ),
    spec.Hashed(name="bias", rows=77, width=1, optimizer=spec.RowAdagrad(rate=0.1)),
    spec.Hashed(name="mixed", rows=500, width=2, optimizer=spec.Sgd(), mixed=True),
    spec.Dense(name="w", shape=(130, 300), optimizer=spec.Adam(), init=spec.Uniform(0.2)),
    spec.Dense(name="b", shape=(7,), optimizer=spec.Adam(), init=spec.Uniform(0.2)),
    spec.Dense(name="c", shape=(), optimizer=spec.Sgd()),
    spec.Hashed(name="witness", rows=1000, width=1, optimizer=spec.Add(), dtype="int32"),
)


def batch_of(rng):
    return {
        "user": rng.integers(-(2**63), 2**63 - 1, 12) if rng.random() < 0.5 else rng.integers(0, 40, 12),
        "item": rng.integers(0, 60, (6, 3)),
        "zip": rng.integers(-1000, 1000, 30),
        "bias": rng.integers(0, 77, 20),
        "mixed": rng.integers(0, 10**12, 5),
    }


def train(parameters, seed=1, steps=12):
    """Train on random batches; return everything that was pulled."""
    rng, pulls = np.random.default_rng(seed), []
    for number in range(steps):
        pulled = parameters.pull(batch_of(rng))
        pulls.append(dict(pulled))
        gradients = {
            name: rng.standard_normal(values.shape).astype("f4") for name, values in sorted(pulled.items())
        }
        if number % 3 == 0:
            del gradients["user"], gradients["b"]
        ones = {"witness": (np.arange(number * 50, number * 50 + 50), 1)}
        parameters.push(BatchKey(0, number), gradients, rate_scale=1 / (1 + number), add=ones)
    parameters.flush()
    return pulls


def assert_equal_exports(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.array_equal(ours[name].values, theirs[name].values), name
        assert (ours[name].ids is None) == (theirs[name].ids is None)
        if ours[name].ids is not None:
            assert np.array_equal(ours[name].ids, theirs[name].ids), name


@pytest.fixture
def local():
    parameters = LocalParameters(seed=7)
    parameters.declare(*TABLES)
    return parameters


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_compute_to_the_bit_what_one_process_computes(make_cluster, local, servers):
    remote = make_cluster(servers).join()
    remote.declare(*TABLES)
    for ours, theirs in zip(train(local), train(remote), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert_equal_exports(local.export(), remote.export())
    ids = np.array([3, 3, 39, 10**9])
    assert np.array_equal(local.read("user", ids), remote.read("user", ids))
    assert np.array_equal(local.read("w"), remote.read("w"))
    assert [ack.batch for ack in remote.acknowledged()] == [BatchKey(0, number) for number in range(12)]
    assert local.export()["witness"].values.sum() == 600


@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_a_connection_lost_at_any_moment_changes_nothing(make_cluster, local, in_flight):
    """Every effect in turn is lost once: requests before they arrive, replies after they took effect."""
    train(local, steps=4)
    expected, effects = local.export(), []
    counting = make_cluster().join(in_flight=in_flight)
    counting.lose = lambda effect: effects.append(effect) or False
    counting.declare(*TABLES)
    train(counting, steps=4)
    assert len(effects) > 20
    for moment in range(len(effects)):
        cluster, seen = make_cluster(), []
        worker = cluster.join(in_flight=in_flight)

        def lose(effect, moment=moment, seen=seen):
            seen.append(effect)
            return len(seen) == moment + 1 and isinstance(effect, Send | Receive)

        worker.lose = lose
        worker.declare(*TABLES)
        train(worker, steps=4)
        assert_equal_exports(expected, worker.export())
        assert len(worker.acknowledged()) == 4


def test_pulls_do_not_allocate_and_the_first_push_does(cluster):
    worker = cluster.join()
    worker.declare(TABLES[0])
    first = worker.pull({"user": np.arange(1000)})["user"]
    assert sum(core.tables.rows for core in cluster.cores.values()) == 0
    assert np.array_equal(worker.pull({"user": np.arange(1000)})["user"], first)
    worker.push(BatchKey(0, 0), {"user": np.zeros_like(first)})
    worker.flush()
    assert sum(core.tables.rows for core in cluster.cores.values()) == 1000
    assert np.array_equal(worker.pull({"user": np.arange(1000)})["user"], first)


def test_first_values_are_the_same_after_a_restart_and_on_any_number_of_servers(make_cluster):
    pulls = []
    for servers in (2, 2, 3):
        worker = make_cluster(servers).join()
        worker.declare(*reversed(TABLES) if servers == 3 else TABLES)
        pulls.append(worker.pull(batch_of(np.random.default_rng(2))))
    assert all(np.array_equal(pulls[0][name], other[name]) for other in pulls[1:] for name in pulls[0])
    other_seed = make_cluster(seed=8).join()
    other_seed.declare(*TABLES)
    assert not np.array_equal(other_seed.read("w"), pulls[0]["w"])


def test_staleness_counts_the_batches_of_others_between_pull_and_push(cluster):
    slow, quick = cluster.join(), cluster.join()
    for worker in (slow, quick):
        worker.declare(TABLES[0])
    pulled = slow.pull({"user": np.array([1])})
    for number in range(3):
        got = quick.pull({"user": np.array([1])})
        quick.push(BatchKey(0, number), {"user": np.ones_like(got["user"])})
    quick.flush()
    slow.push(BatchKey(0, 9), {"user": np.ones_like(pulled["user"])})
    slow.flush()
    assert slow.acknowledged()[0].staleness_batches == 3
    assert [ack.staleness_batches for ack in quick.acknowledged()] == [0, 0, 0]
    for counters in quick.statistics().values():
        assert counters["staleness_batches_max"] == 3
        assert counters["staleness_batches"] == 3 / 4


def test_a_worker_alone_is_never_stale_whatever_is_in_flight(make_cluster):
    worker = make_cluster().join(in_flight=1)
    worker.declare(*TABLES)
    train(worker)
    assert {ack.staleness_batches for ack in worker.acknowledged()} == {0}


def test_an_older_pull_can_be_pushed_by_name(cluster, local):
    worker = cluster.join(in_flight=2)
    worker.declare(*TABLES)
    for parameters in (worker, local):
        pulls = [parameters.pull({"user": np.array([number, 5])}) for number in (1, 2)]
        for number, pulled in enumerate(pulls):
            parameters.push(BatchKey(0, number), {"user": np.ones((2, 8), "f4")}, pulled=pulled)
        parameters.flush()
    assert_equal_exports(local.export(), worker.export())


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize(
    ("added", "words"),
    [
        (2**40, "not int32"),
        (np.array([1.0, 0.5, 1.0]), "not int32"),
        (np.nan, "not int32"),
        (np.array(["1"] * 3), "numbers are needed"),
        (np.ones(2), "does not spread"),
    ],
)
def test_what_an_integer_table_does_not_hold_is_refused_in_words_and_adds_nothing(
    cluster, local, where, added, words
):
    parameters = local if where == "local" else cluster.join()
    parameters.declare(*TABLES)
    before = parameters.export()
    with pytest.raises(InputError, match=words):
        parameters.push(BatchKey(0, 0), {}, add={"witness": (np.arange(3), added)})
    parameters.push(BatchKey(0, 1), {}, add={"witness": (np.arange(3), np.zeros(3, "i8"))})
    parameters.flush()
    assert_equal_exports(before, parameters.export())


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_second_declaration_is_refused_with_the_difference(cluster):
    first, second = cluster.join(), cluster.join()
    first.declare(TABLES[0])
    first.declare(TABLES[0])
    with pytest.raises(Refused, match="width: 8 here, 16 there") as refused:
        second.declare(
            spec.Growing(name="user", width=16, optimizer=spec.Adagrad(rate=0.1), init=spec.Normal(0.1))
        )
    assert refused.value.code == "differs"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (spec.Growing(name="t", width=0, optimizer=spec.Sgd()), "width"),
        (spec.Growing(name="t", width=4, optimizer=spec.Sgd(rate=-1.0)), "rate"),
        (spec.Growing(name="t", width=4, optimizer=spec.Sgd(), dtype="int32"), "only the optimizer Add"),
        (spec.Hashed(name="t", rows=2**40, width=4, optimizer=spec.Sgd()), "use a Growing table"),
        (spec.Dense(name="t", shape=(4,), optimizer=spec.RowAdagrad()), "use Adagrad"),
        (spec.Dense(name="t", shape=(4, 0), optimizer=spec.Sgd()), "shape"),
        (spec.Growing(name="t", width=1, optimizer=spec.Add(), dtype="int64", l2=0.1), "need float32"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Sgd(), init=spec.Normal(1e124)), "std"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Sgd(), init=spec.Uniform(np.inf)), "scale"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Sgd(), init=spec.Constant(np.nan)), "value"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Adagrad(initial=1e39)), "initial"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Adam(epsilon=1e-60)), "epsilon"),
        (spec.Dense(name="t", shape=(1,), optimizer=spec.Sgd(), l2=1e39), "l2"),
        (
            spec.Dense(name="t", shape=(1,), optimizer=spec.Add(), dtype="int32", init=spec.Constant(3e9)),
            "not one",
        ),
        (
            spec.Dense(name="t", shape=(1,), optimizer=spec.Add(), dtype="int64", init=spec.Constant(0.5)),
            "not one",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_words(local, table, words):
    with pytest.raises(InputError, match=words):
        local.declare(table)


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize(
    ("ids", "gradients", "words"),
    [
        ({"nobody": [1]}, {}, "not declared"),
        ({"w": [1]}, {}, "pulled whole"),
        ({"user": [1.5]}, {}, "must be integers"),
        ({"user": [1]}, {"user": np.ones((2, 8))}, "shape"),
        ({"user": [1]}, {"item": np.ones((1, 8))}, "did not ask for"),
        ({}, {"w": np.ones((3, 3))}, "shape"),
        ({"user": [1]}, {"user": np.full((1, 8), np.nan)}, "not all finite"),
        ({}, {"b": np.full(7, np.inf)}, "not all finite"),
        ({}, {"b": np.full(7, 1e300)}, "not all finite"),
    ],
)
def test_a_wrong_batch_is_refused_in_words_and_trains_nothing(cluster, local, where, ids, gradients, words):
    parameters = local if where == "local" else cluster.join()
    parameters.declare(*TABLES)
    before = parameters.export()

    def step():
        parameters.pull({name: np.array(values) for name, values in ids.items()})
        parameters.push(BatchKey(0, 0), gradients)

    with pytest.raises(InputError, match=words):
        step()
    parameters.flush()
    assert_equal_exports(before, parameters.export())


def test_memory_beyond_the_limit_is_refused_and_the_worker_goes_on(make_cluster):
    worker = make_cluster(core=lambda index, life: ServerCore(index, life, memory_limit_bytes=1 << 20)).join()
    with pytest.raises(NotEnoughMemory, match="more servers"):
        worker.declare(spec.Hashed(name="huge", rows=10**6, width=64, optimizer=spec.Sgd()))
    worker = worker.cluster.join()
    worker.declare(TABLES[0])
    worker.pull({"user": np.arange(10)})
    worker.push(BatchKey(0, 0), {"user": np.ones((10, 8), "f4")})
    worker.pull({"user": np.arange(10**5)})
    worker.push(BatchKey(0, 1), {"user": np.ones((10**5, 8), "f4")})
    with pytest.raises(NotEnoughMemory):
        worker.flush()
    worker.pull({"user": np.arange(10)})
    worker.push(BatchKey(0, 2), {"user": np.ones((10, 8), "f4")})
    worker.flush()
    assert [ack.batch.number for ack in worker.acknowledged()] == [0, 2]
    assert len(worker.export()["user"].ids) == 10


# --- the end of a job ---------------------------------------------------------------------------------------------------


def test_the_parts_of_all_servers_are_the_model(cluster, local, tmp_path):
    worker = cluster.join()
    worker.declare(*TABLES)
    train(local)
    train(worker)
    paths = [tmp_path / "final" / f"{index}.npz" for index in cluster.cores]
    for core, path in zip(cluster.cores.values(), paths, strict=True):
        assert write_part(core, path) == path.stat().st_size
    assert sorted(p.name for p in (tmp_path / "final").iterdir()) == ["0.npz", "1.npz"]
    assert_equal_exports(local.export(), read_parts(paths))
    assert read_parts(paths, only="witness").keys() == {"witness"}
    assert read_header(paths[1]).incarnation == 2
    with pytest.raises(InputError, match="not one whole model"):
        read_parts(paths[:1])
    with pytest.raises(InputError, match="no table 'x'"):
        read_parts(paths, only="x")


def test_a_damaged_part_is_named(make_cluster, tmp_path):
    cluster, path = make_cluster(1), tmp_path / "part.npz"
    worker = cluster.join()
    worker.declare(TABLES[5])
    write_part(cluster.cores[0], path)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    for damaged in (bytes(whole), bytes(whole[:1000]), b"", b"foreign"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"part\.npz"):
            read_parts([path], only="w")


def test_places_of_rows_that_left_are_used_again_piece_by_piece_and_kept_when_memory_is_short(monkeypatch):
    monkeypatch.setattr("rover_bus.ps.growing.SWEEP_ROWS", 100)
    family = spec.Growing(name="-", width=4, optimizer=spec.Sgd())
    store = GrowingStore(family, np.arange(SLOTS), 0, RowBudget(limit_bytes=5000 * 16))
    store.add(TableEntry(msgspec.structs.replace(family, name="item"), 0, salt_of("item")))

    def push(first, end):
        ids = np.arange(first, end)
        keys = Keys(("item",), np.array([len(ids)]), ids)
        keys = only(store._slots_here.owned[store.slots(keys)], keys)
        store.rows.check_budget(len(keys.keys))
        store.make_room(len(keys.keys))
        store.allocate(keys, store.locate(keys))
        return len(keys.keys)

    assert push(0, 4000) == store.rows.count == 4000
    store.drop(np.arange(2000))
    while store.sweep():
        pass
    left = store.rows.used
    with pytest.raises(NotEnoughMemory):
        push(10_000, 20_000)
    assert store.rows.used == left
    came = push(20_000, 23_000)
    assert store.rows.count == 4000
    assert store.rows.used == left + came
    assert len(np.unique(store.listing("item")[1])) == left + came


@pytest.mark.parametrize("seed", range(5))
def test_places_of_hashed_rows_are_named_as_the_rows_that_lie_there(seed):
    rng = np.random.default_rng(seed)
    slots = rng.permutation(SLOTS)
    store = HashedStore(
        spec.Hashed(name="-", rows=1, width=2, optimizer=spec.Sgd()), np.sort(slots[:2000]), seed, RowBudget()
    )
    lengths = {"long": 30_000, "short": 50, "one": 1, "deep": 12_289}
    for tag, (name, rows) in enumerate(lengths.items()):
        entry = TableEntry(
            spec.Hashed(name=name, rows=rows, width=2, optimizer=spec.Sgd()), tag, salt_of(name)
        )
        store.make_room_to_add(entry)
        store.add(entry)
        if name == "short":  # some leave, others come into their places
            store.drop(slots[:900])
            store.make_room_for(slots[3000:3500])
            store.hold(slots[3000:3500])
            store.own(slots[3000:3500])
    keys, places = store.named(np.arange(store.rows.count))
    assert keys.names == tuple(lengths)
    by_name = zip(np.split(keys.keys, np.cumsum(keys.counts)[:-1]), keys.names, strict=True)
    for (ids, name), some in zip(by_name, np.split(places, np.cumsum(keys.counts)[:-1]), strict=True):
        order = np.argsort(ids)
        assert np.array_equal(np.stack((ids, some))[:, order], np.stack(store.listing(name))), name
    wanted = np.zeros(SLOTS, bool)
    wanted[slots[1000:1500]] = True
    among = store.among(np.arange(store.rows.count), wanted)
    assert set(among) == set(places[wanted[store.slots(keys)]])
