"""Prepare, save, restore: what a user of the plain library may rely on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
import numpy as np
import pytest

from rover_bus.events.errors import AccessDenied, InputError, NotEnoughMemory
from rover_bus.flash import places, room
from rover_bus.flash.errors import (
    LayoutChanged,
    NewerCheckpoint,
    NoCheckpoint,
    NotPrepared,
    OtherModel,
    PartHeld,
    SlotsBusy,
)
from rover_bus.flash.journal import read_touched
from rover_bus.flash.slot import Slot
from rover_bus.flash.staged import find_staged, newest_staged, open_staged
from rover_bus.flash.sweep import hold_job, sweep


def make_state(rng, rows=1000, width=16):
    return {
        "embedding": rng.random((rows, width), np.float32),
        "embedding.adagrad": rng.random((rows, width), np.float32),
        "mlp": rng.random((64, 32)),
        "step": np.array(0),
    }


def train(state, rng, rows=10):
    """Change some rows of the embedding and its state, and all dense values; return what was touched."""
    ids = rng.choice(len(state["embedding"]), rows)
    for name in ("embedding", "embedding.adagrad"):
        state[name][ids] = rng.random(state[name][ids].shape)
    state["mlp"] += 1
    state["step"] += 1
    return {"embedding": ids, "embedding.adagrad": ids}


def assert_equal(arrays, state):
    assert arrays.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(arrays[name], np.asarray(value), strict=True)


def copy_of(state):
    return {name: value.copy() for name, value in state.items()}


def test_what_was_saved_is_restored_by_the_next_process(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, cut=5, extra=b"applied sets")
    store.close()
    restored = make_store().restore()
    assert (restored.cut, restored.extra) == (5, b"applied sets")
    assert_equal(restored.arrays, state)


def test_the_default_threads_and_background_restore_the_same(make_store, rng):
    state, store = make_state(rng, rows=200_000), make_store(threads=None, background=True)
    store.prepare(state)
    for cut in range(1, 30):
        touched = train(state, rng, rows=2000)
        store.save(state, cut, touched=touched if cut % 7 else None)
    assert_equal(newest_staged(store.directory, "state").arrays, state)


def test_touched_rows_alone_bring_a_slot_up_to_date(make_store, rng):
    state, store = make_state(rng), make_store(slots=3)
    store.prepare(state)
    for cut in range(1, 40):
        store.save(state, cut, touched=train(state, rng) if cut > 1 else None)
        assert_equal(newest_staged(store.directory, "state").arrays, state)


def test_only_touched_rows_are_copied_once_every_slot_was_filled(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    copied = []
    for cut in range(1, 5):
        copied.append(store.save(state, cut, touched=train(state, rng, rows=10)).copied_bytes)
    whole = sum(value.nbytes for value in state.values())
    dense = state["mlp"].nbytes + state["step"].nbytes
    assert copied[:2] == [whole, whole]
    assert copied[2:] == [dense + 2 * 20 * 64] * 2, "a slot lacks the rows of two saves"


def test_rolling_forward_leaves_only_the_last_interval_to_copy(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    for cut in range(1, 6):
        staged = store.save(state, cut, touched=train(state, rng, rows=10))
        rolled = store.catch_up()
        assert_equal(newest_staged(store.directory, "state").arrays, state)
    assert staged.copied_bytes == state["mlp"].nbytes + state["step"].nbytes + 2 * 10 * 64
    assert rolled == 2 * 10 * 64
    assert store.catch_up() == 0


def test_a_failed_save_may_be_repeated_and_loses_no_touched_row(make_store, rng, monkeypatch):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    for cut in (1, 2, 3):
        store.save(state, cut, touched=train(state, rng))
    before, touched = copy_of(state), train(state, rng)
    monkeypatch.setattr("rover_bus.flash.store.copy", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.save(state, 4, touched=touched)
    assert_equal(newest_staged(store.directory, "state").arrays, before)
    monkeypatch.undo()
    assert store.save(state, 4, touched=touched).cut == 4
    assert_equal(newest_staged(store.directory, "state").arrays, state)
    store.save(state, 5, touched=train(state, rng))
    assert_equal(newest_staged(store.directory, "state").arrays, state)


def test_a_link_left_by_a_dead_writer_is_never_taken_for_that_of_a_whole_save(make_store, rng, monkeypatch):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    first = store.save(state, 1).save_number
    with monkeypatch.context() as patch:
        patch.setattr(
            "rover_bus.flash.slot.Slot.stamp", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            store.save(state, 2, touched=train(state, rng))
    store.close()
    store = make_store()
    state["embedding"] += 1
    store.prepare(state)
    second = store.save(state, 2).save_number
    assert second == first + 1
    assert read_touched(store.directory, "state", second, since_save=first) is None
    third = store.save(state, 3, touched={"embedding": [3], "mlp": []}).save_number
    assert read_touched(store.directory, "state", third, second) is None, (
        "it is written behind training's back"
    )
    store.catch_up()
    assert {
        name: list(ids) for name, ids in read_touched(store.directory, "state", third, second).items()
    } == {
        "embedding": [3],
        "mlp": [],
    }


@pytest.mark.parametrize("name", ["state.².slot", "state.².touched", "state.².digests", "state.x.slot"])
def test_a_foreign_file_among_the_slots_is_passed_over(make_store, rng, root, name):
    with make_store() as store:
        state = make_state(rng)
        store.prepare(state)
        store.save(state, cut=1)
        slot = next(root.rglob("state.*.slot"))
        (slot.parent / name).touch()
        store.save(state, cut=2)
        assert store.restore().seal.cut == 2


def test_a_slot_is_kept_until_a_newer_cut_is_complete_over_all_parts(make_store, rng):
    state, store = make_state(rng), make_store(alone=False)
    store.prepare(state)
    store.save(state, 1)
    store.complete(1)
    store.save(state, 2)
    with pytest.raises(SlotsBusy, match="cut 1 has no complete successor; cut 2 has no complete successor"):
        store.save(state, 3)
    store.complete(2)
    assert store.save(state, 3).overwritten_cut == 1


def test_the_slots_of_a_state_that_grows_are_never_more_than_were_asked_for(make_store, rng):
    """The old and the new of both would be more memory than a server has: what may be overwritten goes first (P12)."""
    store = make_store(alone=False, regrow=False)

    def slots():
        return list(store.directory.glob("state.*.slot"))

    def staged():
        return {cut.seal.cut: cut.arrays for path in slots() if (cut := open_staged(path)) is not None}

    store.prepare(make_state(rng))
    for cut in range(1, 20, 2):
        state = make_state(rng, rows=1000 + 100 * cut)
        for number in (cut, cut + 1):
            try:
                store.save(state, number)
            except LayoutChanged:
                store.prepare(state)
                assert len(slots()) == 2
                assert number == 1 or number - 1 in staged(), "the complete cut stays"
                store.save(state, number)
            store.complete(number)
    assert_equal(staged()[20], state)
    assert store.held_bytes == sum(path.stat().st_size for path in slots())


def test_what_was_prepared_is_held_even_while_older_slots_are_rolled_forward(make_store, monkeypatch):
    rolls, go_on = Event(), Event()

    def fold(*_):
        rolls.set()
        return go_on.wait(60) and False

    store, state = make_store(alone=False, background=True), {"rows": np.zeros((1000, 8))}
    monkeypatch.setattr(Slot, "fold", fold)
    store.prepare(state)
    store.save(state, 1)
    assert rolls.wait(60)
    held = store.held_bytes
    go_on.set()
    assert held == sum(path.stat().st_size for path in store.directory.glob("state.*.slot"))


def test_how_much_is_held_is_told_while_slots_are_made_and_dropped(make_store, rng):
    store, told = make_store(alone=False, regrow=False), set()
    ends = Event()

    def ask():
        while not ends.is_set():
            told.add(store.held_bytes)

    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(ask)
        for cut in range(1, 60):
            state = {"grows": np.zeros(1000 * cut)}
            store.prepare(state)
            store.save(state, cut)
            store.complete(cut)
        ends.set()
        asked.result()
    assert len(told) > 1


def test_a_reader_keeps_its_slot_and_a_third_slot_keeps_the_writer_going(make_store, rng):
    state, store = make_state(rng), make_store(slots=3)
    store.prepare(state)
    store.save(state, 1)
    first, reader = copy_of(state), newest_staged(store.directory, "state")
    for cut in range(2, 22):
        assert store.save(state, cut, touched=train(state, rng)).cut == cut
    assert_equal(reader.arrays, first)
    del reader
    overwritten = {store.save(state, cut).overwritten_cut for cut in (22, 23, 24)}
    assert 1 in overwritten


def test_with_two_slots_a_reader_makes_the_writer_say_why_it_cannot_save(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, 1)
    reader = newest_staged(store.directory, "state")
    store.save(state, 2)
    with pytest.raises(SlotsBusy, match="a reader holds cut 1"):
        store.save(state, 3)
    del reader
    store.save(state, 3)


def test_a_restored_state_is_trained_in_place_and_saved_again(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, 1)
    store.save(state, 2, touched=train(state, rng))
    store.close()
    store = make_store()
    restored = store.restore().arrays
    assert_equal(restored, state)
    store.prepare(restored)
    for cut in range(3, 9):
        before = copy_of(restored)
        touched = train(restored, rng)
        assert_equal(newest_staged(store.directory, "state").arrays, before)
        assert store.save(restored, cut, touched=touched).prepared_bytes == 0
    assert_equal(newest_staged(store.directory, "state").arrays, restored)
    assert len(find_staged(store.directory, "state")) == 2, (
        "the slot under the restored state has lost its name"
    )


def test_without_prepare_a_restored_state_is_still_saved(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, 1)
    restored = store.restore().arrays
    for cut in range(2, 6):
        train(restored, rng)
        store.save(restored, cut)
        assert_equal(newest_staged(store.directory, "state").arrays, restored)


def test_a_grown_table_is_stored_whole_and_says_that_it_was_prepared_again(make_store, rng):
    state, store = make_state(rng, rows=1000), make_store()
    store.prepare(state)
    store.save(state, 1)
    store.save(state, 2)
    state["embedding"] = np.concatenate([state["embedding"], rng.random((500, 16), np.float32)])
    staged = store.save(state, 3, touched={"embedding": [1499]})
    assert staged.prepared_bytes > 0
    assert_equal(newest_staged(store.directory, "state").arrays, state)


def test_with_headroom_new_rows_are_copied_in_place(make_store, rng):
    state, store = make_state(rng, rows=1000), make_store(headroom=1.0)
    store.prepare(state)
    for cut in range(1, 8):
        touched = train(state, rng)
        for name in touched:
            state[name] = np.concatenate([state[name], rng.random((50, 16), np.float32)])
        staged = store.save(state, cut, touched=touched)
        assert staged.prepared_bytes == 0
        if cut % 2:
            store.catch_up()
        assert_equal(newest_staged(store.directory, "state").arrays, state)
    assert staged.copied_bytes < 2 * 1000 * 64


def test_a_table_that_shrank_or_changed_its_type_is_stored_as_it_is(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    for cut, change in enumerate(
        [lambda a: a[:500], lambda a: a.astype(np.float16), lambda a: a.reshape(-1)]
    ):
        state["embedding"] = change(state["embedding"])
        store.save(state, cut, touched={"embedding": []})
        assert_equal(newest_staged(store.directory, "state").arrays, state)


def test_new_and_missing_keys_prepare_again_or_are_refused_by_name_without_a_lock_left(make_store, rng):
    state, store = make_state(rng), make_store(regrow=False)
    store.prepare(state)
    store.save(state, 1)
    larger = {**state, "bias": np.ones(3)}
    with pytest.raises(LayoutChanged, match="new: bias"):
        store.save(larger, 2)
    with pytest.raises(LayoutChanged, match="missing: step"):
        store.save({name: value for name, value in state.items() if name != "step"}, 2)
    store.save(state, 2)
    store.prepare(larger)
    store.save(larger, 3)
    assert_equal(newest_staged(store.directory, "state").arrays, larger)


def test_extra_bytes_that_outgrow_their_room_are_stored_whole(make_store, rng):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    store.save(state, 1, extra=b"x" * (3 << 20))
    assert newest_staged(store.directory, "state").extra == b"x" * (3 << 20)


def test_anything_with_a_cpu_buffer_is_saved_strided_arrays_included(make_store, rng):
    wide = rng.random((100, 8))
    state = {
        "bytes": bytearray(b"abc"),
        "view": memoryview(b"def"),
        "strided": wide[:, ::2],
        "empty": np.empty((0, 4)),
    }
    store = make_store()
    store.prepare(state)
    for cut in (1, 2, 3):
        wide[7] = cut
        store.save(state, cut, touched={"strided": [7]})
        assert_equal(newest_staged(store.directory, "state").arrays, state)


@pytest.mark.parametrize("value", [object(), [1, 2], np.array([object()]), np.zeros(2, [("a", "i4")])])
def test_what_has_no_buffer_is_refused_by_name(make_store, value):
    with pytest.raises(InputError, match="'weights'"):
        make_store().prepare({"weights": value})


@pytest.mark.parametrize("ids", [[1000], [-1], [0.5], np.ones(3, bool), np.array([2**63], np.uint64)])
def test_touched_rows_outside_the_table_are_refused(make_store, rng, ids):
    state, store = make_state(rng), make_store()
    store.prepare(state)
    with pytest.raises(InputError, match="embedding"):
        store.save(state, 1, touched={"embedding": ids})


def test_a_save_before_prepare_says_what_to_call(make_store, rng):
    with pytest.raises(NotPrepared, match="prepare"):
        make_store().save(make_state(rng), 1)


def test_memory_that_is_not_there_is_refused_with_its_sizes_and_nothing_stays(make_store, rng, root):
    store = make_store()
    huge = np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 40,), (0,))
    with pytest.raises(NotEnoughMemory, match=r"needs 8,650,\d\d\d MiB, .* left"):
        store.prepare({"huge": huge})
    assert not list(root.glob("job/state.*.*"))


def test_a_group_or_host_without_room_is_refused_too(root):
    for limit in ({"host_bytes": 1 << 30}, {"group_bytes": 1 << 30}):
        with pytest.raises(NotEnoughMemory, match="leaves 1,024 MiB"):
            room.require_room(1 << 30, room.Room(tmpfs_bytes=1 << 40, **limit), root)


def test_one_part_has_one_writer(make_store, rng):
    first = make_store()
    with pytest.raises(PartHeld, match="another"):
        make_store()
    make_store(part="other")
    first.close()
    make_store()


def test_a_clean_end_leaves_nothing_and_an_error_leaves_what_was_staged(make_store, rng, root):
    state = make_state(rng)
    store = make_store()
    store.prepare(state)
    store.save(state, 1)
    store.__exit__(RuntimeError, RuntimeError(), None)
    with make_store(part="other") as other:
        other.prepare(state)
        store = make_store()
        assert store.restore().cut == 1
        store.remove()
    assert not (root / "job").exists()


def test_the_sweep_takes_what_nobody_holds_and_the_log_does_not_keep(make_store, rng, root):
    state = make_state(rng)
    for job in ("dead", "kept", "held", "alive"):
        store = make_store(job)
        store.prepare(state)
        store.save(state, 1)
        if job != "alive":
            store.close()
    held = hold_job(root / "held")
    assert sweep(root, keep={"kept"}) == ["dead"]
    os.close(held)
    assert sweep(root, keep={"kept"}) == ["held"]
    assert sorted(path.name for path in root.iterdir()) == ["alive", "kept"]


def test_the_sweep_takes_a_directory_whose_lock_has_vanished(make_store, rng, root):
    state = make_state(rng)
    store = make_store("dead")
    store.prepare(state)
    store.save(state, 1)
    store.close()
    (root / "dead" / places.JOB_LOCK).unlink()
    assert sweep(root, keep=()) == ["dead"]
    assert not root.exists()


def test_another_model_a_newer_format_and_nothing_at_all_are_told_apart(make_store, rng):
    state, store = make_state(rng), make_store(model="a")
    store.prepare(state)
    with pytest.raises(NoCheckpoint, match="no cut of state"):
        store.restore()
    path = store.save(state, 1).path
    with pytest.raises(NoCheckpoint, match="no cut 2"):
        store.restore(cut=2)
    store.close()
    with pytest.raises(OtherModel, match="'a', not 'b'"):
        make_store(model="b").restore()
    newer = msgspec.structs.replace(open_staged(path).seal, version=9).encode()
    with open(path, "r+b") as file:
        file.write(newer)
    with pytest.raises(NewerCheckpoint, match="format 9"):
        newest_staged(path.parent, "state")


def test_every_flipped_byte_of_seal_and_head_hides_the_cut_and_the_older_one_is_found(make_store, rng):
    state, store = {"a": rng.random(10)}, make_store()
    store.prepare(state)
    store.save(state, 1)
    path = store.save(state, 2).path
    seal = open_staged(path).seal
    raw = path.read_bytes()
    for place in [*range(80), *range(4096, 4096 + seal.head_bytes)]:
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(bytes([raw[place] ^ 1]))
            file.flush()
            assert newest_staged(path.parent, "state").cut == 1
            file.seek(place)
            file.write(raw[place : place + 1])
    assert newest_staged(path.parent, "state").cut == 2
    os.truncate(path, 4000)
    assert newest_staged(path.parent, "state").cut == 1
    os.truncate(path, 0)
    assert newest_staged(path.parent, "state").cut == 1


@pytest.mark.parametrize("which", ["root", "job"])
def test_a_directory_that_others_may_write_to_is_not_used(tmp_path, which):
    root = tmp_path / "shm"
    directory = places.job_directory(root, "j")
    directory.mkdir(parents=True)
    (root if which == "root" else directory).chmod(0o777)
    with pytest.raises(AccessDenied, match="can be written by other users"):
        hold_job(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_neither_written_to_nor_read(tmp_path):
    root = tmp_path / "shm"
    directory = places.job_directory(root, "j")
    directory.mkdir(parents=True, mode=0o700)
    os.chown(root, 12345, 12345)
    with pytest.raises(AccessDenied, match="belongs to user 12345"):
        hold_job(directory)
    with pytest.raises(AccessDenied, match="ROVER_SHM"):
        places.job_directory(root, "j")


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "shm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AccessDenied, match="no directory"):
        places.job_directory(tmp_path / "shm", "j")


def test_what_is_made_is_for_this_user_alone(tmp_path):
    os.close(hold_job(tmp_path / "shm" / "j"))
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("shm", "shm/j")] == [0o700, 0o700]
