"""Touched rows that a save packs behind the data: found by every reader, folded in by whoever comes first, never lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.flash.errors import BrokenCheckpoint
from rover_bus.flash.layout import plan_layout
from rover_bus.flash.packing import Patch, fold
from rover_bus.flash.seal import is_folded
from rover_bus.flash.staged import find_staged, newest_staged
from rover_bus.flash.store import FlashStore

ROWS = 3000


def make_state(rng):
    return {
        "emb": rng.random((ROWS, 8), np.float32),
        "emb.adagrad": rng.random((ROWS, 8), np.float32),
        "count": rng.integers(0, 9, ROWS),
        "strided": rng.random((ROWS, 8))[:, ::2],
        "mlp": rng.random(50),
    }


def train(state, rng, rows):
    touched = {}
    for name in ("emb", "count", "strided"):
        touched[name] = rng.integers(0, len(state[name]), rows)
        state[name][touched[name]] += 1
    touched["emb.adagrad"] = touched["emb"]
    state["emb.adagrad"][touched["emb"]] += 1
    state["mlp"] += 1
    return touched


def saved_twice(store, state, rng):
    store.prepare(state)
    for cut in (1, 2):
        store.save(state, cut, touched=train(state, rng, 20))
    store.catch_up()


def assert_newest(store, state):
    found = newest_staged(store.directory, "state")
    for name, array in state.items():
        np.testing.assert_array_equal(found.arrays[name], array, err_msg=name)


def test_packed_rows_stand_behind_the_data_until_somebody_reads(make_store, rng):
    state, store = make_state(rng), make_store()
    saved_twice(store, state, rng)
    held = newest_staged(store.directory, "state").arrays["emb"].copy()
    path = store.save(state, 3, touched=train(state, rng, 20)).path
    seal = find_staged(store.directory, "state")[0].seal
    raw = path.read_bytes()
    assert seal.version == 2, "older releases must not read this: they would miss the packed rows"
    assert not is_folded(raw, seal)
    at = seal.data_offset_bytes + next(
        e.offset_bytes for e in plan_layout(dict(sorted(state.items()))).entries if e.name == "emb"
    )
    assert raw[at : at + held.nbytes] == held.tobytes(), "nothing was scattered while training waited"
    assert_newest(store, state)
    assert is_folded(path.read_bytes(), seal)


def test_a_cut_without_packed_rows_is_of_the_format_that_older_releases_read(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, 1)
    assert find_staged(store.directory, "state")[0].seal.version == 1


def test_rows_that_find_no_room_are_scattered(make_store, rng):
    state, store = make_state(rng), make_store()
    saved_twice(store, state, rng)
    store.save(state, 3, touched=train(state, rng, 200))  # 200 of 3000 is more than a thirty-second
    assert_newest(store, state)


def test_the_next_process_restores_what_nobody_had_folded_in(make_store, rng):
    state, store = make_state(rng), make_store()
    saved_twice(store, state, rng)
    store.save(state, 3, touched=train(state, rng, 20))
    store.close()
    again = make_store()
    restored = again.restore().arrays
    for name, array in state.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
    again.prepare(restored)
    state = {name: np.array(array) for name, array in restored.items()}
    again.save(state, 4, touched=train(state, rng, 20))
    assert_newest(again, state)


STEPS = st.lists(
    st.sampled_from(["save", "save", "save", "all", "much", "fold", "read", "grow", "next process"]),
    min_size=3,
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, slots=st.integers(2, 3), seed=st.integers(0, 99))
def test_whatever_is_saved_folded_and_read_in_between_the_newest_cut_is_the_state(
    tmp_path_factory, steps, slots, seed
):
    rng, root = np.random.default_rng(seed), tmp_path_factory.mktemp("flash")
    state, cut = make_state(rng), 0

    def begin():
        store = FlashStore("job", root=root, threads=1, background=False, headroom=0.5, slots=slots)
        store.prepare(state)
        return store

    store = begin()
    for step in ["save", *steps]:
        match step:
            case "save" | "much":
                touched = train(state, rng, 20 if step == "save" else 150)
                cut += 1
                store.save(state, cut, touched=touched)
                last = {name: array.copy() for name, array in state.items()}
            case "all":
                cut += 1
                store.save(state, cut)
                last = {name: array.copy() for name, array in state.items()}
            case "grow":
                state["emb"] = np.concatenate([state["emb"], rng.random((40, 8), np.float32)])
                state["emb.adagrad"] = np.concatenate([state["emb.adagrad"], np.ones((40, 8), np.float32)])
            case "fold":
                store.catch_up()
            case "read":
                assert_newest(store, last)
            case "next process":
                store.close()
                store = begin()
    assert_newest(store, last)
    store.remove()


@pytest.mark.parametrize(
    "patch",
    [
        Patch(name="b", rows=1, ids_offset_bytes=0, rows_offset_bytes=64),
        Patch(name="a", rows=-1, ids_offset_bytes=0, rows_offset_bytes=64),
        Patch(name="a", rows=1 << 40, ids_offset_bytes=0, rows_offset_bytes=64),
        Patch(name="a", rows=1, ids_offset_bytes=-8, rows_offset_bytes=64),
        Patch(name="a", rows=1, ids_offset_bytes=0, rows_offset_bytes=1 << 60),
    ],
)
def test_hostile_patches_are_refused(patch):
    layout = plan_layout({"a": np.zeros((4, 2))})
    with pytest.raises(BrokenCheckpoint, match="use an older checkpoint"):
        fold(np.zeros(256, np.uint8), layout, [patch])


def test_ids_beyond_an_array_write_nowhere_else():
    layout = plan_layout({"a": np.zeros((4, 2)), "b": np.zeros(8)})
    data = np.zeros(512, np.uint8)
    data[256:264] = np.frombuffer(np.int64(1 << 40).tobytes(), np.uint8)
    data[320:336] = 7
    fold(data, layout, [Patch(name="a", rows=1, ids_offset_bytes=256, rows_offset_bytes=320)])
    assert (layout.views(data)["b"] == 0).all()
