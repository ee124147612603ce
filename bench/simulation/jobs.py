"""One job's life in the engine: what it holds, how fast that is, and an account of every second.

Fed by the engine's events (`cluster`) and by what mechanisms make of them (`runtime`); feeds `metrics` and `budget`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bench.simulation.budget import Budget
from bench.simulation.metrics import JobResult
from bench.simulation.port import Case, FloatArray, Size
from bench.simulation.weather import Weather

USUAL_MEMORY = 0.65  # a worker uses this share of its own peak on average
_LESS_WORK_REACH = 1.2  # a slow worker's smaller share lets the others wait for the mean and a fifth at most


@dataclass
class Job:
    """`live` is what trains now; `joins` what is on its way: (when, what is live then). `rate` in samples a second."""

    case: Case
    rng: np.random.Generator
    reference: Size
    state: Literal["waiting", "starting", "running", "stopped"] = "waiting"
    live: Size | None = None
    joins: list[tuple[float, Size]] = field(default_factory=list)
    until: float = math.inf
    done: float = 0.0
    checkpointed: float = 0.0
    checkpoint_at: float = 0.0
    touched: float = 0.0
    changed_at: float = 0.0
    version: int = 0
    slow: FloatArray = field(default_factory=lambda: np.ones(0))
    slow_until: FloatArray = field(default_factory=lambda: np.zeros(0))
    less_work: set[int] = field(default_factory=set)
    leaving: int | None = None  # a slow worker whose replacement is on its way
    hot: float = 1.0
    hot_until: float = 0.0
    hot_server: int = 0
    failed: bool = False  # why it is stopped: a failure, or else a change
    probing: bool = False
    rate: float = 0.0
    busy: tuple[float, float] = (0.0, 0.0)
    window_done: float = 0.0
    budgets: dict[str, float] = field(default_factory=dict)
    cache: dict[tuple[float, ...], tuple[float, float, float]] = field(default_factory=dict)
    result: JobResult = field(default_factory=JobResult)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self.touched = self.case.arrive_s

    @property
    def share(self) -> float:
        """Part of its samples that is done."""
        return self.done / self.case.samples

    @property
    def reference_speed(self) -> float:
        """Samples a second of the reference plan."""
        return self.ideal(self.reference)[0]

    def ideal(self, size: Size) -> tuple[float, float, float]:
        """Throughput, busy worker cores, busy server cores of a healthy job, this run's drift included."""
        key = size[:4]
        if key not in self.cache:
            at = np.array([key], dtype=np.float64)
            speed = float(self.case.truth.throughput(at)[0]) * self.case.speed
            worker, server = self.case.truth.busy_cores(at)
            self.cache[key] = (speed, float(worker[0]), float(server[0]))
        return self.cache[key]

    def paces(self, now: float) -> FloatArray:
        """Every worker's share of its healthy speed (n,)."""
        return np.where(now < self.slow_until, self.slow, 1.0)

    def health(self, now: float) -> float:
        """What slow workers and hot servers leave of the rate. Synchronous jobs wait for the slowest, unless it gets less work."""
        hot = self.hot if now < self.hot_until else 1.0
        if not len(self.slow):
            return hot
        speeds = self.paces(now)
        if self.case.mode == "sync":
            waited = [s for i, s in enumerate(speeds) if i not in self.less_work]
            return hot * min(
                float(min(waited, default=1.0)), max(float(speeds.mean()), 0.05) * _LESS_WORK_REACH
            )
        return hot * float(speeds.mean())

    def crew(self, workers: int, weather: Weather) -> None:
        """As many worker paces as there are workers; newcomers draw theirs."""
        have = len(self.slow)
        if workers < have:
            self.slow, self.slow_until = self.slow[:workers], self.slow_until[:workers]
            self.less_work = {i for i in self.less_work if i < workers}
        elif workers > have:
            drawn = 1.0 - np.abs(weather.worker_spread * self.rng.standard_normal(workers - have))
            self.slow = np.r_[self.slow, np.clip(drawn, 0.5, 1.0)]
            self.slow_until = np.r_[self.slow_until, np.full(workers - have, math.inf)]

    def discharge(self, member: int, weather: Weather) -> None:
        """One worker goes."""
        last = len(self.slow) - 1
        self.slow[member], self.slow_until[member] = self.slow[last], self.slow_until[last]
        self.crew(last, weather)

    def disband(self) -> None:
        """All workers are new ones."""
        self.slow, self.slow_until = self.slow[:0], self.slow_until[:0]
        self.less_work = set()

    def touch(self, now: float, held: Size | None, checkpoint_s: float | None) -> None:
        """Account for the time since the job was last looked at. `checkpoint_s`: how often it is saved, None: not at all."""
        span, self.touched = now - self.touched, now
        if span <= 0:
            return
        if held is None:
            self.budget.queue_s += span
            return
        result = self.result
        result.worker_core_s += span * held.workers * held.worker_cores
        result.server_core_s += span * held.servers * held.server_cores
        result.worker_gib_s += span * held.workers * held.worker_gib
        result.server_gib_s += span * held.servers * held.server_gib
        if self.live is not None:
            result.worker_used_gib_s += span * self.live.workers * self.case.worker_gib * USUAL_MEMORY
            result.server_used_gib_s += span * (
                self.live.servers * self.case.server_gib + self.case.table_gib(self.share)
            )
        if self.state == "running":
            self._train(now, span, held, checkpoint_s)
        elif self.state == "starting":
            self.budget.start_s += span
        else:
            result.stopped_s += span
            self.budget.failure_s += span * self.failed
            self.budget.change_s += span * (not self.failed)

    def _train(self, now: float, span: float, held: Size, checkpoint_s: float | None) -> None:
        assert self.live is not None
        self.done = min(self.done + self.rate * span, self.case.samples)
        self.result.worker_busy_s += span * self.busy[0]
        self.result.server_busy_s += span * self.busy[1]
        live, wanted = self.ideal(self.live)[0], self.ideal(held)[0]
        self.budget.train(span, self.rate, live, wanted, self.reference_speed, self.probing)
        # The checkpoint follows its own clock, not training's.
        while checkpoint_s is not None and self.checkpoint_at <= now:
            saved = self.done - self.rate * (now - self.checkpoint_at)
            self.checkpointed = max(self.checkpointed, saved)
            self.checkpoint_at += checkpoint_s

    def repeat(self, samples: float) -> None:
        """Samples are to be trained again."""
        self.result.repeated += samples
        self.done -= samples
        self.budget.repeat(samples, self.reference_speed)
