"""What a training program declares: tables, their optimizers, their first values.

Fed by user code through `Parameters.declare`; read by `tables` (storage) and `initial` (first values); compared between
workers, because two workers that declare different tables do not train the same model. Apart, because it is the only part
of the parameter servers that a model developer writes down.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import InputError

Dtype = Literal["float32", "int32", "int64"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[np.float32] | npt.NDArray[np.int32] | npt.NDArray[np.int64]

# What a declaration says must still be a number as float32, with room for 4.9 deviations and a rate's scale: what is too large
# would become infinite first values, and an epsilon that is too small 0 / 0 in rows without a gradient.
MOST = 1e30
Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Bounded = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
Epsilon = Annotated[float, msgspec.Meta(ge=1 / MOST, le=MOST)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Width = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

LINE = 64  # elements of a dense array that share one stored row: 256 bytes of float32
CHUNK_LINES = 256  # of a dense array, stored in one slot: 64 KiB of float32


class _Value(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Base of plain values that cross the wire with their kind."""


# --- first values ---------------------------------------------------------------------------------------------------


class Zeros(_Value, frozen=True, tag="zeros"):
    """Every first value is 0."""


class Constant(_Value, frozen=True, tag="constant"):
    """Every first value is `value`."""

    value: Bounded


class Uniform(_Value, frozen=True, tag="uniform"):
    """First values are uniform in [-scale, scale)."""

    scale: NotNegative


class Normal(_Value, frozen=True, tag="normal"):
    """First values are bell-shaped with deviation `std`, bounded by 4.9 of them (eight uniforms: exact on every machine)."""

    std: NotNegative


Init = Zeros | Constant | Uniform | Normal


# --- optimizers: g is the gradient of a row, summed over its occurrences in the batch ---------------------------------


class Sgd(_Value, frozen=True, tag="sgd"):
    """w -= rate * g."""

    rate: Positive = 0.01


class Adagrad(_Value, frozen=True, tag="adagrad"):
    """a += g^2; w -= rate * g / (sqrt(a) + epsilon). State: `a`, one an element, first value `initial` (Duchi et al. 2011)."""

    rate: Positive = 0.05
    initial: NotNegative = 0.0
    epsilon: Epsilon = 1e-8


class RowAdagrad(_Value, frozen=True, tag="row_adagrad"):
    """Adagrad with one accumulator a row: a += mean(g^2). Rows of tables only: a dense array has no rows of its own."""

    rate: Positive = 0.05
    initial: NotNegative = 0.0
    epsilon: Epsilon = 1e-8


class Adam(_Value, frozen=True, tag="adam"):
    """Adam (Kingma and Ba 2015), lazily: moments and the step number of a row advance only when the row is pushed."""

    rate: Positive = 0.001
    beta1: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.999
    epsilon: Epsilon = 1e-8


class Add(_Value, frozen=True, tag="add"):
    """w += what is pushed. For counters, and for tests that must come out exact (the witness)."""


Optimizer = Sgd | Adagrad | RowAdagrad | Adam | Add


# --- tables -----------------------------------------------------------------------------------------------------------


class Dense(_Value, frozen=True, kw_only=True, tag="dense"):
    """One array, pulled and pushed whole (a layer's weights). Stored in chunks of at most 64 KiB, spread over the slots."""

    name: Name
    shape: tuple[Size, ...]
    optimizer: Optimizer
    init: Init = Zeros()
    dtype: Dtype = "float32"
    l2: NotNegative = 0.0
    clip: NotNegative = 0.0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def lines(self) -> int:
        """Number of stored rows of LINE elements."""
        return -(-self.size // LINE)


class Hashed(_Value, frozen=True, kw_only=True, tag="hashed"):
    """`rows` rows of `width` for any number of ids: an id's row is id mod rows, so ids below `rows` have one of their own.

    `mixed=True` scrambles ids first: for ids that are themselves structured (aligned, say), so that they spread evenly.
    """

    name: Name
    rows: Size
    width: Width
    optimizer: Optimizer
    init: Init = Zeros()
    dtype: Dtype = "float32"
    l2: NotNegative = 0.0
    clip: NotNegative = 0.0
    mixed: bool = False


class Growing(_Value, frozen=True, kw_only=True, tag="growing"):
    """One row of `width` for every id that was ever pushed. A pull of an unknown id answers its first value."""

    name: Name
    width: Width
    optimizer: Optimizer
    init: Init = Zeros()
    dtype: Dtype = "float32"
    l2: NotNegative = 0.0
    clip: NotNegative = 0.0


Table = Dense | Hashed | Growing


def check_table(table: Table) -> Table:
    """Return the table, or raise InputError saying what about it cannot be. Bounds hold on this side as on the wire."""
    try:
        msgspec.convert(msgspec.to_builtins(table), Table)
    except msgspec.ValidationError as error:
        raise InputError(f"table {table.name!r}: {error}") from None
    integers, adds = table.dtype != "float32", isinstance(table.optimizer, Add)
    if integers and not adds:
        raise InputError(
            f"table {table.name!r} holds {table.dtype}: only the optimizer Add() can train integers"
        )
    if integers and (table.l2 or table.clip or isinstance(table.init, Uniform | Normal)):
        raise InputError(
            f"table {table.name!r} holds {table.dtype}: l2, clip and random first values need float32"
        )
    if integers and isinstance(table.init, Constant) and not _held_by(table.dtype, table.init.value):
        raise InputError(
            f"table {table.name!r} holds {table.dtype}: {table.init.value!r} is not one, so it cannot be the first value"
        )
    if isinstance(table, Dense) and isinstance(table.optimizer, RowAdagrad):
        raise InputError(f"table {table.name!r} is dense and has no rows: use Adagrad instead of RowAdagrad")
    if isinstance(table, Hashed) and table.rows > 2**31 - 1:
        raise InputError(
            f"table {table.name!r} has {table.rows} rows: at most {2**31 - 1}, or use a Growing table"
        )
    return table


def _held_by(dtype: str, value: float) -> bool:
    bounds = np.iinfo(dtype)
    return float(value).is_integer() and bounds.min <= int(value) <= bounds.max


def difference(ours: Table, theirs: Table) -> str:
    """Say in words what two declarations of one name differ in; empty when they are equal."""
    if type(ours) is not type(theirs):
        return f"{type(ours).__name__} here, {type(theirs).__name__} there"
    parts = (
        f"{field}: {getattr(ours, field)!r} here, {getattr(theirs, field)!r} there"
        for field in ours.__struct_fields__
        if getattr(ours, field) != getattr(theirs, field)
    )
    return "; ".join(parts)
