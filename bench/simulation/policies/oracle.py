"""Policies that know the truth, to split what ours loses: the oracle, the oracle with our mechanisms, perfect samples; and a
bound for all.

Fed by the hidden fields of `Case`, feed the report's rows that cannot be deployed. What decides is the live Brain (`live`): its
models answer from the truth, its users ask for what their jobs need, its windows say the true speed. Nothing else differs, but
that nothing has to be learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from bench.simulation.generator import Workload, reference_plan
from bench.simulation.policies.live import LiveBrain, measurement_of, spec_of
from bench.simulation.port import Case, Mechanisms, Menu, Setting, Window
from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.decisions.scaling import JobView, Limits, PlanFront, Predictor, ScalingRules, plan_front
from rover_bus.brain.models.core_use import CoreBoundModel, fit_core_bound, measure_core_use
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.hazard import LossCount
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough, Observations
from rover_bus.brain.models.throughput import Prediction
from rover_bus.brain.predicting import OverruledModel
from rover_bus.brain.rules import CLUSTER
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import FamilySample, KnownJob
from rover_bus.brain.v1 import Brain, BrainMemory, Measurement
from rover_bus.events.job import JobSpec

_PERFECT_SAMPLES = 60
_COUNTED_S = 1e9  # of members, in which an oracle has seen how often they fail


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
    uses = measure_core_use(seen, (worker / w, server / p), case.peak_cores(rows), form)
    fitted = fit_core_bound(seen, uses, form)
    assert isinstance(fitted, CoreBoundModel)
    return fitted


class ToldModels(StandingModels):
    """What is known of each job from its first second, in the place of fits: nothing is left to try."""

    def __init__(self, rules: ScalingRules) -> None:
        super().__init__()
        self.rules = rules
        self.told: dict[str, Predictor] = {}  # by job
        self.fronts: dict[object, PlanFront] = {}

    def of(self, job: KnownJob) -> OverruledModel | NotEnough:
        """What was told: no measurement overrules it."""
        return OverruledModel(self.told[job.spec.name], [], [])

    def shown(self, job: KnownJob) -> list[FamilySample]:
        """Nothing had to be shown."""
        return []

    def varied_servers(self, job: KnownJob) -> bool:
        """What another number of servers would do is known."""
        return True

    def wants_samples(self, job: KnownJob, held_back: bool) -> bool:
        """Nothing is tried to learn from."""
        return False

    def front_of(
        self, job: KnownJob, model: OverruledModel, view: JobView, space: PlanSpace, limits: Limits
    ) -> PlanFront:
        """The front by what was told, which never moves."""
        key = (job.uid, view.held, space, limits)
        if key not in self.fronts:
            self.fronts[key] = plan_front(view, model, space, self.rules, limits)
        return self.fronts[key]


class Knowing(LiveBrain):
    """The live Brain with everything known from the start. `free`: changes cost nothing and failures do not happen."""

    def __init__(self, setting: Setting, free: bool = True, fitted: bool = False) -> None:
        self.losses = LossCount().watch(1, _COUNTED_S, round(setting.failures_per_member_s * _COUNTED_S))
        policy = msgspec.structs.replace(CLUSTER.policy, hazard=self.losses.hazard)
        restraint = msgspec.structs.replace(CLUSTER.restraint, growth=64.0) if free else CLUSTER.restraint
        rules = msgspec.structs.replace(CLUSTER, policy=policy, restraint=restraint)
        self.free, self.fitted, self.models = free, fitted, ToldModels(rules)
        super().__init__(setting)
        self.name = "oracle" if free else "oracle, our mechanisms" if not fitted else "perfect samples"
        self.mechanisms = Mechanisms(elastic=True, free=free)

    def make_brain(self) -> Brain:
        """A Brain whose models are told."""
        # Servers that are all busy are no surprise: what more of them would bring is known.
        known = msgspec.msgpack.encode(BrainMemory(past=[], families={}, losses=self.losses))
        return Brain(at_once=False, memory=known, without=["cool servers"], models=lambda: self.models)

    def spec(self, case: Case) -> JobSpec:
        """A user who asks for what the job needs, and whose job has no relatives: each is known for itself."""
        self.models.told[case.name] = perfect_fit(case, self.menu) if self.fitted else TruthModel(case)
        spec = spec_of(case, self.menu, reference_plan(case, self.menu)[0], case.name)
        rests = {"cooldown_s": 0.0, "change_s": 1e-3} if self.free else {}
        return spec.replace(plan=spec.plan.replace(relief=False, **rests))

    def measured(self, window: Window, case: Case) -> Measurement:
        """The true speed, shared out as workers are fast, so that slow ones are found; how memory grows need not be told."""
        true = float(case.throughput(np.array([window.size[:4]], dtype=np.float64))[0])
        rates = window.worker_rates * true / window.worker_rates.sum()
        said = measurement_of(window, case, rates.tolist())
        return said.replace(worker_memory_bytes=0, server_memory_bytes=0)


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
