"""The pure parts of the store: which slot (P12), what is dirty, what fits, what a seal says."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_bus.flash.choice import Candidate, choose_slot, may_overwrite
from rover_bus.flash.copying import Piece, copy
from rover_bus.flash.dirty import DirtyRows, DirtySet, as_ids
from rover_bus.flash.errors import BrokenCheckpoint, SlotsBusy
from rover_bus.flash.journal import read_touched, write_touched
from rover_bus.flash.layout import IndexEntry, as_arrays, fit, plan_layout
from rover_bus.flash.seal import SEAL, Seal, read_seal


def candidates(draw):
    saves = draw(st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True))
    return [
        Candidate(
            number=n, save_number=save, cut=save, cost_bytes=draw(st.integers(0, 5)), busy=draw(st.booleans())
        )
        for n, save in enumerate(saves)
    ]


@given(st.composite(candidates)(), st.integers(0, 9))
def test_the_newest_complete_cut_is_never_overwritten_and_the_cheapest_free_slot_is(slots, complete):
    free = [slot for slot in slots if may_overwrite(slot.save_number, complete) and not slot.busy]
    if not free:
        with pytest.raises(SlotsBusy):
            choose_slot(slots, complete)
        return
    chosen = choose_slot(slots, complete)
    assert not chosen.busy
    assert chosen.save_number < max(complete, 1)
    assert chosen.cost_bytes == min(slot.cost_bytes for slot in free)


@given(st.lists(st.lists(st.integers(0, 49)), max_size=8), st.booleans())
def test_dirty_rows_hold_every_touched_row(intervals, whole):
    rows = DirtyRows()
    for ids in intervals:
        rows.add(np.array(ids, np.int64), 50)
    if whole:
        rows.add_whole()
    touched = {row for ids in intervals for row in ids}
    assert rows.whole or set(rows.ids) == touched
    assert not rows.whole or whole or len(touched) > 0.2 * 50, "scattered rows stay cheaper than all rows"


@given(
    st.lists(st.integers(0, 29), max_size=20),
    st.integers(0, 3),
    st.sampled_from(["f4", "i8", "u1", "f2"]),
    st.booleans(),
)
def test_a_slot_brought_up_to_date_equals_the_state(ids, extra_dimensions, dtype, strided):
    shape = (30, 4, 3)[: extra_dimensions + 1]
    rng = np.random.default_rng(1)
    old = (rng.random(shape) * 99).astype(dtype)
    new = old.copy()
    new[ids] = (rng.random(shape) * 99).astype(dtype)[ids]
    source = np.repeat(new, 2, axis=-1)[..., ::2] if strided else new
    dirty, slot = DirtySet(), old.copy()
    dirty.clean()
    dirty.note({"a": as_ids("a", ids, 30)}, {"a": source})
    (entry,) = plan_layout({"a": old}).entries
    copy([Piece(slot, source, dirty.stale(entry, source))], 1, None)
    np.testing.assert_array_equal(slot, new)


def test_arrays_nobody_tracked_are_stale_as_a_whole():
    arrays = {"a": np.zeros((10, 2)), "b": np.zeros(3)}
    dirty = DirtySet()
    entries = {entry.name: entry for entry in plan_layout(arrays).entries}
    assert dirty.stale(entries["a"], arrays["a"]) is None
    dirty.clean()
    dirty.note({"a": np.array([1])}, arrays)
    assert list(dirty.stale(entries["a"], arrays["a"])) == [1]
    assert dirty.stale(entries["b"], arrays["b"]) is None
    assert not dirty.is_clean
    dirty.clean_rows("a")
    assert list(dirty.stale(entries["a"], arrays["a"])) == []
    assert dirty.stale(entries["b"], arrays["b"]) is None


@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.floats(0, 2))
def test_arrays_lie_aligned_and_apart_and_fit_their_own_layout(sizes, headroom):
    arrays = as_arrays({f"a{n}": np.zeros((size, 3), "u1") for n, size in enumerate(sizes)})
    layout = plan_layout(arrays, headroom)
    data = np.zeros(layout.data_bytes, np.uint8)
    for value, view in enumerate(layout.views(data).values(), 1):
        assert not view.any()
        view[:] = value
    assert all(entry.offset_bytes % 64 == 0 for entry in layout.entries)
    assert fit(layout, arrays) == (layout, "")
    assert fit(layout, {**arrays, "more": data})[1] == "new: more"
    grown = {**arrays, "a0": np.zeros((layout.entries[0].room_bytes // 3 + 1, 3), "u1")}
    assert "a0 grew" in fit(layout, grown)[1]


@pytest.mark.parametrize(
    "hostile",
    [
        {"dtype": "O"},
        {"dtype": "nonsense"},
        {"dtype": "V0"},
        {"shape": (1 << 62, 1 << 62)},
        {"shape": (-1, -8)},
        {"offset_bytes": -8},
        {"offset_bytes": 1 << 62},
    ],
)
def test_a_hostile_layout_is_refused(hostile):
    fields = {"name": "a", "dtype": "<f8", "shape": (2,), "offset_bytes": 0, "room_bytes": 64, **hostile}
    with pytest.raises(BrokenCheckpoint):
        IndexEntry(**fields).view(np.zeros(64, np.uint8))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_seal_are_never_taken_for_one(raw):
    with suppress(BrokenCheckpoint):
        assert read_seal(raw) is None


def test_a_seal_reads_as_written_and_not_at_all_when_cut_short():
    seal = Seal(
        timeline=1, generation=2, cut=3, save_number=4, head_bytes=5, head_digest=6, data_offset_bytes=4096
    )
    raw = seal.encode()
    assert len(raw) == SEAL.size
    assert read_seal(raw) == seal
    assert all(read_seal(raw[:end]) is None for end in range(len(raw)))
    torn = (raw[:end] + bytes(len(raw) - end) for end in range(len(raw)))
    for half in torn:
        if half[:8] == bytes(8):
            assert read_seal(half) is None, "void"
        elif half != raw:
            with pytest.raises(BrokenCheckpoint, match="bytes 0 to 80"):
                read_seal(half)


def test_the_touched_rows_of_several_saves_add_up_and_a_missing_link_is_noticed(root):
    write_touched(root, "ps-0", 2, 1, {"a": np.array([5, 3]), "b": np.array([1])})
    write_touched(root, "ps-0", 3, 2, {"a": np.array([3, 1 << 40])})
    both = read_touched(root, "ps-0", 3, since_save=1)
    assert {name: list(ids) for name, ids in both.items()} == {"a": [3, 5, 1 << 40]}, "b was saved whole once"
    assert read_touched(root, "ps-0", 3, since_save=0) is None
    assert read_touched(root, "ps-0", 4, since_save=2) is None
    (root / "ps-0.2.touched").write_bytes(b"\xc1")
    assert read_touched(root, "ps-0", 3, since_save=1) is None


def test_old_links_are_forgotten(root):
    for number in range(1, 100):
        write_touched(root, "ps-0", number, number - 1, {"a": np.array([number])})
    assert len(list(root.iterdir())) == 64
