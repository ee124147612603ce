"""The parameters as a training program sees them: the store it was given, plus what the protocol needs of every push.

Fed by the program; feeds a `ps.store.Parameters` (several servers, or this process) and, through `acknowledged`, the progress of
leases. Apart because three things must happen on every push whether the program knows of them or not: the witness is added, the
push is tied to the batch that was handed out (a batch of a former generation is not pushed at all, P8), and its time is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rover_bus.client.figures import Figures
from rover_bus.client.lease import Assigned, Work
from rover_bus.client.witness import NAME, witness_of, witness_table
from rover_bus.events.job import Dataset
from rover_bus.ps.spec import Table
from rover_bus.ps.store import Acknowledged, BatchKey, Exported, GenerationChanged, Parameters, Pulled

T = TypeVar("T")
Additions = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


@dataclass(slots=True)
class HandedOut:
    """A batch in the program's hands, or with its push on the way. `work` is what will be reported of it."""

    assigned: Assigned
    batch: Any
    work: Work
    samples: int
    pushed: bool = False

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.assigned.epoch, self.assigned.number)


class TrainingParameters:
    """`ps.store.Parameters` for a training loop. `clock`: seconds, for the figures."""

    def __init__(self, store: Parameters, figures: Figures, clock: Callable[[], float]) -> None:
        self.store = store
        self._figures, self._clock = figures, clock
        self._handed_out: dict[BatchKey, HandedOut] = {}
        self._witnessed: Dataset | None = None

    # -- Parameters -------------------------------------------------------------------------------------------------------

    def declare(self, *tables: Table) -> None:
        """Say which tables the program trains; a table called `witness` is ours."""
        self.store.declare(*tables)

    def pull(self, ids: Mapping[str, npt.NDArray[Any]]) -> Pulled:
        """Return rows and dense arrays; after a rewind those of the new generation."""
        began = self._clock()
        try:
            return self._persist(lambda: self.store.pull(ids))
        finally:
            self._figures.pull_s += self._clock() - began

    def push(
        self,
        batch: BatchKey,
        gradients: Mapping[str, npt.NDArray[Any]],
        *,
        rate_scale: float = 1.0,
        add: Additions | None = None,
        pulled: Pulled | None = None,
    ) -> None:
        """Push a batch of `job.batches`, applied once whatever happens; one of a former generation is dropped."""
        began = self._clock()
        handed = self._handed_out.get(BatchKey(*batch))
        if handed is not None:
            handed.pushed = True
            if self._witnessed is not None:
                add = {**(add or {}), NAME: self._witness(handed, self._witnessed)}
        try:
            if handed is None or handed.assigned.generation == self._generation(handed):
                self.store.push(BatchKey(*batch), gradients, rate_scale=rate_scale, add=add, pulled=pulled)
        except GenerationChanged:
            pass  # the lease of this batch is void: a worker trains it again in the new generation
        finally:
            self._figures.push_s += self._clock() - began

    def read(self, table: str, ids: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return rows of one table for evaluation."""
        return self._persist(lambda: self.store.read(table, ids))

    def acknowledged(self) -> list[Acknowledged]:
        """Nothing: the job itself takes what the servers acknowledged, and reports it as progress."""
        return []

    def flush(self) -> None:
        """Wait until every push is applied."""
        began = self._clock()
        try:
            self.store.flush()
        except GenerationChanged:
            pass
        finally:
            self._figures.push_s += self._clock() - began

    def export(self) -> dict[str, Exported]:
        """Return every table whole, the witness among them."""
        return self.store.export()

    def close(self) -> None:
        """Release everything."""
        self.store.close()

    # -- for the job ------------------------------------------------------------------------------------------------------

    def witness(self, dataset: Dataset) -> None:
        """From now on every push carries the witness of its batch."""
        table = witness_table(dataset)
        if table is not None:
            self.store.declare(table)
            self._witnessed = dataset

    def hand_out(self, handed: HandedOut) -> None:
        """Note a batch that the program gets now. One of a generation newer than our servers waits for its servers: pushed to the
        old ones it would be dropped, and its lease would stay with us for ever.
        """
        if handed.assigned.generation > self._generation(handed):
            self.store.follow(handed.assigned.generation)  # type: ignore[attr-defined]  # only servers have generations
        self._handed_out[handed.key] = handed

    def awaits(self, handed: HandedOut) -> bool:
        """Whether a batch that left the program's hands is done only when servers say so.

        One that the program did not push gets its witness pushed alone; where there is none either, it is done now.
        """
        if not handed.pushed and self._witnessed is not None:
            self.push(handed.key, {})
        if not handed.pushed:
            self._handed_out.pop(handed.key, None)
        return handed.pushed

    def collect(self) -> list[tuple[HandedOut, Acknowledged]]:
        """Return the batches whose pushes every server holds by now."""
        done = []
        for ack in self.store.acknowledged():
            handed = self._handed_out.get(ack.batch)
            if handed is not None and handed.assigned.generation == ack.generation:
                del self._handed_out[ack.batch]
                done.append((handed, ack))
        return done

    def _witness(self, handed: HandedOut, dataset: Dataset) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        positions = getattr(handed.batch, "positions", None)
        if positions is None:  # a source that leaves no row out need not say which it used
            first = handed.assigned.number * dataset.batch_size
            positions = np.arange(first, min(first + dataset.batch_size, dataset.records))
        return witness_of(dataset, handed.assigned.epoch, positions)

    def _generation(self, handed: HandedOut) -> int:
        """The generation that a push would be sent under; a store without servers knows but one."""
        routing = getattr(self.store, "routing", None)
        return routing.generation if routing is not None else handed.assigned.generation

    def _persist(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except GenerationChanged:
                continue  # the store follows the new routing already
