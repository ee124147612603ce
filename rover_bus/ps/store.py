"""What a training loop sees of its parameters, whether they live in this process or on servers.

Implemented by `local.LocalParameters` (one process: `rover run --plain`, standalone mode, the yardstick of bench/ps.py) and
`client.RemoteParameters` (several servers). Apart, so that a training program depends on this page and on `spec` alone.

    parameters.declare(Growing(name="item", width=16, optimizer=Adagrad(rate=0.1), init=Normal(0.01)),
                       Dense(name="w", shape=(16, 1), optimizer=Adagrad(rate=0.1), init=Uniform(0.2)))
    for batch in batches:
        got = parameters.pull({"item": ids})                    # got["item"]: ids.shape + (16,); got["w"]: (16, 1)
        ...
        parameters.push(BatchKey(epoch, number), {"item": d_item, "w": d_w})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from rover_bus.events.errors import TemporaryError
from rover_bus.ps.spec import Array, Table

Additions = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]  # (ids, values) by table


class BatchKey(NamedTuple):
    """Which batch a push belongs to: with the generation, its identity (protocol P2)."""

    epoch: int
    number: int


class Acknowledged(NamedTuple):
    """A batch that every server has applied (or had applied already: `repeated`). Progress and commits are made of these."""

    batch: BatchKey
    generation: int
    incarnations: tuple[int, ...]  # of the servers that acked, by server index
    repeated: bool  # at least one server held it already: this gradient was computed a second time
    staleness_batches: (
        int  # batches of others applied between this one's pull and its push, the largest over the servers
    )


class Exported(NamedTuple):
    """A whole table. `ids` is None for a dense array; rows `values[i]` belong to `ids[i]`, ascending."""

    values: npt.NDArray[Any]
    ids: npt.NDArray[np.int64] | None = None


class Pulled(dict[str, Array]):
    """Values by table name, plain arrays that belong to the caller. Remembers what was pulled, for the push."""

    __slots__ = ("plan",)
    plan: Any


class PushOptions(TypedDict, total=False):
    """What `Parameters.push` takes beside the gradients, for implementations that hand it on."""

    rate_scale: float
    add: Additions | None
    pulled: Pulled | None


class ServersUnreachable(TemporaryError):
    """A server did not answer within our patience. What was on its way is kept: `flush` or the next call goes on with it."""

    code = "servers_unreachable"


class GenerationChanged(TemporaryError):
    """The job was rewound (protocol P8): batches in flight belong to the past. Drop them and ask for new leases."""

    code = "generation_changed"


class Parameters(Protocol):
    """The parameters of one job, as its training thread sees them. Not thread-safe: one training thread a store."""

    def declare(self, *tables: Table) -> None:
        """Say which tables the program trains. Idempotent; refused with the difference when another worker declared otherwise."""

    def pull(self, ids: Mapping[str, npt.NDArray[Any]]) -> Pulled:
        """Return rows for integer ids of any shape (result: shape + (width,)), and every dense float array whole.

        Ids may repeat. Unknown ids of growing tables get their first value; nothing is allocated.
        """

    def push(
        self,
        batch: BatchKey,
        gradients: Mapping[str, npt.NDArray[Any]],
        *,
        rate_scale: float = 1.0,
        add: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None = None,
        pulled: Pulled | None = None,
    ) -> None:
        """Push one batch, applied once whatever happens (protocol P2).

        `gradients` are shaped as pulled, tables left out are not trained; rows that repeat are summed before the optimizer sees
        them. `rate_scale` multiplies the learning rate. `add` pushes (ids, values) to tables that were not pulled: the witness.
        `pulled` is the pull that the gradients belong to; by default the latest.
        """

    def acknowledged(self) -> list[Acknowledged]:
        """Return, once, the batches that all servers have applied since the last call. Does not wait."""

    def flush(self) -> None:
        """Wait until every push is applied."""

    def read(self, table: str, ids: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return rows of one table for evaluation (a dense array needs no ids). Counts as no pull."""

    def export(self) -> dict[str, Exported]:
        """Return every table whole."""

    def close(self) -> None:
        """Leave: waits for nothing, releases everything. Idempotent."""
