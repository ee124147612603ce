"""One step of each optimizer on a block of rows, in place and vectorised.

Fed by `rows.Rows`, which gathers the rows of a push into blocks that stay in the processor's cache. Apart, because this is the
arithmetic that an optimizer's paper states, and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rover_bus.ps.spec import Adagrad, Adam, Add, Optimizer, RowAdagrad, Sgd

Block = npt.NDArray[Any]  # (rows, width), or (rows, 1) for state that is one number a row


def state_columns(optimizer: Optimizer, width: int) -> tuple[tuple[int, str, float], ...]:
    """Return (columns, dtype, first value) of each piece of state that a row carries besides its values."""
    match optimizer:
        case Add() | Sgd():
            return ()
        case Adagrad(initial=initial):
            return ((width, "float32", initial),)
        case RowAdagrad(initial=initial):
            return ((1, "float32", initial),)
        case Adam():
            return ((width, "float32", 0.0), (width, "float32", 0.0), (1, "int32", 0))


def step(
    optimizer: Optimizer, values: Block, gradients: Block, state: tuple[Block, ...], rate_scale: float
) -> None:
    """Advance `values` and `state` by one push. `gradients` is used as scratch."""
    match optimizer:
        case Add():
            values += gradients
        case Sgd(rate=rate):
            gradients *= np.float32(rate * rate_scale)
            values -= gradients
        case Adagrad() | RowAdagrad():
            _adagrad(optimizer, values, gradients, state[0], rate_scale)
        case Adam():
            _adam(optimizer, values, gradients, state, rate_scale)


def _adagrad(
    optimizer: Adagrad | RowAdagrad, values: Block, gradients: Block, sums: Block, rate_scale: float
) -> None:
    squares = gradients * gradients
    sums += squares if isinstance(optimizer, Adagrad) else squares.mean(axis=1, keepdims=True)
    roots = np.sqrt(sums)
    roots += np.float32(optimizer.epsilon)
    gradients *= np.float32(optimizer.rate * rate_scale)
    gradients /= roots
    values -= gradients


def _adam(
    optimizer: Adam, values: Block, gradients: Block, state: tuple[Block, ...], rate_scale: float
) -> None:
    first, second, steps = state
    steps += 1
    first *= np.float32(optimizer.beta1)
    first += np.float32(1 - optimizer.beta1) * gradients
    second *= np.float32(optimizer.beta2)
    gradients *= gradients
    gradients *= np.float32(1 - optimizer.beta2)
    second += gradients
    # A row's bias corrections depend on its own number of steps, because rows advance only when they are touched.
    first_bias, second_bias = 1 - optimizer.beta1**steps, np.sqrt(1 - optimizer.beta2**steps)
    roots = np.sqrt(second)
    roots += (optimizer.epsilon * second_bias).astype(np.float32)
    np.divide(first, roots, out=gradients)
    gradients *= (optimizer.rate * rate_scale * second_bias / first_bias).astype(np.float32)
    values -= gradients
