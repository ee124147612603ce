"""Optimus as a whole policy: the production allocator over its own curve, every 10 minutes; user containers, tuned ones, or
with our mechanisms.

Fed through `port`. Five pre-runs a job are charged: they happen inside its containers before it starts, a minute each. Steps
left are told
exactly, which is kinder than a loss curve.
"""

from __future__ import annotations

import numpy as np

from bench.simulation.generator import reference_plan
from bench.simulation.nodes import allocation_of, size_of
from bench.simulation.policies.static import NoIntervention
from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Setting, Size
from rover_bus.brain.decisions.optimus import Capacity, OptimusJob, Speed, allocate
from rover_bus.brain.decisions.plans import GIB
from rover_bus.brain.models.forms import OPTIMUS_ASYNC, OPTIMUS_SYNC
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.models.statistics import Line, Statistics, fit_line

_PRE_RUNS = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5), (0.25, 0.5))
_PRE_RUN_S = 60.0
_YOUNG_S = 600.0
_HEADROOM = 0.05


class Optimus(NoIntervention):
    """Marginal gain over counts; containers are the user's, or (`tuned`) those of the reference plan."""

    round_s = 600.0

    def __init__(self, setting: Setting, tuned: bool = False, elastic: bool = False) -> None:
        super().__init__(setting)
        self.tuned = tuned
        self.name = f"Optimus, {'tuned' if tuned else 'user'} containers" + (
            ", our mechanisms" if elastic else ""
        )
        self.mechanisms = Mechanisms(elastic=elastic, restart_s=setting.restart_s)
        self.curves: dict[str, Speed] = {}
        self.ready: dict[str, float] = {}

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Allocate all jobs anew at the round's time; in between only start those who wait, from what is free."""
        for job in cluster.jobs:
            self.ready.setdefault(job.case.name, now_s + len(_PRE_RUNS) * _PRE_RUN_S)
        able = [job for job in cluster.jobs if self.ready[job.case.name] <= now_s]
        if not regular:
            able = [job for job in able if job.state == "waiting"]
        capacity = Capacity(cluster.cores, cluster.gib * GIB)
        if regular:
            room = Capacity(cluster.cores * (1 - _HEADROOM), cluster.gib * (1 - _HEADROOM) * GIB)
        else:
            room = Capacity(max(cluster.free_cores, 0.0), max(cluster.free_gib, 0.0) * GIB)
        if not able or not capacity.cores:
            return []
        decisions = allocate([self._job(job, now_s) for job in able], room)
        held = {job.case.name: job.held for job in able}
        wishes = [
            (job.case.name, self._sized(job, size_of(decision.allocation)))
            for job, decision in zip(able, decisions, strict=True)
            if decision.allocation.workers and self._is_worth(job, size_of(decision.allocation))
        ]
        return sorted(wishes, key=lambda wish: wish[1].cores - (held[wish[0]] or wish[1]).cores)

    def _sized(self, job: JobView, size: Size) -> Size:
        """Tuned containers come with memory that suffices for their count, known from the truth."""
        if not self.tuned:
            return size
        return size._replace(server_gib=job.case.server_need_gib(size.servers) * 1.15)

    def _is_worth(self, job: JobView, size: Size) -> bool:
        """Growth must save more than the restart that it costs, shrinking must be by a third: kinder than the paper's every
        round."""
        if job.held is None:
            return True
        speed = self.curves[job.case.name]
        before = speed(job.held.workers, job.held.servers)
        saved = job.remaining / before - job.remaining / speed(size.workers, size.servers)
        cost = self.mechanisms.server_change_s if self.mechanisms.elastic else self.mechanisms.restart_s
        return saved > cost or size.cores < job.held.cores / 1.5

    def _job(self, job: JobView, now_s: float) -> OptimusJob:
        case = job.case
        container = case.asked
        if self.tuned:
            container, _ = reference_plan(case, self.setting.menu)
        if job.held is not None and not self.tuned:
            container = container._replace(server_gib=max(container.server_gib, job.held.server_gib))
        if case.name not in self.curves:
            self.curves[case.name] = _curve(case, container, self.setting.seed)
        return OptimusJob(
            speed=self.curves[case.name],
            remaining=job.remaining,
            container=allocation_of(container),
            young=now_s - case.arrive_s < _YOUNG_S,
            max_workers=case.max_workers,
            max_servers=case.max_servers,
        )


def _curve(case: Case, container: Size, seed: int) -> Speed:
    """Fit Optimus' form to five noisy pre-runs in these containers."""
    rng = np.random.default_rng([seed, case.seed, 31])
    counts = np.array(
        [(max(round(case.max_workers * w), 1), max(round(case.max_servers * p), 1)) for w, p in _PRE_RUNS],
        dtype=np.float64,
    )
    sizes = np.tile([container.worker_cores, container.server_cores], (len(counts), 1))
    truth = case.throughput(np.hstack([counts, sizes]))
    measured = truth * np.exp(0.05 * rng.standard_normal(len(counts)))
    form = OPTIMUS_SYNC if case.mode == "sync" else OPTIMUS_ASYNC
    at = Configurations.of(counts[:, 0], counts[:, 1], batch_size=case.batch_size)
    line = fit_line(Statistics.of(form.design(at), form.seconds(at, measured)))
    assert isinstance(line, Line)

    def speed(workers: int, servers: int) -> float:
        key = (workers, servers)
        if key not in known:
            point = Configurations.of(workers, servers, batch_size=case.batch_size)
            known[key] = float(form.throughput(point, line.seconds(form.design(point)))[0])
        return known[key]

    known: dict[tuple[int, int], float] = {}
    return speed
