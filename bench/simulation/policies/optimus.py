"""Optimus as a whole policy: the production allocator over its own curve, every 10 minutes; user containers, or tuned ones.

Fed through `port`. What the paper has, it has here: five pre-runs for a family that is new (they happen inside its containers
before it starts, a minute each), a curve that is fitted anew to every window since, a replacement for a worker below half the
median, and parameters that are balanced whenever a job starts. Steps left are told exactly, which is kinder than a loss curve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from bench.simulation.generator import reference_plan
from bench.simulation.nodes import allocation_of, size_of
from bench.simulation.policies.static import NoIntervention, Patience
from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Remedy, Setting, Size, Window
from rover_bus.brain.decisions.hot_servers import HOT
from rover_bus.brain.decisions.optimus import (
    Capacity,
    OptimusJob,
    Speed,
    allocate,
    fit_curve,
    is_straggler,
    is_worth,
)
from rover_bus.brain.decisions.plans import GIB

_PRE_RUNS = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5), (0.25, 0.5))
_PRE_RUN_S = 60.0
_WINDOWS = 10  # of each counts, the last ones
_YOUNG_S = 600.0
_HEADROOM = 0.05

Measured = dict[tuple[int, int], deque[float]]  # samples a second by workers and servers


class Optimus(NoIntervention):
    """Marginal gain over counts; containers are the user's, or (`tuned`) those of the reference plan.

    `elastic`: a change costs no restart, and is worth less than one.
    """

    round_s = 600.0

    def __init__(self, setting: Setting, tuned: bool = False, elastic: bool = False) -> None:
        super().__init__(setting)
        self.tuned, self.elastic = tuned, elastic
        self.name = f"Optimus, {'tuned' if tuned else 'user'} containers"
        self.mechanisms = Mechanisms(restart_s=setting.restart_s, balances=True)
        self.measured: dict[tuple[object, ...], Measured] = {}
        self.curves: dict[str, Speed] = {}
        self.containers: dict[str, Size] = {}
        self.ready: dict[str, float] = {}
        self.views: dict[str, JobView] = {}
        self.patience = Patience()

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Allocate all jobs anew at the round's time; in between only start those who wait, from what is free."""
        self.views = {job.case.name: job for job in cluster.jobs}
        for job in cluster.jobs:
            if job.case.name not in self.ready:
                pre_runs = 0 if self._measured(job.case) else len(_PRE_RUNS)
                self.ready[job.case.name] = now_s + pre_runs * _PRE_RUN_S
        if regular:
            self.curves.clear()
        able = [job for job in cluster.jobs if self.ready[job.case.name] <= now_s]
        if not regular:
            able = [job for job in able if job.state == "waiting"]
        if not able or not cluster.cores:
            return []
        decisions = allocate([self._job(job, now_s) for job in able], _room(cluster, regular))
        held = {job.case.name: job.held for job in able}
        wishes = [
            (job.case.name, self._sized(job, size_of(decision.allocation)))
            for job, decision in zip(able, decisions, strict=True)
            if decision.allocation.workers and self._is_worth(job, size_of(decision.allocation))
        ]
        self.patience.remember(able, wishes)
        return sorted(wishes, key=lambda wish: wish[1].cores - (held[wish[0]] or wish[1]).cores)

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Measure, replace workers below half the median, and balance parameters where that saves more than it costs."""
        remedies = list[Remedy]()
        for window in windows:
            job = self.views.get(window.job)
            if job is None:
                continue
            if window.steady:
                kept = self._measured(job.case).setdefault(window.size[:2], deque(maxlen=_WINDOWS))
                kept.append(window.throughput)
            rates = window.worker_rates.tolist()
            slow = [i for i, rate in enumerate(rates) if is_straggler(rate, rates)]
            remedies += [Remedy("replace_worker", window.job, i) for i in slow[:1]]
            if window.server_busy.max() >= HOT and window.job in self.curves:
                left, speed = job.case.samples - window.samples, self.curves[window.job]
                saved = left / window.throughput - left / speed(window.size.workers, window.size.servers)
                if saved > self._change_s():
                    remedies.append(Remedy("move_slots", window.job, int(window.server_busy.argmax())))
        return remedies

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """What its family showed is remembered."""
        for known in (self.views, self.curves, self.containers):
            known.pop(job.case.name, None)

    def _sized(self, job: JobView, size: Size) -> Size:
        """Tuned containers come with memory that suffices for their count, known from the truth."""
        if not self.tuned:
            return size
        return size._replace(server_gib=job.case.server_need_gib(size.servers) * 1.15)

    def _change_s(self) -> float:
        return self.mechanisms.server_change_s if self.elastic else self.mechanisms.restart_s

    def _is_worth(self, job: JobView, size: Size) -> bool:
        """Growth must save more than the restart that it costs, shrinking must be by a third: kinder than the paper's every
        round."""
        if job.held is None:
            return True
        speed = self.curves[job.case.name]
        return is_worth(speed, job.remaining, allocation_of(job.held), allocation_of(size), self._change_s())

    def _container(self, case: Case) -> Size:
        if case.name not in self.containers:
            tuned = reference_plan(case, self.setting.menu)[0] if self.tuned else case.asked
            self.containers[case.name] = tuned
        return self.containers[case.name]

    def _measured(self, case: Case) -> Measured:
        """What runs of the family reached in such containers."""
        container = self._container(case)
        return self.measured.setdefault((case.family, container.worker_cores, container.server_cores), {})

    def _job(self, job: JobView, now_s: float) -> OptimusJob:
        case, container = job.case, self._container(job.case)
        if job.held is not None and not self.tuned:
            container = container._replace(server_gib=max(container.server_gib, job.held.server_gib))
        if case.name not in self.curves:
            measured = self._measured(case)
            if not measured:
                _pre_run(case, container, self.setting.seed, measured)
            self.curves[case.name] = _curve(case, measured)
        return OptimusJob(
            speed=self.curves[case.name],
            remaining=job.remaining,
            container=allocation_of(container),
            young=now_s - case.arrive_s < _YOUNG_S,
            max_workers=self.patience.most_workers(job),
            max_servers=case.max_servers,
        )


def _room(cluster: ClusterView, regular: bool) -> Capacity:
    """What a round may hand out: nearly all, or what is free."""
    if regular:
        return Capacity(cluster.cores * (1 - _HEADROOM), cluster.gib * (1 - _HEADROOM) * GIB)
    return Capacity(max(cluster.free_cores, 0.0), max(cluster.free_gib, 0.0) * GIB)


def _pre_run(case: Case, container: Size, seed: int, measured: Measured) -> None:
    """Measure a few counts in these containers, with 5 % of noise."""
    rng = np.random.default_rng([seed, case.seed, 31])
    for w, p in _PRE_RUNS:
        counts = max(round(case.max_workers * w), 1), max(round(case.max_servers * p), 1)
        at = np.array([[*counts, container.worker_cores, container.server_cores]])
        speed = float(case.throughput(at)[0]) * float(np.exp(0.05 * rng.standard_normal()))
        measured.setdefault(counts, deque(maxlen=_WINDOWS)).append(speed)


def _curve(case: Case, measured: Measured) -> Speed:
    """Fit Optimus' form to what was measured: the median of each counts."""
    medians = {counts: float(np.median(kept)) for counts, kept in measured.items()}
    return fit_curve(medians, case.batch_size, case.mode == "sync")
