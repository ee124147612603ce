"""P1: batch k is the same samples for ever, whoever trains it, in whatever generation."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest

from rover_bus.client.data.order import BLOCK_ROWS, WINDOW_BLOCKS, Order, derive_key, permute
from rover_bus.master.stream import Streams

ROWS, BATCH = 20_000, 100


class KeyedByGeneration(Order):
    _key = cached_property(lambda self: derive_key(self.seed, self.epoch, 1))


def trained_across_a_rewind(before: Order, after: Order):
    """Slots that survive a rewind hold the first half of the batches and ignore them when they come again."""
    witness = np.zeros(ROWS, int)
    for number in range(ROWS // BATCH):
        order = before if number < ROWS // BATCH // 2 else after
        witness[order.locate(number * BATCH, (number + 1) * BATCH)] += 1
    return witness


def test_a_batch_is_the_same_rows_after_a_rewind():
    assert np.all(trained_across_a_rewind(Order(ROWS, 7, 2), Order(ROWS, 7, 2)) == 1)


def test_with_the_generation_in_the_key_rows_are_lost_and_doubled():
    assert set(trained_across_a_rewind(Order(ROWS, 7, 2), KeyedByGeneration(ROWS, 7, 2))) == {0, 1, 2}


class ShortBlockToo(Order):
    def blocks(self, window):
        total = -(-self.rows // BLOCK_ROWS)
        first = window * WINDOW_BLOCKS
        return permute(np.arange(first, min(first + WINDOW_BLOCKS, total)), total, 1)


@pytest.mark.parametrize("rows", [1, 511, 513, 8192, 8193, ROWS])
def test_an_epoch_visits_every_row_once(rows):
    assert np.array_equal(np.sort(Order(rows, 1, 0).locate(0, rows)), np.arange(rows))


def test_with_the_short_block_among_the_full_ones_rows_beyond_the_end_are_visited():
    assert ShortBlockToo(ROWS, 1, 0).locate(0, ROWS).max() >= ROWS


class FillsUp(Streams):
    def slices(self, first, end):
        size = self.batch_size
        return [(p, a, b, low, low + (b - a) * size) for p, a, b, low, _ in super().slices(first, end)]


def released_after_the_stream_grew(kind):
    """Records 0 to 15 are granted as two batches, the second short; then the stream grows, and all is leased anew."""
    streams = kind(10, {})
    for high_water, next_batch in ((15, 0), (25, 2)):
        streams.fix(streams.propose(next_batch, 1, 100, {"p": high_water})[2])
    return [
        number
        for batch in range(3)
        for *_, low, end in streams.slices(batch, batch + 1)
        for number in range(low, end)
    ]


def test_the_ends_of_a_streams_batches_are_fixed_at_their_grant():
    assert released_after_the_stream_grew(Streams) == list(range(25))


def test_with_batches_that_grow_records_are_in_two_batches():
    records = released_after_the_stream_grew(FillsUp)
    assert len(records) > len(set(records))
