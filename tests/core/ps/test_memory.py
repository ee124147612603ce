"""Memory is asked for ahead of the rows, once, and asking changes nothing that is in it."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from rover_bus.ps.memory import WARM_AHEAD_BYTES, Stretch, populate

ROWS, ROW_BYTES = 1 << 20, 64


@pytest.fixture
def stretch():
    made = Stretch(16, "float32")
    made.grow(ROWS)
    if made._range is None:
        pytest.skip("this system reserves no address range")
    return made


def test_pages_are_named_once_and_before_the_rows_come(stretch):
    first = stretch.cold(1000)
    assert [(pages.first, pages.end >= 1000 * ROW_BYTES + WARM_AHEAD_BYTES // 2) for pages in first] == [
        (0, True)
    ]
    assert stretch.cold(1000) == []
    (later,) = stretch.cold(ROWS)
    assert later.first == first[0].end
    assert later.end >= ROWS * ROW_BYTES
    assert stretch.cold(ROWS) == []


def test_another_range_is_cold_again_and_a_small_array_never_is(stretch):
    stretch.cold(ROWS)
    stretch.adopt(np.zeros((10, 16), np.float32))
    assert stretch.cold(10) == []
    stretch.grow(ROWS)
    assert [pages.first for pages in stretch.cold(ROWS)] == [0]


def test_populated_memory_is_there_and_holds_what_it_held(stretch):
    stretch.array[:1000] = 7.0
    before = psutil.Process().memory_info().rss
    cold = stretch.cold(ROWS)
    populate(cold)
    grown = psutil.Process().memory_info().rss - before
    if not grown:
        pytest.skip("this kernel does not populate memory ahead (Linux 5.14 does)")
    assert grown >= 0.9 * (ROWS - 1000) * ROW_BYTES - (4 << 20)
    assert (stretch.array[:1000] == 7.0).all()
    assert not stretch.array[1000:].any()
