"""The models of jobs as they stand: fitted when windows have moved what they were fitted to, not at every window.

Fed by what runs of each family have shown, feeds wishes and rounds. Beside the state and not in it: a Brain that begins again
fits again. Apart, because a fit costs milliseconds and a job's windows mostly repeat what is known: a cluster of thousands has no
time for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.decisions.scaling import JobView, Limits, PlanFront, plan_front
from rover_bus.brain.families import family_of
from rover_bus.brain.models.hazard import LossCount
from rover_bus.brain.models.rings import RingModel, on_hosts
from rover_bus.brain.models.samples import FloatArray, NotEnough
from rover_bus.brain.predicting import (
    FamilyModel,
    OverruledModel,
    fit_family,
    form_of,
    is_young,
    overrule,
    samples_of,
)
from rover_bus.brain.rules import rules_of
from rover_bus.brain.state import BrainState, FamilySample, KnownJob
from rover_bus.brain.totals import totals_of

# How far a sample may move before its model is fitted again: well inside the interval of any prediction.
# Log throughput, share of input, log cores used, used in bursts, and given.
MOVED = np.array([0.02, *[0.05] * 7])


PROBED_SIZES = 3  # different sizes tell the terms apart

_Key = tuple[str, str]  # name and uid of a job

A_FIT, A_FRONT = 8.0, 8.0  # see `spent`


@dataclass(frozen=True)
class _Fit:
    """One fit and what it was fitted to: run, workers and servers of each sample, and a row of figures each (8, n)."""

    fitted: FamilyModel | NotEnough
    samples: list[tuple[str, int, int]]
    figures: FloatArray


@dataclass(frozen=True)
class _RunSamples:
    """One run: its family, and its samples by so many windows."""

    family: str
    windows: int
    samples: list[FamilySample]


@dataclass(frozen=True)
class _Front:
    """A job's front, what it was made for, and what had been measured of the job then."""

    made_for: tuple[object, ...]
    fit: _Fit
    speeds: FloatArray
    front: PlanFront


class StandingModels:
    """One fit a family, one model and one front a job."""

    def __init__(self, state: BrainState | None = None) -> None:
        self.spent = 0.0  # on fits and fronts, in milliseconds of a slow core, about
        self.fitted = 0  # how often a family was fitted: a model has moved where it grows
        self._host_cores = 1.0  # of the roomiest host
        self.hazard = LossCount().hazard  # by which fronts are made
        self._fits: dict[str, _Fit] = {}
        self._fronts: dict[_Key, _Front] = {}
        self._shown: dict[str, list[FamilySample]] = {}
        self._compared: dict[str, list[FamilySample]] = {}  # what each fit was last compared with
        self._runs: dict[_Key, _RunSamples] = {}
        self._members: dict[str, dict[_Key, _RunSamples]] = {}  # the same by family
        self._moved = set[str]()  # families of which a run has shown something since they were looked at
        self._ended: dict[str, list[FamilySample] | None] = {}  # what ended runs had shown, by family
        if state is not None:
            self.look(state)

    def look(self, state: BrainState) -> None:
        """Take in what families have shown until now, and forget those that have no run any more."""
        for job in state.jobs.values():
            run = self._runs.get(_key(job))
            if run is None or run.windows != job.windows:
                self.measure(job)
        for gone in self._runs.keys() - {_key(job) for job in state.jobs.values()}:
            self._moved.add(family := self._runs.pop(gone).family)
            self._members[family].pop(gone)
            self._fronts.pop(gone, None)
        self._moved |= {
            name for name in self._members if self._ended.get(name) is not state.families.get(name)
        }
        self.take_in(state)
        self._host_cores = totals_of(state).largest_host_cores or 1.0

    def measure(self, job: KnownJob) -> None:
        """Note what one job has shown after a window: its family takes it in with the next look."""
        key = _key(job)
        former = self._runs.get(key)
        family = former.family if former is not None else family_of(job.spec)
        self._runs[key] = run = _RunSamples(family, job.windows, samples_of(job))
        self._members.setdefault(family, {})[key] = run
        self._moved.add(family)

    def take_in(self, state: BrainState) -> None:
        """Have the families that a window has moved take it in: all that a look finds while no job comes or goes."""
        for family in sorted(self._moved):
            members, ended = self._members[family], state.families.get(family)
            if members:
                self._ended[family] = ended
                self._shown[family] = [
                    *(ended or ()),
                    *(each for run in members.values() for each in run.samples),
                ]
                continue
            for kept in (self._members, self._shown, self._ended, self._fits, self._compared):
                kept.pop(family, None)
        self._moved.clear()
        self.hazard = state.losses.hazard

    def shown(self, job: KnownJob) -> list[FamilySample]:
        """Return what runs of a job's family have shown."""
        return self._shown.get(self._family(job)) or samples_of(job)

    def _family(self, job: KnownJob) -> str:
        run = self._runs.get(_key(job))
        return run.family if run is not None else family_of(job.spec)

    def varied_servers(self, job: KnownJob) -> bool:
        """Return whether runs of a job's family were measured with different numbers of servers."""
        shown = self.shown(job)
        return any(each.at.ps != shown[0].at.ps for each in shown)

    def wants_samples(self, job: KnownJob, held_back: bool) -> bool:
        """Return whether another size of a job is worth trying to learn from: where a model stands, growing teaches as much.

        `held_back`: its members use all their cores, and no fit says what more of them would bring. However many sizes were
        measured, a job without a model stays as it is for good unless another one is.
        """
        return isinstance(self.of(job), NotEnough) or (held_back and not self.is_young(job))

    def is_young(self, job: KnownJob) -> bool:
        """Return whether a job's model rests on what its members' use of cores implies, not on measured sizes alone."""
        return is_young(self.shown(job))

    def of(self, job: KnownJob) -> OverruledModel | NotEnough:
        """Return a job's model: its family's, fitted anew where samples have moved, overruled by what the job itself showed."""
        family, samples = self._family(job), self.shown(job)
        if not samples:
            return NotEnough("no window was measured yet", 1)
        known = self._fits.get(family)
        if known is None or self._compared.get(family) is not samples:
            self._compared[family] = samples
            known = self._fits[family] = self._compare(job, known, samples)
        if isinstance(known.fitted, NotEnough):
            return known.fitted
        fitted = known.fitted.of(job.uid)
        model = fitted if job.spec.has_servers else RingModel(fitted, self._host_cores)
        return overrule(model, job, self._host_cores)

    def _compare(self, job: KnownJob, known: _Fit | None, samples: list[FamilySample]) -> _Fit:
        """The fit as it stands, or a new one where samples came, went or moved."""
        if not job.spec.has_servers:
            ats = [on_hosts(each.at, self._host_cores, each.crosses) for each in samples]
            samples = [msgspec.structs.replace(s, at=at) for s, at in zip(samples, ats, strict=True)]
        named, figures = [(each.run, each.at.workers, each.at.ps) for each in samples], _figures(samples)
        if known is not None and known.samples == named and not _has_moved(known.figures, figures):
            return known
        self.fitted += 1
        self.spent += A_FIT
        return _Fit(fit_family(samples, form_of(job.spec)), named, figures)

    def front_of(
        self, job: KnownJob, model: OverruledModel, view: JobView, space: PlanSpace, limits: Limits
    ) -> PlanFront:
        """Return a job's front: the one that stands until what it was made for differs, or its model or a measurement moves."""
        fit, speeds = self._fits[self._family(job)], np.log([speed for _, speed, _ in model.measured])
        places = tuple(place for place, _, _ in model.measured)
        of_job = (view.held, view.batch_size, view.table_bytes, limits, space, job.spec.plan.search)
        made_for = (*of_job, places, tuple(model.ceilings), self._host_cores, self.hazard)
        known = self._fronts.get(_key(job))
        if (
            known is None
            or known.fit is not fit
            or known.made_for != made_for
            or _differ(known.speeds, speeds)
        ):
            self.spent += A_FRONT
            front = plan_front(view, model, space, rules_of(job.spec.plan, self.hazard), limits)
            known = self._fronts[_key(job)] = _Front(made_for, fit, speeds, front)
        return known.front


def _key(job: KnownJob) -> _Key:
    return job.spec.name, job.uid


def _figures(samples: Sequence[FamilySample]) -> FloatArray:
    columns = [
        [each.throughput for each in samples],
        [each.input_share for each in samples],
        [each.worker_cores for each in samples],
        [each.server_cores for each in samples],
        [each.worker_peak for each in samples],
        [each.server_peak for each in samples],
        [each.at.worker_cores for each in samples],
        [each.at.ps_cores for each in samples],
    ]
    figures = np.array(columns)
    share = figures[1].copy()
    figures = np.log(np.maximum(figures, 1e-9))
    figures[1] = share
    return np.asarray(figures)


def _differ(before: FloatArray, now: FloatArray) -> bool:
    return bool(np.any(np.abs(now - before) > MOVED[0]))


def _has_moved(before: FloatArray, now: FloatArray) -> bool:
    return bool(np.any(np.abs(now - before) > MOVED[:, None]))
