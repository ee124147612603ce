"""What a job would do at another size: min(compute, ingest) fitted to its family's windows, overruled by what was measured of it.

Fed by the sizes that runs of a family have tried, feeds wishes and `what-if`. A fit costs some milliseconds; nothing here is kept
(`standing_models` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rover_bus.brain.decisions.scaling import Predictor, sketch_of
from rover_bus.brain.models.core_use import measure_core_use
from rover_bus.brain.models.forms import ALL_REDUCE, ASYNCHRONOUS, SYNCHRONOUS, Form
from rover_bus.brain.models.implied import ImpliedModel, imply, imply_counts, joined
from rover_bus.brain.models.ingest import BoundedModel, fit_bounded
from rover_bus.brain.models.paces import Paces, measure_paces
from rover_bus.brain.models.rings import on_hosts
from rover_bus.brain.models.samples import Configuration, Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.throughput import LEAST_CONFIGURATIONS, Prediction
from rover_bus.brain.state import FamilySample, KnownJob, TriedSize
from rover_bus.events.facts import Size
from rover_bus.events.job import JobSpec, is_synchronous

_LEAST_SPREAD = 0.03
_Z_95 = 1.645
_SAME = 1e-5  # shares of cores that differ by less are equal


@dataclass(frozen=True)
class OverruledModel:
    """A fitted model, with measurements where there are any and ceilings where growth did not pay."""

    fitted: Predictor
    measured: list[tuple[Configuration, float, float]]  # where, samples a second, relative spread
    ceilings: list[
        tuple[Configuration, float, bool]
    ]  # where, at most, whether of as many workers with any cores

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        said = self.fitted.predict(at)
        middle, low, high = said.throughput.copy(), said.low_90.copy(), said.high_90.copy()
        guess = said.guess.copy()
        for place, most, of_workers in self.ceilings:
            above = _above(at, place, of_workers)
            for column in (middle, low, high):
                column[above] = np.minimum(column[above], most)
        for place, speed, spread in self.measured:
            here = _equal(at, place)
            middle[here], guess[here] = speed, False
            low[here], high[here] = speed * max(1 - _Z_95 * spread, 0.0), speed * (1 + _Z_95 * spread)
        return Prediction(middle, low, high, guess)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        middle = sketch_of(self.fitted, at)
        for place, most, of_workers in self.ceilings:
            above = _above(at, place, of_workers)
            middle[above] = np.minimum(middle[above], most)
        return middle


def _above(at: Configurations, place: Configuration, of_workers: bool) -> NDArray[np.bool_]:
    """Which configurations are more of what did not pay (n,): as many workers or more, or as many with as many cores or more."""
    above: NDArray[np.bool_] = at.ps == place.ps
    if of_workers:
        above &= at.workers >= place.workers
        return above
    above &= at.workers == place.workers
    above &= at.worker_cores >= place.worker_cores * (1 - _SAME)
    above &= at.ps_cores >= place.ps_cores * (1 - _SAME)
    return above


def rows_of(job: KnownJob) -> list[TriedSize]:
    """The sizes of a job that were measured."""
    return [row for row in job.tried if row.size.workers and row.mean > 0]


def overrule(fitted: Predictor, job: KnownJob, host_cores: float = 0.0) -> OverruledModel:
    """Put what was measured, and where growth did not pay, over what was fitted. `host_cores`: of the roomiest host, for rings."""
    rows = [row for row in rows_of(job) if _would_be_as_measured(row, job, host_cores)]
    measured = [(place_of(job, row.size), row.mean, _spread(row)) for row in rows]
    ceilings = [
        (place_of(job, each.size), each.speed, each.of_workers)
        for each in job.ceilings
        if job.clock_s - each.at_s < job.spec.plan.ceiling_lasts_s and each.size.workers
    ]
    return OverruledModel(fitted, measured, ceilings)


def _would_be_as_measured(row: TriedSize, job: KnownJob, host_cores: float) -> bool:
    """Whether a measurement tells what its size would bring: of a ring, where it is, else on the fewest hosts that hold it."""
    if not row.crosses and not job.crosses:
        return True
    if job.held is not None and row.size.shape == job.held.shape:
        return row.crosses == job.crosses
    return not row.crosses or on_hosts(place_of(job, row.size), host_cores).ps > 1


def samples_of(job: KnownJob) -> list[FamilySample]:
    """What was measured of a job, a sample a size.

    A member without a limit is held back by no container: its use says nothing of what a limit would do. Nor does that of one on
    a host that holds no member to a limit.
    """
    return [
        FamilySample(
            job.uid,
            place_of(job, row.size),
            row.mean,
            row.input_share,
            row.worker_cores if row.size.worker_cores and job.cores_bind else 0.0,
            row.server_cores if row.size.server_cores and job.cores_bind else 0.0,
            row.crosses,
            row.worker_peak if row.size.worker_cores and job.cores_bind else 0.0,
            row.server_peak if row.size.server_cores and job.cores_bind else 0.0,
        )
        for row in rows_of(job)
    ]


@dataclass(frozen=True)
class FamilyModel:
    """What runs of one family have in common, and the pace of each."""

    common: BoundedModel | ImpliedModel
    paces: Paces

    def of(self, run: str) -> Predictor:
        """Return what one run would do; a run that showed nothing yet goes at the usual pace, less surely."""
        pace, sd = self.paces.of(run)
        return PacedModel(self.common, pace, sd) if pace or sd else self.common


@dataclass(frozen=True)
class PacedModel:
    """A model at a pace of its own: log factor, and the standard deviation of that."""

    common: Predictor
    pace: float
    sd: float

    def predict(self, at: Configurations) -> Prediction:
        """Predict samples a second with 90 % intervals."""
        said, factor, wider = self.common.predict(at), np.exp(self.pace), np.exp(_Z_95 * self.sd)
        low, high = said.low_90 * factor / wider, said.high_90 * factor * wider
        return Prediction(said.throughput * factor, low, high, said.guess)

    def sketch(self, at: Configurations) -> FloatArray:
        """About what `predict` says, more cheaply."""
        return np.asarray(sketch_of(self.common, at) * np.exp(self.pace))


def form_of(spec: JobSpec) -> Form:
    """Return the form of a job's throughput: by how its workers train."""
    if not spec.has_servers:
        return ALL_REDUCE
    return SYNCHRONOUS if is_synchronous(spec) else ASYNCHRONOUS


def fit_family(samples: Sequence[FamilySample], form: Form = ASYNCHRONOUS) -> FamilyModel | NotEnough:
    """Fit both halves to samples of one family, bounded by the cores that members were seen to use: first as they are, then with
    the runs levelled by what they differ in.
    """
    runs, speeds = [each.run for each in samples], [each.throughput for each in samples]
    at = Configurations.from_list([each.at for each in samples])
    fitted = _fit(samples, Observations.of(at, speeds), form)
    if isinstance(fitted, NotEnough) or len(set(runs)) == 1:
        return fitted if isinstance(fitted, NotEnough) else FamilyModel(fitted, Paces())
    paces = measure_paces(runs, np.log(np.array(speeds) / fitted.predict(at).throughput))
    levelled = _fit(samples, Observations.of(at, paces.level(runs, speeds)), form)
    return levelled if isinstance(levelled, NotEnough) else FamilyModel(levelled, paces)


def _fit(
    samples: Sequence[FamilySample], seen: Observations, form: Form
) -> BoundedModel | ImpliedModel | NotEnough:
    used = [each.worker_cores for each in samples], [each.server_cores for each in samples]
    peaks = [each.worker_peak for each in samples], [each.server_peak for each in samples]
    waits = [each.input_share for each in samples]
    uses = measure_core_use(seen, used, (0, 0) if form is ALL_REDUCE else peaks, form)
    young = is_young(samples)
    if uses.bursts_known:
        beside = imply_counts(seen, uses, waits)
    else:
        beside = imply(seen, used, waits, form, young)
    if not len(beside) and not (young and not uses.bursts_known):
        return fit_bounded(seen, waits, form, uses)
    waits += [0.0] * len(beside)
    fitted = fit_bounded(joined([seen, beside]), waits, form, uses, len(beside))
    return fitted if isinstance(fitted, NotEnough) else ImpliedModel(fitted, seen.configurations, young)


def is_young(samples: Sequence[FamilySample]) -> bool:
    """Whether a family has shown too few sizes to tell the terms of a form apart: what it is taken to do at others is implied."""
    places = set[Configuration]()
    for each in samples:  # of a large family the first few tell
        places.add(each.at)
        if len(places) >= LEAST_CONFIGURATIONS:
            return False
    return bool(places)


def observations_of(job: KnownJob, rows: list[TriedSize]) -> Observations:
    """What was measured of a job, a row a size."""
    at = Configurations.from_list([place_of(job, row.size) for row in rows])
    speed: FloatArray = np.array([row.mean for row in rows])
    return Observations.of(at, speed)


def place_of(job: KnownJob, size: Size) -> Configuration:
    """Where a size stands in the model: cores as they are charged now, because the model compares sizes of today."""
    worker_cores, server_cores = job.cores_each(size)
    batch_size = float(job.spec.data.batch_size)
    return Configuration(size.workers, size.servers, worker_cores, server_cores, batch_size)


def _spread(row: TriedSize) -> float:
    scatter = (row.scatter / row.weight) ** 0.5 / row.mean if row.weight > 1 else 0.0
    return max(scatter, _LEAST_SPREAD)


def _equal(at: Configurations, place: Configuration) -> FloatArray:
    columns = (place.workers, place.ps, place.worker_cores, place.ps_cores)
    same = np.ones(len(at), dtype=np.bool_)
    for column, value in zip(at.columns(), columns, strict=False):
        same &= np.abs(column - value) <= _SAME * abs(value)
    return same  # type: ignore[return-value]
