"""Hashing, first values, the row index, optimizers, grouping: the arithmetic under the servers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.ps import spec
from rover_bus.ps.catalogue import Catalogue
from rover_bus.ps.hashing import SLOTS, chunk_slots, growing_slots, hashed_slots, salt_of
from rover_bus.ps.index import MOST_MARKED, RowIndex
from rover_bus.ps.initial import first_values, table_key
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.plan import gather, group_ids, narrow, partition, plan_sums
from rover_bus.ps.store import BatchKey

IDS = np.array([0, 1, 2, 4095, 4096, 10**12, -1, -(2**63), 2**63 - 1], np.int64)


def test_slots_are_what_they_have_always_been():
    assert salt_of("item") == 0x6CA8F7B0F03F9E41
    assert growing_slots(IDS, np.uint64(salt_of("item"))).tolist() == [
        2367,
        2168,
        2981,
        3067,
        1737,
        723,
        551,
        2072,
        577,
    ]
    assert hashed_slots(IDS[:5], salt_of("item") & 4095).tolist() == [3649, 3650, 3651, 3648, 3649]
    assert chunk_slots("item", 4).tolist() == [2367, 2168, 2981, 1524]


def test_ids_spread_evenly_over_the_slots():
    for ids in (np.arange(409_600), np.arange(409_600) * 4096, np.arange(409_600) << 32):
        counts = np.bincount(growing_slots(ids.astype(np.int64), np.uint64(salt_of("t"))), minlength=SLOTS)
        assert counts.max() < 180  # mean 100, Poisson deviation 10
        assert counts.min() > 40


@pytest.mark.parametrize(
    ("init", "golden"),
    [
        (spec.Zeros(), "10b2a66888c58a54"),
        (spec.Constant(0.5), "1f434965154ee788"),
        (spec.Uniform(0.1), "39cffadc2495ae5c"),
        (spec.Normal(0.01), "64c3cbdae145b87c"),
    ],
)
def test_first_values_are_what_they_have_always_been(init, golden):
    values = first_values(init, np.uint64(table_key(7, salt_of("item"))), IDS, 5, "float32")
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == golden


def test_first_values_depend_on_seed_table_id_and_column():
    def some(seed, table, ids=(1,)):
        key = np.uint64(table_key(seed, salt_of(table)))
        return first_values(spec.Uniform(1.0), key, np.array(ids, np.int64), 4, "float32")

    base = some(1, "a")
    assert len(np.unique(base)) == 4
    for other in (some(2, "a"), some(1, "b"), some(1, "a", (2,))):
        assert not np.any(other == base)


def test_first_values_have_the_asked_distribution():
    ids, key = np.arange(200_000), np.uint64(table_key(3, 9))
    uniform = first_values(spec.Uniform(0.2), key, ids, 4, "float32")
    assert abs(float(uniform.mean())) < 0.001
    assert float(np.abs(uniform).max()) <= 0.2
    assert float(uniform.std()) == pytest.approx(0.2 / np.sqrt(3), rel=0.01)
    normal = first_values(spec.Normal(0.3), key, ids, 4, "float32")
    assert abs(float(normal.mean())) < 0.002
    assert float(normal.std()) == pytest.approx(0.3, rel=0.01)
    assert abs(np.corrcoef(uniform.T)[0, 1]) < 0.01
    assert abs(np.corrcoef(uniform[:-1, 0], uniform[1:, 0])[0, 1]) < 0.01


# --- the row index ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_row_index_answers_as_a_dictionary_does(data):
    keys = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 40)
    index, known = RowIndex(), {}
    tags, ids = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(data.draw(st.integers(1, 5))):
        wanted = sorted(data.draw(st.sets(st.tuples(st.integers(0, 3), keys), max_size=80)))
        asked = np.array(wanted, np.int64).reshape(-1, 2)
        assert index.find(asked[:, 0].copy(), asked[:, 1].copy()).tolist() == [
            known.get(pair, -1) for pair in wanted
        ]
        new = [pair for pair in wanted if pair not in known]
        added = np.array(new, np.int64).reshape(-1, 2)
        first = len(ids)
        tags, ids = np.r_[tags, added[:, 0]], np.r_[ids, added[:, 1]]
        index.insert(added[:, 0].copy(), added[:, 1].copy(), np.arange(first, len(ids)))
        known |= {pair: first + at for at, pair in enumerate(new)}
    assert index.find(tags, ids).tolist() == list(range(len(ids)))


def test_the_row_index_finds_a_hundred_thousand_rows_after_many_growths():
    rng = np.random.default_rng(1)
    ids = rng.permutation(300_000).astype(np.int64)[:100_000] * 4096
    index, tags = RowIndex(), np.zeros(len(ids), np.int64)
    for start in range(0, len(ids), 7_000):
        end = min(len(ids), start + 7_000)
        index.insert(tags[start:end], ids[start:end], np.arange(start, end))
    assert np.array_equal(index.find(tags, ids), np.arange(len(ids)))
    assert np.all(index.find(tags, ids + 1) == -1)
    assert np.all(index.find(tags + 1, ids) == -1)


def test_what_is_removed_while_a_larger_index_is_built_stays_removed():
    rng = np.random.default_rng(2)
    ids = rng.permutation(2_000_000).astype(np.int64)[:400_000]
    index, tags, here = RowIndex(), np.ones(len(ids), np.int64), np.zeros(len(ids), bool)
    for start in range(0, len(ids), 5_000):
        end = start + 5_000
        index.insert(tags[start:end], ids[start:end], np.arange(start, end))
        here[start:end] = True
        gone = rng.integers(0, end, 1_500)
        gone = np.unique(gone[here[gone]])
        index.remove(tags[gone], ids[gone])
        here[gone] = False
        some = rng.integers(0, len(ids), 2_000)
        assert np.array_equal(index.find(tags[some], ids[some]), np.where(here[some], some, -1))
    assert np.array_equal(index.find(tags, ids), np.where(here, np.arange(len(ids)), -1))


def test_rows_that_come_and_go_need_no_larger_index():
    rng = np.random.default_rng(5)
    ids = rng.permutation(2_000_000).astype(np.int64)[:400_000]
    index, tags, rows = RowIndex(), np.zeros(len(ids), np.int64), np.arange(len(ids))
    index.insert(tags[:20_000], ids[:20_000], rows[:20_000])
    size_bytes = index.memory_bytes
    for start in range(20_000, len(ids), 5_000):
        index.remove(tags[: start - 15_000], ids[: start - 15_000])
        index.insert(tags[start : start + 5_000], ids[start : start + 5_000], rows[start : start + 5_000])
        assert index.memory_bytes == size_bytes
    left = len(ids) - 20_000
    assert index.used == 20_000
    assert np.array_equal(index.find(tags, ids), np.where(rows < left, -1, rows))


def test_marks_that_rows_left_behind_go_when_the_index_is_built_anew():
    rng = np.random.default_rng(6)
    full = 40_000
    index = RowIndex(full)
    ids, most = np.empty(0, np.int64), 0
    for _ in range(60):
        come = rng.integers(-(2**62), 2**62, full - len(ids))
        index.insert(np.zeros(len(come), np.int64), come, np.arange(len(come)))
        marks, of = int(np.count_nonzero(index._marked)), len(index._marked)
        most = max(most, marks)
        assert marks <= of // MOST_MARKED + of // 16, (
            "searches for what is not there would take longer and longer"
        )
        ids = np.r_[ids, come]
        index.remove(np.zeros(full // 2, np.int64), ids[: full // 2])
        ids = ids[full // 2 :]
        assert np.all(index.find(np.zeros(len(ids), np.int64), ids) >= 0)
    assert marks < most, "built anew at least once"


def test_a_flood_of_rows_finds_room_although_a_smaller_index_is_being_built():
    ids = np.random.default_rng(3).permutation(2_000_000).astype(np.int64)[:600_000]
    index, tags, start = RowIndex(), np.zeros(len(ids), np.int64), 0
    while index._larger is None or start < 50_000:
        index.insert(tags[start : start + 5_000], ids[start : start + 5_000], np.arange(start, start + 5_000))
        start += 5_000
    index.insert(tags[start:], ids[start:], np.arange(start, len(ids)))
    assert np.array_equal(index.find(tags, ids), np.arange(len(ids)))


def test_memory_of_a_larger_index_is_named_before_rows_come_into_it():
    ids = np.random.default_rng(4).permutation(2_000_000).astype(np.int64)[:500_000]
    index, tags, start, named = RowIndex(), np.zeros(len(ids), np.int64), 0, []
    while start < len(ids) and (index._larger is not None or not named):
        index.insert(tags[start : start + 6_000], ids[start : start + 6_000], np.arange(start, start + 6_000))
        start += 6_000
        named += (cold := index.cold())
        if (larger := index._larger) is None or not named:
            continue
        assert len(cold) in (0, 4), "both areas, in two places: there are twice as many buckets"
        for area in (larger._key_area, larger._place_area):
            used = np.flatnonzero(area.bytes.view(np.int64)) * 8
            inside = [(p.first <= used) & (used < p.end) for p in named if p.range is area._range]
            assert np.logical_or.reduce(inside).all()
    assert start < len(ids), "the larger index was never complete: this test tests nothing"


# --- grouping ---------------------------------------------------------------------------------------------------------


def _catalogue() -> Catalogue:
    catalogue = Catalogue()
    catalogue.declare(
        [spec.Growing(name=name, width=2, optimizer=spec.Sgd()) for name in ("a", "b", "c")]
        + [spec.Hashed(name=name, rows=50, width=3, optimizer=spec.Sgd()) for name in ("h", "i")]
    )
    return catalogue


id_arrays = st.lists(st.integers(-5, 60) | st.integers(-(2**63), 2**63 - 1), max_size=30).map(
    lambda ids: np.array(ids, np.int64)
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abchi"), id_arrays, min_size=1), st.integers(1, 4), st.integers(0, 99)
)
def test_grouping_sums_what_belongs_together_and_parts_it_by_server(ids, servers, seed):
    owner = np.random.default_rng(seed).integers(0, servers, SLOTS)
    seen = set()
    for group in group_ids(_catalogue(), ids):
        hashed = isinstance(group.entries[0].table, spec.Hashed)
        width = 3 if hashed else 2
        gradients = {
            n: np.arange(ids[n].size * width).reshape(-1, width).astype("f4") for n in group.keys.names
        }
        expected: dict[tuple[str, int], np.ndarray] = {}
        for name in group.keys.names:
            for key, gradient in zip(ids[name].tolist(), gradients[name], strict=True):
                place = (name, key % 50 if hashed else key)
                expected[place] = expected.get(place, 0) + gradient
        names = np.repeat(group.keys.names, group.keys.counts)
        sums = plan_sums(group).of(gather(group, gradients))
        found = dict(zip(zip(names.tolist(), group.keys.keys.tolist(), strict=True), sums, strict=True))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[place], expected[place]) for place in found)
        assert len(found) == len(group.keys.keys)
        parts = partition(group, owner, servers)
        assert np.array_equal(np.concatenate(parts.members)[parts.location], np.arange(len(sums)))
        for members, keys in zip(parts.members, parts.keys, strict=True):
            assert np.array_equal(np.repeat(keys.names, keys.counts), names[members])
            assert np.array_equal(keys.keys, group.keys.keys[members])
        seen.update(group.keys.names)
    assert seen == set(ids)


@given(st.dictionaries(st.sampled_from("abc"), id_arrays, min_size=2), st.integers(1, 7))
def test_a_narrowed_group_is_the_group_of_fewer_tables(ids, mask):
    [group] = group_ids(_catalogue(), ids)
    names = frozenset(name for bit, name in enumerate(sorted(ids)) if mask >> bit & 1) or frozenset(ids)
    [expected] = group_ids(_catalogue(), {name: ids[name] for name in ids if name in names})
    narrowed = narrow(group, names)
    assert narrowed.keys.names == expected.keys.names
    assert narrowed.shapes == expected.shapes
    assert np.array_equal(narrowed.keys.keys, expected.keys.keys)
    assert np.array_equal(narrowed.keys.counts, expected.keys.counts)
    assert np.array_equal(narrowed.starts, expected.starts)
    flat = np.concatenate([ids[name] for name in narrowed.keys.names])
    assert np.array_equal(flat[narrowed.order], flat[expected.order])


# --- optimizers, against the formulas of their papers, in float64 ------------------------------------------------------


def _formula(optimizer, gradients, weight):
    a = m = v = np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        match optimizer:
            case spec.Add():
                weight = weight + g
            case spec.Sgd():
                weight = weight - optimizer.rate * g
            case spec.Adagrad() | spec.RowAdagrad():
                a = (optimizer.initial if t == 1 else a) + (
                    g**2 if isinstance(optimizer, spec.Adagrad) else np.mean(g**2)
                )
                weight = weight - optimizer.rate * g / (np.sqrt(a) + optimizer.epsilon)
            case spec.Adam():
                m = optimizer.beta1 * m + (1 - optimizer.beta1) * g
                v = optimizer.beta2 * v + (1 - optimizer.beta2) * g**2
                up, down = (
                    m / (1 - optimizer.beta1**t),
                    np.sqrt(v / (1 - optimizer.beta2**t)) + optimizer.epsilon,
                )
                weight = weight - optimizer.rate * up / down
    return weight


@pytest.mark.parametrize(
    "optimizer",
    [
        spec.Add(),
        spec.Sgd(rate=0.1),
        spec.Adagrad(rate=0.1, initial=0.5),
        spec.RowAdagrad(rate=0.1, initial=0.1),
        spec.Adam(rate=0.05),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
@pytest.mark.parametrize("kind", ["growing", "hashed", "dense"])
def test_optimizers_follow_their_formulas(optimizer, kind):
    if kind == "dense" and isinstance(optimizer, spec.RowAdagrad):
        pytest.skip("refused at declaration: a dense array has no rows")
    rng, parameters = np.random.default_rng(5), LocalParameters(seed=3)
    common = {"name": "t", "optimizer": optimizer, "init": spec.Normal(0.1)}
    tables = {
        "growing": spec.Growing(width=6, **common) if kind == "growing" else None,
        "hashed": spec.Hashed(width=6, rows=9, **common) if kind == "hashed" else None,
        "dense": spec.Dense(shape=(1, 6), **common) if kind == "dense" else None,
    }
    parameters.declare(tables[kind])
    ids = {} if kind == "dense" else {"t": np.array([4])}
    gradients = rng.standard_normal((6, 1, 6)).astype("f4")
    expected = _formula(optimizer, gradients.astype("f8"), parameters.pull(ids)["t"].astype("f8"))
    for number, gradient in enumerate(gradients):
        parameters.pull(ids)
        parameters.push(BatchKey(0, number), {"t": gradient})
    assert parameters.pull(ids)["t"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_decay_and_clip_come_before_the_optimizer():
    parameters = LocalParameters()
    parameters.declare(
        spec.Growing(
            name="t", width=1, optimizer=spec.Sgd(rate=1.0), init=spec.Constant(2.0), l2=0.25, clip=1.0
        )
    )
    parameters.pull({"t": np.array([1])})
    parameters.push(BatchKey(0, 0), {"t": np.array([[7.0]], "f4")}, rate_scale=0.5)
    assert parameters.read("t", np.array([1, 2])).ravel().tolist() == [2.0 - 0.5 * (1.0 + 0.25 * 2.0), 2.0]
