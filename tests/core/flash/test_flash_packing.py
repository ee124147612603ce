"""Touched rows that a save packs behind the data: found by every reader, folded in by whoever comes first, never lost."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from patience import until

from rover_bus.flash.errors import BrokenCheckpoint, SlotsBusy
from rover_bus.flash.layout import plan_layout
from rover_bus.flash.packing import Patch, fold
from rover_bus.flash.seal import is_folded
from rover_bus.flash.staged import find_staged, newest_staged, open_staged
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


STEPS_OF_A_PART = [
    "save",
    "save",
    "complete",
    "abandon",
    "fold",
    "half-fold",
    "read",
    "next-process",
    "shrink",
    "grow",
    "tidy",
]
OF_PARTS = st.lists(st.sampled_from(STEPS_OF_A_PART), min_size=4, max_size=16)


@settings(max_examples=150, deadline=None)
@given(steps=OF_PARTS, slots=st.integers(2, 3), seed=st.integers(0, 99))
@example(steps=["save", "complete", "save", "complete", "fold", "save", "abandon", "save"], slots=2, seed=1)
@example(
    steps=["save", "complete", "save", "complete", "fold", "save", "save", "abandon", "fold", "save"],
    slots=2,
    seed=1,
)
def test_every_staged_cut_of_a_part_is_what_was_saved_as_it(tmp_path_factory, steps, slots, seed):
    """As a server uses it: cuts are completed or given up later; saves may be refused, and are not repeated."""
    rng, root = np.random.default_rng(seed), tmp_path_factory.mktemp("flash")
    state, saved, cut, regrown = make_state(rng), {}, 0, False

    def begin():
        store = FlashStore("job", root=root, threads=1, background=False, alone=False, slots=slots)
        store.prepare(state)
        return store

    def check():
        for found in find_staged(store.directory, "state"):
            with open_staged(found.path) as staged:
                for name, array in saved[staged.cut].items():
                    np.testing.assert_array_equal(
                        staged.arrays[name], array, err_msg=f"{name} of {staged.cut}"
                    )

    store = begin()
    for step in steps:
        match step:
            case "save":
                cut += 1
                touched = train(state, rng, 20)
                if regrown:
                    del touched[
                        "count"
                    ]  # new rows in the place of old ones: whoever does not name them all names none
                regrown = False
                with suppress(SlotsBusy):
                    store.save(state, cut, touched=touched)
                    saved[cut] = {name: array.copy() for name, array in state.items()}
            case "complete":
                if cut in saved:
                    store.complete(cut)
            case "abandon":
                store.abandon(lambda seal, cut=cut: seal.cut == cut)
            case "shrink":
                state["count"] = state["count"][: ROWS // 2].copy()
            case "grow":
                regrown |= len(state["count"]) < ROWS
                state["count"] = np.concatenate(
                    [state["count"], np.ones(ROWS - len(state["count"]), np.int64)]
                )
            case "tidy":
                store.tidy()
            case "fold":
                store.catch_up()
            case "half-fold":
                calls = iter([False, False, True])
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(store._hurry, "is_set", lambda calls=calls: next(calls, True))
                    store.catch_up()
            case "read":
                check()
            case "next-process":
                store.close()
                store = begin()
    check()
    store.remove()


def test_an_array_with_packed_rows_may_become_a_single_value(make_store, rng):
    state, store = make_state(rng), make_store()
    saved_twice(store, state, rng)
    store.save(state, 3, touched=train(state, rng, 20))
    state["count"] = np.array(7)
    for cut in (4, 5, 6):
        store.save(state, cut)
    assert_newest(store, state)


def test_the_roller_comes_back_after_it_gave_way(make_store, rng):
    state, store = make_state(rng), make_store(background=True)
    saved_twice(store, state, rng)
    for cut in range(3, 30):
        path = store.save(state, cut, touched=train(state, rng, 20)).path
        store.tidy()
    seal = find_staged(store.directory, "state")[0].seal
    until(lambda: is_folded(path.read_bytes(), seal), "somebody folds what was packed")


def test_who_may_only_read_sees_the_cut_all_the_same(make_store, rng, monkeypatch):
    state, store = make_state(rng), make_store()
    saved_twice(store, state, rng)
    path = store.save(state, 3, touched=train(state, rng, 20)).path
    opened = os.open

    def refuse(path, flags, *more, **named):
        if flags & os.O_RDWR:
            raise PermissionError(13, "read-only", str(path))
        return opened(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert_newest(store, state)
        found = newest_staged(store.directory, "state")
    with pytest.raises(ValueError, match="read-only"):
        found.arrays["emb"][0] = 0
    assert not is_folded(path.read_bytes(), found.seal)


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
