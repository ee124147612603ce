"""Every optimizer of the union can be named by a user, stands in the reference, and steps as `rows` relies on."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import rover_bus.client as client
from rover_bus.ps import spec
from rover_bus.ps.optimizers import state_columns, step
from rover_bus.ps.spec import Init, Optimizer, Table

API = Path(__file__).parents[3] / "docs/api.md"
OPTIMIZERS = [kind() for kind in get_args(Optimizer)]
ROWS, WIDTH = 6, 4


def blocks(optimizer):
    """Values of some rows, two pushes of gradients, and fresh state."""
    random = np.random.default_rng(7)
    values, *gradients = (random.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(3))
    state = tuple(
        np.full((ROWS, columns), first, dtype) for columns, dtype, first in state_columns(optimizer, WIDTH)
    )
    return values, gradients, state


def stepped(optimizer, rate_scale=1.0, rows=slice(None)):
    """What the rows are after both pushes, and their state."""
    values, gradients, state = blocks(optimizer)
    values, state = values[rows], tuple(piece[rows] for piece in state)
    for each in gradients:
        step(optimizer, values, each[rows].copy(), state, rate_scale)
    return values, state


def test_each_is_a_name_of_the_client_library_and_of_its_reference():
    names = [each.__name__ for each in get_args(Optimizer)]
    assert [name for name in names if name not in client.__all__] == []
    text = API.read_text()
    assert [name for name in names if name not in text] == []


def test_each_value_that_a_program_may_declare_has_its_place_in_a_union():
    placed = {*get_args(Init), *get_args(Optimizer), *get_args(Table)}
    assert [kind.__name__ for kind in spec._Value.__subclasses__() if kind not in placed] == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_a_step_changes_values_and_every_piece_of_state_in_place(optimizer):
    values, _, state = blocks(optimizer)
    after, state_after = stepped(optimizer)
    assert not np.array_equal(values, after)
    assert [np.array_equal(*pieces) for pieces in zip(state, state_after, strict=True)] == [False] * len(
        state
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_a_row_is_stepped_as_it_would_be_alone(optimizer):
    together, state = stepped(optimizer)
    for row in range(ROWS):
        alone, own = stepped(optimizer, rows=slice(row, row + 1))
        assert np.array_equal(alone[0], together[row])
        assert all(np.array_equal(a[0], b[row]) for a, b in zip(own, state, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: type(each).__name__)
def test_a_rate_is_scaled_where_there_is_one(optimizer):
    """A push may scale it, for warm-up and decay; state does not depend on it."""
    full, state = stepped(optimizer)
    half, state_half = stepped(optimizer, rate_scale=0.5)
    assert np.array_equal(full, half) != hasattr(optimizer, "rate")
    assert all(np.array_equal(a, b) for a, b in zip(state, state_half, strict=True))
