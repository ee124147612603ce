"""One job's life in the engine: what it holds, how fast that is, and an account of every second.

Fed by the engine's events (`cluster`) and by what mechanisms make of them (`runtime`); feeds `metrics` and `budget`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from bench.simulation.budget import Budget
from bench.simulation.metrics import JobResult
from bench.simulation.port import Case, FloatArray, Hosts, Mode, Size
from bench.simulation.weather import Weather

USUAL_MEMORY = 0.65  # a worker uses this share of its own peak on average


class Ideal(NamedTuple):
    """A healthy job: samples a second, cores in use by workers and by servers, share of their time that workers wait for input,
    cores that one worker and one server use in bursts (0: not measured).
    """

    speed: float
    worker_cores: float
    server_cores: float
    input_wait: float
    worker_peak: float = 0.0
    server_peak: float = 0.0


@dataclass
class Job:
    """`live` is what trains now; `joins` what is on its way: (when, what is live then). `rate` in samples a second."""

    case: Case
    rng: np.random.Generator
    reference: Size
    hosts: Hosts
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
    own: FloatArray = field(default_factory=lambda: np.ones(0))  # every worker's own pace, for good
    on: list[int] = field(default_factory=list)  # the host of every worker
    servers_on: list[int] = field(default_factory=list)
    slow: FloatArray = field(
        default_factory=lambda: np.ones(0)
    )  # a slow spell's share of that, until `slow_until`
    slow_until: FloatArray = field(default_factory=lambda: np.zeros(0))
    less_work: set[int] = field(default_factory=set)
    leaving: list[int] = field(default_factory=list)  # workers whose successors are on their way
    hot: float = 1.0
    hot_until: float = 0.0
    hot_server: int = 0
    failed: bool = False  # why it is stopped: a failure, or else a change
    probing: bool = False
    rate: float = 0.0
    even: float = 1.0  # the spread's part of the rate
    busy: tuple[float, float] = (0.0, 0.0)
    window_done: float = 0.0
    budgets: dict[str, float] = field(default_factory=dict)
    cache: dict[tuple[float, ...], Ideal] = field(default_factory=dict)
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
        return self.ideal(self.reference).speed

    def ideal(self, size: Size) -> Ideal:
        """What a healthy job of a size does, this run's drift included."""
        key = size[:4]
        if key not in self.cache:
            at = np.array([key], dtype=np.float64)
            speed = float(self.case.throughput(at)[0])
            worker, server = self.case.busy_cores(at)
            wait = float(self.case.input_wait(at)[0])
            peaks = [float(each[0]) for each in self.case.peak_cores(at)]
            self.cache[key] = Ideal(speed, float(worker[0]), float(server[0]), wait, *peaks)
        return self.cache[key]

    def lasting_paces(self, now: float) -> FloatArray:
        """Every worker's share (n,) of a healthy worker's speed for good: its own pace times its host's."""
        return self.own if self.hosts.alike else self.own * self.hosts.paces(now)[self.on]

    def paces(self, now: float) -> FloatArray:
        """Every worker's share (n,) of a healthy worker's speed now."""
        return self.lasting_paces(now) * np.where(now < self.slow_until, self.slow, 1.0)

    def spread(self, now: float) -> float:
        """What members and hosts that are slower than others for good leave of the rate."""
        if not len(self.own):
            return 1.0
        return pooled(self.lasting_paces(now), self.case.mode, self.less_work) * self._servers_pace(now)

    def health(self, now: float) -> float:
        """What slow workers, slow hosts and hot servers leave of the rate."""
        hot = self.hot if now < self.hot_until else 1.0
        if not (now < self.slow_until).any():
            return hot * self.spread(now)
        return hot * pooled(self.paces(now), self.case.mode, self.less_work) * self._servers_pace(now)

    def _servers_pace(self, now: float) -> float:
        """A server on a slow host slows the job as far as servers are busy."""
        if self.hosts.alike:
            return 1.0
        slowest = min(self.hosts.paces(now)[self.servers_on], default=1.0)
        if slowest >= 1.0 or self.live is None:
            return 1.0
        busy = min(
            self.ideal(self.live).server_cores / max(self.live.servers * self.live.server_cores, 1e-9), 1.0
        )
        return 1.0 / (1.0 + busy * (1.0 / max(float(slowest), 0.01) - 1.0))

    def staying(self, where: Mapping[int, tuple[int, int]]) -> int:
        """How many of the workers there are stand on a node that holds one of the job (`where`: workers and servers by node)."""
        return sum(min(here, where.get(node, (0, 0))[0]) for node, here in Counter(self.on).items())

    def remain(self, places: Mapping[int, int]) -> None:
        """Of the workers there are, so many of each node go on."""
        left, stays = dict(places), list[int]()
        for i, node in enumerate(self.on):
            if left.get(node, 0):
                left[node] -= 1
                stays.append(i)
        self._keep(stays)

    def crew(self, workers: int, weather: Weather, where: Mapping[int, tuple[int, int]]) -> None:
        """As many workers as there shall be, on the nodes that hold them (`where`: workers and servers by node).

        A worker whose node still holds one stays with its pace; newcomers draw theirs.
        """
        room = {node: held[0] for node, held in sorted(where.items())}
        self.servers_on = [node for node, held in sorted(where.items()) if held[1]]
        stays = list[int]()
        for i, node in enumerate(self.on):
            if len(stays) < workers and room.get(node, 0):
                room[node] -= 1
                stays.append(i)
        self._keep(stays)
        new = workers - len(stays)
        if new:
            places = [node for node, free in room.items() for _ in range(free)]
            # Workers that train on while their job moves elsewhere are beyond what the new nodes hold.
            self.on += (places + [min(where)] * new)[:new]
            drawn = 1.0 - np.abs(weather.worker_spread * self.rng.standard_normal(new))
            self.own = np.r_[self.own, np.clip(drawn, 0.5, 1.0)]
            self.slow, self.slow_until = np.r_[self.slow, np.ones(new)], np.r_[self.slow_until, np.zeros(new)]

    def _keep(self, stays: list[int]) -> None:
        if len(stays) == len(self.on):
            return
        self.on = [self.on[i] for i in stays]
        self.own, self.slow, self.slow_until = self.own[stays], self.slow[stays], self.slow_until[stays]
        self.less_work = {new for new, old in enumerate(stays) if old in self.less_work}

    def discharge(self, member: int) -> None:
        """One worker goes."""
        self._keep([i for i in range(len(self.on)) if i != member])

    def disband(self) -> None:
        """All workers are new ones."""
        self._keep([])

    def touch(
        self,
        now: float,
        held: Size | None,
        checkpoint_s: float | None,
        beside: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Account for the time since the job was last looked at. `checkpoint_s`: how often it is saved, None: not at all.
        `beside`: cores and GiB of workers that train on until their successors come.
        """
        span, self.touched = now - self.touched, now
        if span <= 0:
            return
        if held is None:
            self.budget.queue_s += span
            return
        result = self.result
        result.worker_core_s += span * (held.workers * held.worker_cores + beside[0])
        result.server_core_s += span * held.servers * held.server_cores
        result.worker_gib_s += span * (held.workers * held.worker_gib + beside[1])
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
        live, wanted = self.ideal(self.live).speed, self.ideal(held).speed
        self.budget.train(span, self.rate, live * self.even, live, wanted, self.reference_speed, self.probing)
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


def pooled(paces: FloatArray, mode: Mode, less_work: Collection[int] = ()) -> float:
    """Share of its healthy rate that a job keeps with workers of these paces (n,).

    Asynchronous workers add up. Synchronous ones wait for the slowest of those that have an equal share of the work; those in
    `less_work` have what they do in the same time. With one of four at half speed: 0.5, and 0.875 where it has less work.
    """
    if mode == "async":
        return float(paces.mean())
    given = np.zeros(len(paces), dtype=np.bool_)
    given[[i for i in less_work if i < len(paces)]] = True
    if given.all():
        return float(paces.mean())
    if not given.any():
        return float(paces.min())
    waited = paces[~given].min()
    return float((waited * (~given).sum() + np.minimum(paces[given], waited).sum()) / len(paces))
