"""Bits that flip in shared memory: found, named, never gone back to, and never passed on to the next cut as good (P12)."""

from __future__ import annotations

import os

import numpy as np
import pytest

from rover_bus.flash.alone import store_cut
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint, NotDigested
from rover_bus.flash.lineage import digest_staged
from rover_bus.flash.places import digests_path, touched_path
from rover_bus.flash.seal import FOLDED
from rover_bus.flash.staged import find_staged, newest_staged, open_staged
from rover_bus.flash.verified import newest_verified

ROWS = 60_000
FLIPS = 1000


def make_state(rng):
    return {
        "emb": rng.random((ROWS, 16), np.float32),
        "emb.adagrad": rng.random((ROWS, 16), np.float32),
        "ids": np.arange(ROWS),
        "index": rng.permutation(2 * ROWS).astype(np.int32),
        "mlp": rng.random(500),
    }


def train(state, rng, rows=200):
    ids = rng.integers(0, len(state["emb"]), rows)
    for name in ("emb", "emb.adagrad"):
        state[name][ids] += 1
    state["mlp"] += 1
    return {"emb": ids, "emb.adagrad": ids, "ids": ids[:0], "index": ids[:0]}


def copy_of(state):
    return {name: array.copy() for name, array in state.items()}


def flip(path, place, bit=0):
    with open(path, "r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ (1 << bit)]))


def equals(arrays, state):
    return all(np.array_equal(arrays[name], array) for name, array in state.items())


def digest_newest(store):
    with newest_staged(store.directory, store.part) as staged:
        return digest_staged(staged)


def saved(store, state, rng, cuts):
    """Save cuts 1 to `cuts`, each digested as a daemon does it and complete; return what each holds."""
    store.prepare(state)
    held = {}
    for cut in range(1, cuts + 1):
        store.save(state, cut, touched=train(state, rng))
        store.write_links()
        digest_newest(store)
        store.complete(cut)
        held[cut] = copy_of(state)
    return held


def place_of(path, name, row):
    with open_staged(path) as staged:
        entry = next(each for each in staged.layout.entries if each.name == name)
        return staged.seal.data_offset_bytes + entry.offset_bytes + row * (entry.size_bytes // entry.shape[0])


# -- what is gone back to ------------------------------------------------------------------------------------------------


def test_a_thousand_flips_anywhere_in_the_newest_slot_are_named_and_the_cut_before_is_taken(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    held = saved(store, state, rng, 5)
    store.close()
    newest, _ = find_staged(store.directory, "state")
    with open_staged(newest.path) as staged:
        assert staged.head.patches, "rows of the last save were packed"
        start, ends = staged.seal.data_offset_bytes, staged.layout.entries
        head = range(4096, 4096 + staged.seal.head_bytes)
    inside = [
        range(80),
        head,
        *(range(start + e.offset_bytes, start + e.offset_bytes + e.size_bytes) for e in ends),
    ]
    places = rng.integers(0, newest.path.stat().st_size, FLIPS)
    places[:100], places[100:200] = rng.integers(0, 80, 100), rng.choice(head, 100)
    named = 0
    for place in map(int, places):
        bit = int(rng.integers(8))
        flip(newest.path, place, bit)
        found, refused = newest_verified(store.directory, "state")
        assert equals(found.arrays, held[found.cut]), f"a flip of bit {bit} at {place} was gone back to"
        if any(place in each for each in inside):
            assert (found.cut, len(refused)) == (4, 1), place
            assert str(newest.path) in refused[0]
            named += 1
            for entry in ends:
                at = place - start - entry.offset_bytes
                if 0 <= at < entry.size_bytes:
                    first = at >> 20 << 20
                    end = min(first + (1 << 20), entry.size_bytes)
                    assert f"bytes {first} to {end} of {entry.name} are not" in refused[0]
        found.close()
        flip(newest.path, place, bit)
    assert named > 0.8 * FLIPS
    found, refused = newest_verified(store.directory, "state")
    assert (found.cut, refused) == (5, ()), "nothing was left damaged by the looking"


def test_flips_in_digests_and_links_make_no_cut_a_source_that_is_none(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 3)
    newest = find_staged(store.directory, "state")[0]
    path = digests_path(newest.path)
    for place in map(int, rng.integers(0, path.stat().st_size, 200)):
        flip(path, place)
        found, refused = newest_verified(store.directory, "state")
        assert found.cut == 2
        assert str(path) in refused[0]
        found.close()
        flip(path, place)
    path.unlink()
    found, refused = newest_verified(store.directory, "state")
    assert found.cut == 2
    assert "no digests yet" in refused[0]


def test_nothing_that_has_no_digests_is_gone_back_to(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    store.prepare(state)
    store.save(state, 1)
    with pytest.raises(NotDigested, match=r"slot: cut 1 has no digests yet"):
        store.restore()
    digest_newest(store)
    assert store.restore().cut == 1


def test_digests_are_found_by_the_next_process_and_are_of_one_save(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    held = saved(store, state, rng, 2)
    store.close()
    store = make_store(alone=False)
    assert equals(store.restore().arrays, held[2])
    store.complete(2)
    store.prepare(store.restore().arrays)
    store.save(state, 3)
    with pytest.raises(NotDigested):
        store.restore(3)


@pytest.mark.parametrize("who", ["roller", "reader"])
def test_rows_that_are_folded_in_later_make_no_good_cut_look_damaged(make_store, rng, who):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 3)
    path = store.save(state, 4, touched=train(state, rng)).path
    store.write_links()
    if who == "roller":
        store.catch_up()
    digest_newest(store)
    if who == "reader":
        store.catch_up()
    flip(path, FOLDED.start)  # the word that says so is damaged: the rows are folded in once more
    assert equals(newest_verified(store.directory, "state").staged.arrays, state)


def test_packed_rows_that_are_damaged_after_they_were_digested_are_never_folded_in_as_good(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 3)
    path = store.save(state, 4, touched=train(state, rng)).path
    store.write_links()
    digest_newest(store)
    with open_staged(path) as staged:
        patch = next(each for each in staged.head.patches if each.name == "emb")
        flip(path, staged.seal.data_offset_bytes + patch.rows_offset_bytes)
    flip(path, FOLDED.start)
    found, refused = newest_verified(store.directory, "state")
    assert found.cut == 3
    assert "of emb are not what was written" in refused[0]


# -- what the next cut takes over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emb", "ids", "index"])
def test_damage_between_two_cuts_is_not_laundered_into_the_next_one(make_store, rng, name):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 4)
    older = find_staged(store.directory, "state")[1]
    row = 17
    flip(older.path, place_of(older.path, name, row))  # of the slot that the next save overwrites in part
    touched = train(state, rng)
    touched["emb"] = touched["emb.adagrad"] = touched["emb"][touched["emb"] != row]
    staged = store.save(state, 5, touched=touched)
    assert staged.path == older.path
    store.write_links()
    with pytest.raises(BrokenCheckpoint, match=rf"{older.path}: bytes \d+ to \d+ of {name} are not what was"):
        digest_newest(store)
    assert newest_verified(store.directory, "state").staged.cut == 4


def test_a_cut_that_was_given_up_is_copied_whole_the_next_time(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 4)
    older = find_staged(store.directory, "state")[1]
    flip(older.path, place_of(older.path, "index", 17))
    store.save(state, 5, touched=train(state, rng))
    store.write_links()
    with pytest.raises(BrokenCheckpoint):
        digest_newest(store)
    store.abandon(lambda seal: seal.cut == 5)
    store.save(state, 6, touched=train(state, rng))
    store.write_links()
    digest_newest(store)
    assert equals(store.restore().arrays, state)


def test_a_damaged_base_is_named_and_what_was_copied_whole_needs_none(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 4)
    base = find_staged(store.directory, "state")[0]
    touched = train(state, rng)
    row = int(touched["emb"][0])
    flip(base.path, place_of(base.path, "emb", row))
    store.save(state, 5, touched=touched)
    store.write_links()
    with pytest.raises(
        BrokenCheckpoint, match=rf"{base.path}, which cut 5 builds on: bytes \d+ to \d+ of emb"
    ):
        digest_newest(store)
    store.abandon(lambda seal: seal.cut == 5)
    store.save(state, 6, touched=train(state, rng))
    store.write_links()
    digest_newest(store)
    assert equals(newest_verified(store.directory, "state", cut=6).staged.arrays, state)


def test_what_the_roller_copies_from_a_damaged_slot_is_not_laundered(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 4)
    touched = train(state, rng)
    store.save(state, 5, touched=touched)
    store.write_links()
    digest_newest(store)
    source = find_staged(store.directory, "state")[0]
    row = int(touched["emb"][0])
    flip(source.path, place_of(source.path, "emb", row))
    store.complete(5)
    assert store.catch_up() > 0, "the older slot was rolled forward"
    again = train(state, rng)
    again["emb"] = again["emb.adagrad"] = again["emb"][again["emb"] != row]
    store.save(state, 6, touched=again)
    store.write_links()
    with pytest.raises(BrokenCheckpoint, match=r"of emb are not what was written"):
        digest_newest(store)


def test_a_damaged_link_is_a_missing_one(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 4)
    number = store.save(state, 5, touched=train(state, rng)).save_number
    store.write_links()
    path = touched_path(store.directory, "state", number)
    flip(path, path.stat().st_size // 2)
    assert newest_verified(store.directory, "state").staged.cut == 4


@pytest.mark.parametrize("seed", range(20))
def test_good_cuts_are_never_called_damaged_whatever_was_touched_grown_or_restored(make_store, seed):
    rng = np.random.default_rng(seed)
    state, store = make_state(rng), make_store(alone=False, headroom=0.5)
    store.prepare(state)
    for cut in range(1, 12):
        touched = train(state, rng, int(rng.integers(1, 20_000)))
        match rng.integers(8):
            case 0:
                for name in ("emb", "emb.adagrad"):
                    rows = len(state[name])
                    state[name] = np.concatenate([state[name], rng.random((300, 16), np.float32)])
                    touched[name] = np.r_[touched[name], np.arange(rows, rows + 300)]
            case 1:
                state["index"] = rng.permutation(state["index"])
                del touched["index"]
            case 2 if cut > 3:
                store.close()
                store = make_store(alone=False, headroom=0.5)
                restored = store.restore()
                state = dict(restored.arrays)
                store.prepare(state)
                touched = train(state, rng)
            case 3:
                store.catch_up()
        store.save(state, cut, touched=touched if rng.integers(6) else None)
        store.write_links()
        digest_newest(store)
        store.complete(cut)
        assert equals(newest_verified(store.directory, "state", cut=cut).staged.arrays, state)


# -- a program that stands alone --------------------------------------------------------------------------------------------


def test_a_store_that_is_alone_digests_behind_training_s_back_and_never_restores_damage(make_store, rng):
    state, store = make_state(rng), make_store(background=True)
    store.prepare(state)
    for cut in (1, 2, 3):
        store.save(state, cut, touched=train(state, rng))
    store.close()
    newest = find_staged(store.directory, "state")[0]
    flip(newest.path, place_of(newest.path, "emb", 5))
    with pytest.raises(BrokenCheckpoint, match=r"bytes 0 to 1048576 of emb are not what was written"):
        make_store().restore(3)


def test_a_killed_process_leaves_the_last_cut_that_had_digests(make_store, rng, root):
    state, store = make_state(rng), make_store(slots=3)
    store.prepare(state)
    for cut in (1, 2):
        store.save(state, cut, touched=train(state, rng))
    held = copy_of(state)
    store.catch_up()
    store.save(state, 3, touched=train(state, rng))
    os.system(f"cp -r {root}/job {root}/left")  # as SIGKILL leaves it
    again = make_store("left")
    assert equals(again.restore().arrays, held)
    with pytest.raises(NotDigested, match="cut 3 has no digests: its writer died before"):
        again.restore(3)


def test_a_damaged_cut_of_a_store_that_is_alone_is_given_up_and_the_next_one_is_whole(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    for cut in (1, 2, 3):
        store.save(state, cut, touched=train(state, rng))
    older = find_staged(store.directory, "state")[1]
    flip(older.path, place_of(older.path, "index", 3))
    store.save(state, 4, touched=train(state, rng))
    store.save(state, 5, touched=train(state, rng))
    store.close()
    assert equals(make_store().restore().arrays, state)


def test_what_is_damaged_in_memory_is_not_stored_by_a_program_that_stands_alone(make_store, rng, tmp_path):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    path = store.save(state, 1).path
    store.catch_up()
    flip(path, place_of(path, "emb", 5))
    with pytest.raises(BrokenCheckpoint, match="bytes 0 to 1048576 of emb changed in memory"):
        store_cut(newest_staged(store.directory, "state"), tmp_path, job="mine")
    assert not list(tmp_path.rglob("*.manifest"))


def test_a_slot_that_is_gone_and_one_that_never_was_are_told_apart(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    saved(store, state, rng, 1)
    with pytest.raises(NoCheckpoint, match="no cut 7 of state"):
        newest_verified(store.directory, "state", cut=7)


# -- two that digest the same cut -----------------------------------------------------------------------------------------


def test_digests_that_another_made_are_taken_when_their_base_is_overwritten(make_store, rng):
    """The store digests a cut and stages the next ones, while a program that stores that cut is about to digest it as well."""
    state, store = make_state(rng), make_store(alone=False, slots=3)
    saved(store, state, rng, 3)
    with newest_staged(store.directory, store.part) as staged:
        made = digest_staged(staged)
        for cut in (4, 5):  # into the slots of cuts 1 and 2, of which cut 2 is what cut 3 differs from
            store.save(state, cut, touched=train(state, rng))
            store.write_links()
            digest_newest(store)
            store.complete(cut)
        assert {found.seal.save_number for found in find_staged(store.directory, store.part)} == {3, 4, 5}
        assert digest_staged(staged) == made
