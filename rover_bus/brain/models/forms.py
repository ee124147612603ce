"""The resource-performance forms: seconds an iteration as a non-negative sum of terms in the resources.

Fed by configurations, feeds the regression. A form is data: its terms, which source it has, and how seconds an iteration
and samples a second translate. Ours and Optimus' stand side by side, so that cross-validation can choose and name one.

With w workers, p servers, lw and lp cores each, m the batch size (`algorithms.md §1`, §2):

    asynchronous   T = a1*m/lw + a2*w/(p*lp) + a3*w/p + a4*m/p + b         throughput = w*m/T      [recalled; shape: data]
    synchronous    T = c0*M/(w*lw) + c1 + c2*w/p + c3*w + c4*p + c5/(p*lp) throughput = M/T        [paper + 1/p: ours]
    all-reduce     T = c0*M/(w*lw) + c1 + c2*[w > 1] + c3*(w-1) + c4*[h > 1]       throughput = M/T    [ours; h hosts, no servers]
    optimus async  f = w*(t0 + t1*w/p + t2*w + t3*p)^-1                                            [paper]
    retrograde     T = c0*m/lw + c1*w/(p*lp) + c2 + c3*w + c4*w^2         throughput = w*m/T      [Gunther's USL, with cores: ours]
    optimus sync   f = (t0*M/w + t1 + t2*w/p + t3*w + t4*p)^-1                                     [paper]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from rover_bus.brain.models.samples import Configurations, FloatArray

Mode = Literal["async", "sync"]


@dataclass(frozen=True)
class Form:
    """One functional form. `terms` name the columns of `design`; `source` carries the mark of `algorithms.md`."""

    name: str
    mode: Mode
    terms: tuple[str, ...]
    source: str
    _columns: Callable[[Configurations], list[FloatArray]]

    def design(self, at: Configurations) -> FloatArray:
        """Return the design matrix, shape (n, terms): seconds an iteration = design @ coefficients."""
        columns = self._columns(at)
        design = np.empty((len(columns), len(at))).T
        for index, column in enumerate(columns):
            design[:, index] = column
        return design

    def seconds(self, at: Configurations, throughput: FloatArray) -> FloatArray:
        """Seconds an iteration for a throughput in samples a second: w*m/Psi asynchronous, M/Psi synchronous."""
        return self.samples(at) / throughput

    def throughput(self, at: Configurations, seconds: FloatArray) -> FloatArray:
        """Samples a second for seconds an iteration."""
        return self.samples(at) / seconds

    def samples(self, at: Configurations) -> FloatArray:
        """Samples that one iteration of all workers consumes."""
        return at.workers * at.batch_size if self.mode == "async" else at.batch_size


def _asynchronous(at: Configurations) -> list[FloatArray]:
    w, p, m = at.workers, at.ps, at.batch_size
    return [m / at.worker_cores, w / (p * at.ps_cores), w / p, m / p, np.ones_like(w)]


def _synchronous(at: Configurations) -> list[FloatArray]:
    w, p = at.workers, at.ps
    return [at.batch_size / (w * at.worker_cores), np.ones_like(w), w / p, w, p, 1 / (p * at.ps_cores)]


def _all_reduce(at: Configurations) -> list[FloatArray]:
    """Jobs without servers: the column `ps` holds the hosts that the ring spans (`models.rings`)."""
    w, crosses = at.workers, (at.ps > 1).astype(np.float64)
    return [
        at.batch_size / (w * at.worker_cores),
        np.ones_like(w),
        (w > 1).astype(np.float64),
        w - 1,
        crosses,
    ]


def _retrograde(at: Configurations) -> list[FloatArray]:
    """Workers that disturb one another: throughput falls beyond its peak, which no other asynchronous form can say."""
    w = at.workers
    return [at.batch_size / at.worker_cores, w / (at.ps * at.ps_cores), np.ones_like(w), w, w * w]


def _optimus_async(at: Configurations) -> list[FloatArray]:
    return [np.ones_like(at.workers), at.workers / at.ps, at.workers, at.ps]


def _optimus_sync(at: Configurations) -> list[FloatArray]:
    w, p = at.workers, at.ps
    return [at.batch_size / w, np.ones_like(w), w / p, w, p]


ASYNCHRONOUS = Form(
    "async-5",
    "async",
    ("m/worker_cores", "w/(p*ps_cores)", "w/p", "m/p", "1"),
    "algorithms.md §1 [recalled; shape: data]",
    _asynchronous,
)
SYNCHRONOUS = Form(
    "sync-6",
    "sync",
    ("M/(w*worker_cores)", "1", "w/p", "w", "p", "1/(p*ps_cores)"),
    "algorithms.md §1 [Optimus' five: paper; 1/p: ours]",
    _synchronous,
)
ALL_REDUCE = Form(
    "allreduce-5",
    "sync",
    ("M/(w*worker_cores)", "1", "w>1", "w-1", "hosts>1"),
    "a ring: a part for there being one, one for each further worker, one where it crosses hosts [ours]",
    _all_reduce,
)
OPTIMUS_ASYNC = Form(
    "optimus-async", "async", ("1", "w/p", "w", "p"), "algorithms.md §2 [paper]", _optimus_async
)
OPTIMUS_SYNC = Form(
    "optimus-sync", "sync", ("M/w", "1", "w/p", "w", "p"), "algorithms.md §2 [paper]", _optimus_sync
)

RETROGRADE = Form(
    "usl-async",
    "async",
    ("m/worker_cores", "w/(p*ps_cores)", "1", "w", "w^2"),
    "Gunther's Universal Scalability Law, with cores [ours]",
    _retrograde,
)

FORMS: tuple[Form, ...] = (ASYNCHRONOUS, SYNCHRONOUS, OPTIMUS_ASYNC, OPTIMUS_SYNC, RETROGRADE)


@lru_cache(maxsize=len(FORMS) + 1)
def of_counts(form: Form) -> Form:
    """Return a form that knows how many members there are and not their cores: what these do is another law's (`core_use`)."""
    return replace(form, _columns=lambda at: form._columns(counts_of(at)))


def counts_of(at: Configurations) -> Configurations:
    """Return the same counts with one core each."""
    ones = np.ones(len(at))
    return Configurations(at.workers, at.ps, ones, ones, at.batch_size)


def forms_of(mode: Mode | None) -> tuple[Form, ...]:
    """Return the forms to choose from: those of one mode, or all when the mode is unknown."""
    return tuple(form for form in FORMS if mode is None or form.mode == mode)
