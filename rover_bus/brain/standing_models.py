"""The models of running jobs as they stand: fitted when a job's windows have moved what it was fitted to, not at every window.

Fed by a job's tried sizes, feeds wishes and rounds. Beside the state and not in it: a Brain that begins again fits again. Apart,
because a fit costs milliseconds and a job's windows mostly repeat what is known: a cluster of thousands has no time for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rover_bus.brain.models.ingest import BoundedModel
from rover_bus.brain.models.samples import FloatArray, NotEnough
from rover_bus.brain.predicting import OverruledModel, fit_rows, overrule, rows_of
from rover_bus.brain.state import KnownJob, TriedSize
from rover_bus.events.facts import Size

# How far a row may move before its model is fitted again: well inside the interval of any prediction.
MOVED = np.array(
    [0.02, 0.05, 0.05, 0.05, 0.05, 0.05]
)  # log throughput, share of input, log cores used and charged


@dataclass(frozen=True)
class _Fit:
    """One fit and what it was fitted to: sizes, and a row of figures each (n, 6)."""

    fitted: BoundedModel | NotEnough
    sizes: list[Size]
    figures: FloatArray


class StandingModels:
    """One model a job, by its uid."""

    def __init__(self) -> None:
        self._fits: dict[str, _Fit] = {}

    def of(self, job: KnownJob) -> OverruledModel | NotEnough:
        """Return the job's model: fitted anew where its rows have moved, always overruled by what was measured."""
        rows = rows_of(job)
        if not rows:
            return NotEnough("no window was measured yet", 1)
        known, sizes, figures = self._fits.get(job.uid), [row.size for row in rows], _figures(job, rows)
        if known is None or known.sizes != sizes or _has_moved(known.figures, figures):
            known = self._fits[job.uid] = _Fit(fit_rows(job, rows), sizes, figures)
        return overrule(known.fitted, job, rows)

    def forget(self, uid: str) -> None:
        """The job is over."""
        self._fits.pop(uid, None)


def _figures(job: KnownJob, rows: list[TriedSize]) -> FloatArray:
    charged = [job.charge(row.size) for row in rows]
    columns = [
        [row.mean for row in rows],
        [row.input_share for row in rows],
        [row.worker_cores for row in rows],
        [row.server_cores for row in rows],
        [each.worker_cores for each in charged],
        [each.server_cores for each in charged],
    ]
    figures = np.array(columns)
    figures[[0, 2, 3, 4, 5]] = np.log(np.maximum(figures[[0, 2, 3, 4, 5]], 1e-9))
    return figures


def _has_moved(before: FloatArray, now: FloatArray) -> bool:
    return bool(np.any(np.abs(now - before) > MOVED[:, None]))
