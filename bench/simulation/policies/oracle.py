"""Policies that know the truth, to split what ours loses: the oracle, the oracle with our mechanisms, perfect samples; and a
bound for all.

Fed by the hidden fields of `Case`, feed the report's rows that nobody can deploy. The choice is the production round over an
exact knapsack;
what differs from ours is only what is known, and what a change costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from bench.simulation.generator import Workload, reference_plan
from bench.simulation.nodes import allocation_of
from bench.simulation.policies.learning import Memory
from bench.simulation.policies.staged import RULES, Staged
from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Menu, Setting, Size
from rover_bus.brain.decisions.knapsack import Choice, Offers, choose_exactly, choose_greedily
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.rounds import Contender
from rover_bus.brain.models.core_use import CoreBoundModel, fit_core_bound, measure_core_use
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, FloatArray, Observations
from rover_bus.brain.models.throughput import Prediction

_PERFECT_SAMPLES = 60


@dataclass(frozen=True, eq=False)
class TruthModel:
    """The truth in a model's place."""

    case: Case

    def predict(self, at: Configurations) -> Prediction:
        """What will be, with certainty."""
        speed = speed_of(self.case, at)
        return Prediction(speed, speed, speed, np.zeros(len(at), dtype=np.bool_))


def speed_of(case: Case, at: Configurations) -> FloatArray:
    """True samples a second of configurations."""
    rows = np.stack(at.columns()[:4], axis=1)
    return case.throughput(rows)


def perfect_fit(case: Case, menu: Menu) -> CoreBoundModel:
    """The production model on sixty noiseless samples drawn over the whole plan space: no error of learning, only of form."""
    rows = menu.grid(case.max_workers, case.max_servers)
    rng = np.random.default_rng(case.seed)
    rows = rows[rng.permutation(len(rows))[:_PERFECT_SAMPLES]]
    w, p, lw, lp = rows.T
    at = Configurations.of(w, p, lw, lp, case.batch_size)
    seen = Observations.of(at, speed_of(case, at))
    worker, server = case.busy_cores(rows)
    form = SYNCHRONOUS if case.mode == "sync" else ASYNCHRONOUS
    fitted = fit_core_bound(seen, measure_core_use(seen, worker / w, server / p), form)
    assert isinstance(fitted, CoreBoundModel)
    return fitted


class Knowing(Staged):
    """Our rounds with everything known from the start. `free`: changes cost nothing and failures do not happen."""

    def __init__(self, setting: Setting, free: bool = True, fitted: bool = False) -> None:
        rules = RULES
        if free:
            restraint = msgspec.structs.replace(RULES.restraint, growth=64.0, dead_band=0.0)
            policy = msgspec.structs.replace(RULES.policy, scale_s=0.0)
            rules = msgspec.structs.replace(RULES, restraint=restraint, policy=policy)
        super().__init__(setting, frozenset({1, 2, 3}), rules)
        self.fitted, self.free = fitted, free
        self.name = "oracle" if free else "oracle, our mechanisms" if not fitted else "perfect samples"
        self.mechanisms = Mechanisms(elastic=True, free=free)
        self.select = _nearly_exactly if free else self.select
        self.models: dict[str, TruthModel | CoreBoundModel] = {}

    def know(self, job: JobView, memory: Memory) -> None:
        """Put the truth where the model belongs."""
        name = job.case.name
        if name not in self.models:
            model = perfect_fit(job.case, self.setting.menu) if self.fitted else TruthModel(job.case)
            self.models[name] = model
        memory.model = self.models[name]

    def _contender(self, job: JobView, memory: Memory, probing: bool) -> Contender:
        """Who was narrowed asks for no more than that, until it runs."""
        contender = super()._contender(job, memory, probing)
        narrowed = job.held is None and job.case.name in self.starts
        return msgspec.structs.replace(contender, model=None, front=None) if narrowed else contender

    def speed_here(self, job: JobView, memory: Memory) -> float:
        """The truth without noise, which must not move anybody."""
        return 0.0

    def _wants_samples(self, job: JobView, memory: Memory) -> bool:
        """Who knows need not try."""
        return False

    def first(self, job: JobView) -> Allocation:
        """The reference plan: rounds go on from there. What no node had room for is narrowed, as for everybody."""
        if job.case.name in self.starts:
            return self.starts[job.case.name]
        size, _ = reference_plan(job.case, self.setting.menu)
        return allocation_of(size)

    def settle(self, job: JobView, memory: Memory) -> bool:
        """Free changes need no rest."""
        return self.free or super().settle(job, memory)

    def with_memory(self, cluster: ClusterView, wishes: list[tuple[str, Size]]) -> list[tuple[str, Size]]:
        """Limits are known as well: every server's peak and a tenth."""
        cases = {job.case.name: job.case for job in cluster.jobs}
        wanted = {job.case.name: job.held for job in cluster.jobs if job.held is not None} | dict(wishes)
        return [
            (name, size._replace(server_gib=cases[name].server_need_gib(size.servers) * 1.1))
            for name, size in wanted.items()
        ]


def _nearly_exactly(offers: Offers) -> Choice:
    return choose_exactly(offers, node_limit=20) if len(offers.value) <= 6 else choose_greedily(offers)


def clairvoyant_bound(workload: Workload, menu: Menu) -> float:
    """Mean JCT in seconds that no policy can pass: the larger of two relaxations.

    Every job alone at its best plan, at once; and all jobs by shortest remaining work on one machine that does every job at
    its most
    efficient plan's cost in cores (preemptive, divisible: what SRPT minimises).
    """
    alone, work = [], []
    for case in workload.cases:
        at = menu.grid(case.max_workers, case.max_servers)
        speed = case.throughput(at)
        cores = at[:, 0] * at[:, 2] + at[:, 1] * at[:, 3]
        alone.append(case.samples / float(speed.max()))
        work.append(case.samples * float((cores / speed).min()) / workload.cores)
    return max(float(np.mean(alone)), _srpt([case.arrive_s for case in workload.cases], work))


def _srpt(arrive: list[float], work: list[float]) -> float:
    """Mean flow time of shortest remaining processing time on one machine."""
    left, now, total, i = dict[int, float](), 0.0, 0.0, 0
    while i < len(arrive) or left:
        if not left:
            now = max(now, arrive[i])
        while i < len(arrive) and arrive[i] <= now:
            left[i], i = work[i], i + 1
        job = min(left, key=lambda j: left[j])
        until = min(now + left[job], arrive[i] if i < len(arrive) else float("inf"))
        left[job] -= until - now
        now = until
        if left[job] <= 1e-9:
            del left[job]
            total += now - arrive[job]
    return total / len(arrive)
