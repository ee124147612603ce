"""The visiting order of an epoch (protocol P1). The golden vectors may be rewritten only with a new major version of the log."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_bus.client.data.order import (
    BLOCK_ROWS,
    WINDOW_BLOCKS,
    WINDOW_ROWS,
    Order,
    derive_key,
    permute,
    splitmix64,
)

SEEDS = st.integers(0, 2**64 - 1)


def test_the_hash_is_splitmix64_and_keys_depend_on_every_part_in_order():
    """First output of the reference implementation for seed 0 (Steele, Lea, Flood 2014)."""
    assert [hex(word) for word in splitmix64(np.array([0, 1], np.uint64))] == [
        "0xe220a8397b1dcdaf",
        "0x910a2dec89025cc1",
    ]
    assert derive_key(1, 2) == 0xBCD9DBB49673066B
    assert derive_key(-1, 2**70) == 0x5DC20AA7B2A27137
    assert derive_key(2, 1) != derive_key(1, 2)


def test_golden_vectors_pin_the_permutation_of_blocks():
    assert permute(np.arange(10), 10, derive_key(7, 0)).tolist() == [8, 5, 3, 2, 6, 7, 9, 0, 4, 1]
    assert permute(np.arange(10**6, 10**6 + 4), 2 * 10**6, 5).tolist() == [542493, 476715, 1563380, 385774]
    order = Order(rows=80_000, seed=7, epoch=0)
    assert order.blocks(0).tolist() == [114, 27, 19, 141, 15, 35, 58, 66, 45, 9, 29, 59, 152, 84, 88, 119]
    assert order.blocks(9).tolist() == [105, 18, 96, 89, 136, 79, 39, 109, 73, 52, 60, 51, 156]


def test_golden_vectors_pin_the_permutation_of_rows_inside_a_window():
    order = Order(rows=80_000, seed=7, epoch=0)
    assert order.shuffle(0)[:8].tolist() == [1751, 6517, 929, 5697, 5417, 5035, 2419, 6232]
    assert order.locate(0, 4).tolist() == [72407, 78197, 14241, 30273]
    assert order.locate(79_996, 80_000).tolist() == [49600, 46031, 54038, 53861]
    huge = Order(rows=10**9, seed=3, epoch=2**40)
    assert huge.locate(123456789, 123456792).tolist() == [555387830, 148034250, 148034254]


@given(rows=st.integers(1, 60_000), seed=SEEDS, epoch=st.integers(0, 2**70))
@settings(max_examples=60, deadline=None)
def test_every_row_stands_at_exactly_one_position(rows, seed, epoch):
    seen = np.sort(Order(rows, seed, epoch).locate(0, rows))
    assert np.array_equal(seen, np.arange(rows))


@given(size=st.integers(1, 10**9), key=SEEDS, first=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_blocks_of_any_number_are_permuted_without_a_collision(size, key, first):
    places = np.arange(min(first, size - 1), min(first + 3000, size))
    images = permute(places, size, key)
    assert len(np.unique(images)) == len(places)
    assert images.min() >= 0
    assert images.max() < size


@given(rows=st.integers(1, 10**9), seed=SEEDS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_of_positions_is_a_slice_of_its_windows_at_any_size(rows, seed, data):
    order = Order(rows, seed, 0)
    first = data.draw(st.integers(0, rows - 1))
    last = min(first + data.draw(st.integers(0, 20_000)), rows)
    located = order.locate(first, last)
    assert len(located) == last - first
    assert len(np.unique(located)) == len(located)
    for position in range(first, last, 997):
        window, place = divmod(position, WINDOW_ROWS)
        assert order.window(window)[place] == located[position - first]


@given(rows=st.integers(1, 10**7), seed=SEEDS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_window_is_at_most_sixteen_sequential_block_reads(rows, seed, data):
    order = Order(rows, seed, 0)
    window = data.draw(st.integers(0, order.windows - 1))
    blocks = order.blocks(window)
    assert len(blocks) <= WINDOW_BLOCKS
    assert set(order.window(window) // BLOCK_ROWS) == set(blocks)


@given(full=st.integers(0, 200), short=st.integers(1, BLOCK_ROWS - 1), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_only_full_blocks_are_permuted_and_the_short_one_comes_last(full, short, seed):
    order = Order(full * BLOCK_ROWS + short, seed, 0)
    blocks = np.concatenate([order.blocks(window) for window in range(order.windows)])
    assert blocks[-1] == full
    assert sorted(blocks.tolist()) == list(range(full + 1))


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    orders = {
        (seed, epoch): tuple(Order(20_000, seed, epoch).locate(0, 50))
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 16
    assert orders[2, 3] == tuple(Order(20_000, 2, 3).locate(0, 50))


def test_sorted_rows_come_out_as_well_mixed_as_a_full_shuffle():
    """What P1 is for: a file sorted by user must not come back user by user."""
    order = Order(rows=80_000, seed=1, epoch=0)
    users = order.locate(0, 80_000) // 100
    neighbours = np.mean(users[1:] == users[:-1])
    within_window = np.mean([len(np.unique(users[first : first + 128])) for first in range(0, 79_000, 128)])
    assert neighbours < 0.02
    assert within_window > 60  # blocks alone: 2 or 3 users a batch


def test_positions_outside_the_epoch_are_refused():
    order = Order(rows=100, seed=0, epoch=0)
    assert order.locate(100, 100).tolist() == []
    for first, last in [(-1, 5), (0, 101), (5, 4)]:
        with pytest.raises(IndexError, match="outside an epoch of 100 rows"):
            order.locate(first, last)
    for window in (-1, 1):
        with pytest.raises(IndexError, match="outside an epoch of 1 windows"):
            order.window(window)
