"""Parity groups: any r of k + r may be lost; versions are whole cuts; deltas count once (P13)."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.events.errors import InputError
from rover_bus.flash import gf256
from rover_bus.flash.copying import as_bytes, take_rows
from rover_bus.flash.errors import BrokenCheckpoint, NoCheckpoint
from rover_bus.flash.layout import plan_layout
from rover_bus.flash.parity import (
    Outcome,
    ParityBlock,
    PartDelta,
    RowsChanged,
    encode,
    rebuild,
)

BYTES = st.integers(0, 255)


@given(BYTES, BYTES, BYTES)
def test_the_field_is_a_field(a, b, c):
    assert gf256.product(a, b) == gf256.product(b, a)
    assert gf256.product(a, gf256.product(b, c)) == gf256.product(gf256.product(a, b), c)
    assert gf256.product(a, b ^ c) == gf256.product(a, b) ^ gf256.product(a, c)
    if a:
        assert gf256.product(a, gf256.inverse(a)) == 1


def test_the_field_is_that_of_raid_6():
    assert [gf256.power(n) for n in (0, 1, 7, 8, 9, 254, 255)] == [1, 2, 128, 0x1D, 0x3A, 0x8E, 1]
    with pytest.raises(ZeroDivisionError):
        gf256.inverse(0)


@given(st.binary(max_size=70), BYTES)
def test_a_buffer_is_multiplied_byte_by_byte(raw, factor):
    source = np.frombuffer(raw, np.uint8)
    expected = [gf256.product(value, factor) for value in raw]
    assert list(gf256.multiply(source, factor)) == expected
    target = np.arange(len(raw) + 3, dtype=np.uint8)
    gf256.add_product(target, source, factor)
    assert list(target) == [
        value ^ more for value, more in zip(range(len(raw) + 3), [*expected, 0, 0, 0], strict=True)
    ]


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(0, 2), st.integers(0, 1000), st.data())
def test_any_loss_within_the_parity_is_rebuilt_to_the_bit(count, parities, seed, data):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 256, rng.integers(0, 500)).astype(np.uint8) for _ in range(count)]
    blocks = dict(enumerate(encode(parts, parities)))
    members = [("part", n) for n in range(count)] + [("parity", n) for n in range(parities)]
    lost = data.draw(st.lists(st.sampled_from(members), max_size=parities, unique=True))
    left = {n: part for n, part in enumerate(parts) if ("part", n) not in lost}
    rebuilt = rebuild(count, left, {n: block for n, block in blocks.items() if ("parity", n) not in lost})
    assert rebuilt.keys() == {n for kind, n in lost if kind == "part"}
    for number, image in rebuilt.items():
        np.testing.assert_array_equal(image[: len(parts[number])], parts[number])
        assert not image[len(parts[number]) :].any()


def test_the_largest_group_survives_every_pair_of_losses():
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 256, (255, 8)).astype(np.uint8)
    blocks = dict(enumerate(encode(list(parts), 2)))
    for lost in [*itertools.pairwise(range(255)), (0, 254), (0, 127)]:
        left = {n: part for n, part in enumerate(parts) if n not in lost}
        for number, image in rebuild(255, left, blocks).items():
            np.testing.assert_array_equal(image, parts[number])


def test_more_losses_than_parity_are_refused_by_name():
    with pytest.raises(NoCheckpoint, match="parts 0, 2 are lost and 1 parity"):
        rebuild(3, {1: np.zeros(4, np.uint8)}, {1: np.zeros(4, np.uint8)})
    with pytest.raises(InputError, match="at most 255"):
        ParityBlock(256, 0)


class Part:
    """A part that changes, and says how."""

    def __init__(self, number, rng):
        self.number, self.rng, self.cut = number, rng, 0
        self.arrays = {"emb": rng.random((50 + 3 * number, 4)), "mlp": rng.random(10)}
        self.layout = plan_layout(self.arrays)

    @property
    def image(self):
        image = np.zeros(self.layout.data_bytes, np.uint8)
        for name, view in self.layout.views(image).items():
            view[...] = self.arrays[name]
        return image

    def delta(self, cut):
        old, base = {name: array.copy() for name, array in self.arrays.items()}, self.cut
        ids = np.unique(self.rng.integers(0, 50, 5))
        self.arrays["emb"][ids] += 1
        self.arrays["mlp"] += 1
        self.cut = cut
        if base == 0:
            changes = (describe_whole(self.image),)
        else:
            emb, mlp = self.layout.entries
            every = np.arange(len(self.arrays["mlp"]))
            changes = (
                describe_rows(emb, old["emb"], self.arrays["emb"], ids),
                describe_rows(mlp, old["mlp"], self.arrays["mlp"], every),
            )
        return PartDelta(
            part=self.number, base_cut=base, cut=cut, size_bytes=self.layout.data_bytes, changes=changes
        )


def describe_rows(entry, old, new, ids):
    """The difference of touched rows of an array that lies at `entry` in both cuts. `ids` sorted and distinct."""
    row_bytes = new.nbytes // max(1, len(new))
    difference = as_bytes(take_rows(old, ids))
    np.bitwise_xor(difference, as_bytes(take_rows(new, ids)), out=difference)
    return RowsChanged(offset_bytes=entry.offset_bytes, row_bytes=row_bytes, ids=ids, difference=difference)


def describe_whole(new, old=None):
    """The difference of two images, or a first image, as one run."""
    size = max(len(new), 0 if old is None else len(old))
    difference = np.zeros(size, np.uint8)
    difference[: len(new)] = new
    if old is not None:
        gf256.add_product(difference, old, 1)
    return RowsChanged(offset_bytes=0, row_bytes=1, ids=np.empty(0, np.int64), difference=difference)


def make_group(rng, parity=1, count=4):
    return [Part(number, rng) for number in range(count)], ParityBlock(count, parity)


@pytest.mark.parametrize("parity", [0, 1])
def test_deltas_keep_a_block_equal_to_the_parity_of_the_images(rng, parity):
    parts, block = make_group(rng, parity)
    for cut in range(1, 8):
        outcomes = [block.add(part.delta(cut)) for part in rng.permutation(parts)]
        assert outcomes == [Outcome.ADDED] * 3 + [Outcome.COMPLETED]
        np.testing.assert_array_equal(block.valid, encode([part.image for part in parts], 2)[parity])
        images = {part.number: part.image for part in parts}
        del images[2]
        np.testing.assert_array_equal(
            rebuild(4, images, {parity: block.valid})[2][: len(parts[2].image)], parts[2].image
        )


def test_the_cut_before_stays_valid_until_all_deltas_are_in(rng):
    parts, block = make_group(rng)
    for part in parts:
        block.add(part.delta(1))
    first = block.valid.copy()
    for part in parts[:3]:
        assert block.add(part.delta(2)) is Outcome.ADDED
        assert block.cut == 1
        np.testing.assert_array_equal(block.valid, first)
    assert block.add(parts[3].delta(2)) is Outcome.COMPLETED
    assert block.cut == 2
    assert (block.valid != first).any()


def test_repeated_stale_early_and_gapped_deltas_change_nothing(rng):
    parts, block = make_group(rng)
    for part in parts:
        block.add(part.delta(1))
    second = parts[0].delta(2)
    assert block.add(second) is Outcome.ADDED
    assert block.add(second) is Outcome.REPEATED
    assert block.add(parts[0].delta(3)) is Outcome.EARLY
    assert block.add(msgspec.structs.replace(second, cut=1)) is Outcome.STALE
    assert block.add(msgspec.structs.replace(second, part=1, base_cut=0)) is Outcome.GAP
    with pytest.raises(InputError, match="not in this group"):
        block.add(msgspec.structs.replace(second, part=4))
    for part in parts[1:]:
        block.add(part.delta(2))
    images = [part.image for part in parts[1:]]
    rebuilt = rebuild(4, dict(enumerate(images, 1)), {1: block.valid})[0]
    expected = parts[0].image  # is at cut 3 by now: its rows of cut 2 were changed again
    assert (rebuilt[: len(expected)] != expected).any()
    assert block.cut == 2


def test_an_abandoned_cut_leaves_the_valid_one_to_build_on(rng):
    parts, block = make_group(rng)
    for part in parts:
        block.add(part.delta(1))
    parts_at_first = [part.image for part in parts]
    block.add(parts[0].delta(2))
    block.abandon()
    for part, old in zip(parts, parts_at_first, strict=True):
        part.delta(3)
        whole = describe_whole(part.image, old)
        block.add(PartDelta(part=part.number, base_cut=1, cut=3, size_bytes=len(old), changes=(whole,)))
    np.testing.assert_array_equal(block.valid, encode([part.image for part in parts], 2)[1])


@pytest.mark.parametrize(
    "change",
    [
        {"offset_bytes": -64},
        {"offset_bytes": 1 << 40},
        {"ids": np.array([-1])},
        {"ids": np.array([5, 5])},
        {"row_bytes": 7},
    ],
)
def test_a_hostile_delta_is_refused_and_changes_nothing(rng, change):
    parts, block = make_group(rng)
    for part in parts:
        block.add(part.delta(1))
    before, delta = block.valid.copy(), parts[0].delta(2)
    broken = msgspec.structs.replace(delta.changes[0], **change)
    with pytest.raises(BrokenCheckpoint):
        block.add(msgspec.structs.replace(delta, changes=(broken,)))
    assert block.add(delta) is Outcome.ADDED
    for part in parts[1:]:
        block.add(part.delta(2))
    assert (block.valid != before).any()
    np.testing.assert_array_equal(block.valid, encode([part.image for part in parts], 2)[1])
