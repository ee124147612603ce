"""The engine: a cluster in virtual time, from arrivals to ends. Knows the truth; policies meet it through `port` only.

Fed by a workload and a policy, feeds `metrics`. Event-driven: arrivals, ends and phases of jobs fall when they fall; every 30
s telemetry is taken
and what accumulates (memory, hazards) is looked at. All chance is drawn from streams named by (seed, job, purpose) and falls
on member-seconds, so
that two policies under one seed meet the same weather as far as their choices allow: the seeds are paired.
"""

from __future__ import annotations

import heapq
import math
import zlib
from dataclasses import dataclass, field

import numpy as np

from bench.simulation.generator import Workload
from bench.simulation.metrics import JobResult, Result
from bench.simulation.nodes import Machines
from bench.simulation.port import Case, ClusterView, FloatArray, JobView, Mechanisms, Policy, Size, Window

WINDOW_S = 30.0
GIVE_UP_S = 400_000.0
_OOM_RESTARTS = 3
USUAL_MEMORY = 0.65  # a worker uses this share of its own peak on average


@dataclass(frozen=True)
class Weather:
    """What goes wrong, and how often; a second of a member's life. `calm` has none of it.

    Failures: e^(-0.00264 n) of jobs of n members survive where a lost member ends a job (`algorithms.md §6` [fitted]; the
    0.930 before it is memory).
    `failure` is that over a mean life of 4,800 s, times what a simulated member stands for (`generator.Habits`).
    Straggling: a slow worker in some ten worker-hours, hot servers likewise.
    """

    failure: float = 0.00264 / 4800.0
    by_node: float = 0.10
    straggler: float = 0.10 / 3600.0
    straggler_median_s: float = 600.0
    hot_server: float = 0.05 / 3600.0
    hot_mean_s: float = 3600.0
    worker_spread: float = 0.06
    noise: float = 0.05
    lost: float = 0.01
    doubled: float = 0.01


CALM = Weather(failure=0.0, straggler=0.0, hot_server=0.0, worker_spread=0.0)


def pod_start_s(rng: np.random.Generator, pods: int) -> FloatArray:
    """Seconds until pods run (n,): 0 / 1 / 55 / 104 / 523 s at p50/75/90/95/99, and 60 to 300 s of initialisation."""
    quantiles, seconds = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0), (0.0, 0.0, 1.0, 55.0, 104.0, 523.0, 700.0)
    return np.asarray(np.interp(rng.random(pods), quantiles, seconds) + rng.uniform(60, 300, pods))


@dataclass
class _Job:
    """One job's life. `live` is what trains now; `joins` what is on its way: (when, live then, stop before)."""

    case: Case
    rng: np.random.Generator
    state: str = "waiting"
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
    hot: float = 1.0
    hot_until: float = 0.0
    hot_server: int = 0
    budgets: dict[str, float] = field(default_factory=dict)
    table_gib: float = 0.0
    result: JobResult = field(default_factory=JobResult)
    rate: float = 0.0
    busy: tuple[float, float] = (0.0, 0.0)
    cache: dict[tuple[float, ...], tuple[float, float, float]] = field(default_factory=dict)
    window_done: float = 0.0

    def ideal(self, size: Size) -> tuple[float, float, float]:
        """Throughput, busy worker cores, busy server cores of a healthy job, this run's drift included."""
        key = size[:4]
        if key not in self.cache:
            at = np.array([key], dtype=np.float64)
            speed = float(self.case.truth.throughput(at)[0]) * self.case.speed
            worker, server = self.case.truth.busy_cores(at)
            self.cache[key] = (speed, float(worker[0]), float(server[0]))
        return self.cache[key]


class Cluster:
    """One run of one policy. `run()` returns the result."""

    def __init__(
        self, workload: Workload, policy: Policy, weather: Weather | None = None, drift: bool = True
    ) -> None:
        self.workload, self.policy = workload, policy
        self.weather = weather or Weather()
        self.drift = drift
        self.how: Mechanisms = policy.mechanisms
        self._checkpoints = not self.how.elastic or self.how.failures_restart
        self.machines = Machines(workload.nodes, workload.node)
        self.jobs = {case.name: _Job(case, self._stream(case.name)) for case in workload.cases}
        self.here: dict[str, _Job] = {}  # arrived, not ended
        self.now = 0.0
        self.events: list[tuple[float, int, str, str, int]] = []
        self.pushed = 0
        self.late: list[Window] = []
        self.channel = self._stream("telemetry")
        self.result = Result(policy.name, workload.seed, workload.cores, workload.nodes * workload.node[1])

    def run(self) -> Result:
        """Run until every job has ended."""
        for case in self.workload.cases:
            self._push(case.arrive_s, "arrive", case.name)
        self._push(WINDOW_S, "tick")
        self._push(self.policy.round_s, "round")
        while self.events and self.now < GIVE_UP_S:
            self.now, _, kind, name, version = heapq.heappop(self.events)
            if kind == "arrive":
                self.here[name] = self.jobs[name]
                self._plan(False)
            elif kind == "wake" and name in self.here and self.jobs[name].version == version:
                self._wake(self.here[name])
            elif kind in ("tick", "round"):
                if not self.here and not any(event[2] == "arrive" for event in self.events):
                    break
                self._tick() if kind == "tick" else self._plan(True)
                self._push(self.now + (WINDOW_S if kind == "tick" else self.policy.round_s), kind)
        for name, job in self.jobs.items():
            self._note(name, job)
        return self.result

    # -- a job's phases ------------------------------------------------------------------------------------------------

    def _touch(self, job: _Job) -> None:
        """Account for the time since the job was last looked at."""
        span = self.now - job.touched
        held = self.machines.sizes.get(job.case.name)
        if span > 0 and held is not None:
            result, share = job.result, job.done / job.case.samples
            result.worker_core_s += span * held.workers * held.worker_cores
            result.server_core_s += span * held.servers * held.server_cores
            result.worker_gib_s += span * held.workers * held.worker_gib
            result.server_gib_s += span * held.servers * held.server_gib
            if job.state == "running" and job.live is not None:
                job.done = min(job.done + job.rate * span, job.case.samples)
                result.worker_busy_s += span * job.busy[0]
                result.server_busy_s += span * job.busy[1]
            if job.live is not None:
                result.worker_used_gib_s += span * job.live.workers * job.case.worker_gib * USUAL_MEMORY
                result.server_used_gib_s += span * (
                    job.live.servers * job.case.server_gib + job.case.table_gib(share)
                )
            if job.state == "stopped":
                result.stopped_s += span
            # The checkpoint follows its own clock, not training's.
            if self._checkpoints and job.state == "running":
                while job.checkpoint_at <= self.now:
                    job.checkpointed = max(
                        job.checkpointed, job.done - job.rate * (self.now - job.checkpoint_at)
                    )
                    job.checkpoint_at += self.how.checkpoint_s
        job.touched = self.now

    def _refresh(self, job: _Job) -> None:
        """Recompute the rate and when the job needs to be looked at next."""
        job.version += 1
        job.rate, job.busy = 0.0, (0.0, 0.0)
        if job.state == "running" and job.live is not None:
            ideal, worker, server = job.ideal(job.live)
            factor = self._health(job) * (job.case.truth.factor(self._age(job)) if self.drift else 1.0)
            job.rate, job.busy = ideal * factor, (worker * factor, server * factor)
        ends = self.now + (job.case.samples - job.done) / job.rate if job.rate > 0 else math.inf
        joins = job.joins[0][0] if job.joins else math.inf
        due = min(ends, joins, job.until)
        if due < math.inf:
            self._push(due, "wake", job.case.name, job.version)

    def _age(self, job: _Job) -> float:
        return self.now - job.case.arrive_s

    def _health(self, job: _Job) -> float:
        """What slow workers and hot servers leave of the rate. Synchronous jobs wait for the slowest, unless it gets less work."""
        hot = job.hot if self.now < job.hot_until else 1.0
        if self.how.free or not len(job.slow):
            return hot
        speeds = np.where(self.now < job.slow_until, job.slow, 1.0)
        if job.case.mode == "sync":
            waited = [s for i, s in enumerate(speeds) if i not in job.less_work]
            return hot * min(float(min(waited, default=1.0)), max(float(speeds.mean()), 0.05) * 1.2)
        return hot * float(speeds.mean())

    def _wake(self, job: _Job) -> None:
        self._touch(job)
        if job.case.samples - job.done <= 1e-6 * job.case.samples:
            self._end(job, True)
            return
        if job.until <= self.now:
            job.until = math.inf
            job.state = "running"
            job.checkpoint_at = self.now + self.how.checkpoint_s
            if job.result.started_s < 0:
                job.result.started_s = self.now
        if job.joins and job.joins[0][0] <= self.now:
            _, live = job.joins.pop(0)
            self._go_live(job, live)
        self._refresh(job)

    def _go_live(self, job: _Job, live: Size) -> None:
        servers_change = job.live is not None and job.live.servers != live.servers
        self._crew(job, live.workers)
        job.live, job.changed_at = live, self.now
        if servers_change and job.state == "running" and not self.how.free:
            job.state, job.until = "stopped", self.now + self.how.server_change_s

    def _crew(self, job: _Job, workers: int) -> None:
        """As many worker paces as there are workers; newcomers draw theirs."""
        have = len(job.slow)
        if workers < have:
            job.slow, job.slow_until = job.slow[:workers], job.slow_until[:workers]
            job.less_work = {i for i in job.less_work if i < workers}
        elif workers > have:
            drawn = 1.0 - np.abs(self.weather.worker_spread * job.rng.standard_normal(workers - have))
            job.slow = np.r_[job.slow, np.clip(drawn, 0.5, 1.0)]
            job.slow_until = np.r_[job.slow_until, np.full(workers - have, math.inf)]

    def _end(self, job: _Job, completed: bool) -> None:
        job.result.completed, job.result.ended_s = completed, self.now
        view = self._view(job)
        self.machines.stop(job.case.name)
        del self.here[job.case.name]
        self.policy.ended(view, self.now, completed)
        self._plan(False)

    # -- what policies ask for -----------------------------------------------------------------------------------------

    def _plan(self, regular: bool) -> None:
        for job in self.here.values():
            self._touch(job)
        for name, size in self.policy.plan(self._cluster_view(), self.now, regular):
            if name in self.here:
                self._apply(self.here[name], size)

    def _apply(self, job: _Job, size: Size) -> None:
        held = self.machines.sizes.get(job.case.name)
        if held is None:
            if self.machines.start(job.case.name, size):
                self._start(job, size)
            return
        if size == held:
            return
        if size[:4] == held[:4]:
            self._change_limits(job, size)
            return
        if job.joins and not self.how.free:
            return
        self._touch(job)
        how = self.machines.change(job.case.name, size)
        if how is None:
            job.result.refused += 1
            return
        job.result.rescales += size[:4] != held[:4]
        if self.how.free:
            self._crew(job, size.workers)
            job.live, job.changed_at = size, self.now
        elif not self.how.elastic:
            self._restart(job, size)
        elif job.state == "starting":
            self._start(job, size)
        else:
            self._bring_in(job, size, moved=not how)
        self._refresh(job)

    def _change_limits(self, job: _Job, size: Size) -> None:
        """Memory limits move in place (`pods/resize`) where the nodes have room; else nothing happens."""
        self._touch(job)
        before = dict(self.machines.where[job.case.name])
        if self.machines.change(job.case.name, size) is None:
            job.result.refused += 1
        elif not self.how.elastic and self.machines.where[job.case.name] != before:
            self._restart(job, size)
        elif job.live is not None:
            limit = max(size.server_gib, job.live.server_gib) if job.joins else size.server_gib
            job.live = job.live._replace(worker_gib=size.worker_gib, server_gib=limit)
            job.joins = [
                (at, s._replace(worker_gib=size.worker_gib, server_gib=size.server_gib))
                for at, s in job.joins
            ]

    def _start(self, job: _Job, size: Size) -> None:
        """Members start. An elastic job trains as soon as its servers and half its workers do."""
        job.touched, job.changed_at = self.now, self.now
        ready = np.sort(pod_start_s(job.rng, size.workers))
        servers = float(pod_start_s(job.rng, size.servers).max())
        self._crew(job, size.workers)
        job.live, job.joins, job.state = size, [], "starting"
        if self.how.free:
            job.state, job.until = "running", math.inf
            job.result.started_s = self.now
        elif self.how.elastic:
            half = max(size.workers // 2, 1)
            first = max(float(ready[half - 1]), servers)
            job.until = self.now + first
            if float(ready[-1]) > first and half < size.workers:
                job.live = size._replace(workers=half)
                job.joins = [(self.now + float(ready[-1]), size)]
        else:
            job.until = self.now + max(float(ready[-1]), servers)
        self._refresh(job)

    def _restart(self, job: _Job, size: Size, lose: bool = False) -> None:
        """Save, stop, start, load: what everybody without elastic mechanisms pays. Slow pods add to it."""
        if lose:
            job.result.repeated += job.done - job.checkpointed
            job.done = job.checkpointed
        else:
            job.checkpointed = job.done
        pods = float(pod_start_s(job.rng, size.members).max())
        job.slow, job.slow_until = job.slow[:0], job.slow_until[:0]
        self._crew(job, size.workers)
        job.live, job.joins, job.state, job.changed_at = size, [], "stopped", self.now
        job.until = self.now + max(self.how.restart_s, pods + self.how.restart_s / 3)
        self._refresh(job)

    def _bring_in(self, job: _Job, size: Size, moved: bool) -> None:
        """Elastic change: what shrinks shrinks now, cores change in place, newcomers join in two groups when they are ready."""
        live = job.live or size
        new_workers = size.workers if moved else max(size.workers - live.workers, 0)
        new_servers = size.servers if moved else max(size.servers - live.servers, 0)
        if moved:
            now = live  # the old members train on until the new ones are there
        else:
            servers = min(live.servers, size.servers)
            # Servers keep their larger limit until the tables are spread over more of them.
            limit = max(live.server_gib, size.server_gib)
            now = size._replace(workers=min(live.workers, size.workers), servers=servers, server_gib=limit)
        self._go_live(job, now)
        workers = np.sort(pod_start_s(job.rng, new_workers)) if new_workers else np.zeros(0)
        server_s = float(pod_start_s(job.rng, new_servers).max()) if new_servers else 0.0
        job.joins = []
        if moved:
            job.slow = job.slow[:0]
            job.slow_until = job.slow_until[:0]
            job.joins.append((self.now + max(server_s, float(workers[-1])), size))
            self._crew(job, live.workers)
        elif new_workers or new_servers:
            half = now.workers + (new_workers + 1) // 2
            first = max(float(workers[(new_workers - 1) // 2]) if new_workers else 0.0, server_s)
            job.joins.append((self.now + first, size._replace(workers=min(half, size.workers))))
            if new_workers > 1:
                job.joins.append((self.now + max(float(workers[-1]), first), size))

    # -- what happens to jobs ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        windows = self._deliver()
        for remedy in self.policy.observe(windows):
            target = self.here.get(remedy.job)
            if target is not None and target.live is not None:
                self._remedy(target, remedy.kind, remedy.member)
        for job in list(self.here.values()):
            if job.state == "waiting":
                continue
            self._touch(job)
            self._measure(job)
            self._strike(job)
            if job.case.name in self.here:
                self._out_of_memory(job)
            if job.case.name in self.here:
                self._refresh(job)

    def _due(self, job: _Job, purpose: str, exposure: float, hazard: float) -> bool:
        """Whether an event of a Poisson process falls into this much exposure (member-seconds)."""
        if hazard <= 0:
            return False
        if purpose not in job.budgets:
            job.budgets[purpose] = self._stream(job.case.name, purpose).exponential() / hazard
        job.budgets[purpose] -= exposure
        if job.budgets[purpose] > 0:
            return False
        job.budgets[purpose] = self._stream(job.case.name, purpose, int(self.now)).exponential() / hazard
        return True

    def _strike(self, job: _Job) -> None:
        if job.live is None or job.state == "starting" or self.how.free:
            return
        weather, live = self.weather, job.live
        if self._due(job, "straggler", live.workers * WINDOW_S, weather.straggler):
            i = int(job.rng.integers(len(job.slow)))
            job.slow[i] = job.rng.uniform(0.15, 0.6)
            job.slow_until[i] = self.now + job.rng.lognormal(math.log(weather.straggler_median_s), 1.0)
        if self._due(job, "hot", live.servers * WINDOW_S, weather.hot_server):
            job.hot, job.hot_until = (
                float(job.rng.uniform(0.4, 0.8)),
                self.now + job.rng.exponential(weather.hot_mean_s),
            )
            job.hot_server = int(job.rng.integers(live.servers))
        if self._due(
            job, "failure", live.members * WINDOW_S, weather.failure * self.workload.habits.stands_for
        ):
            worker = job.rng.random() < live.workers / live.members
            if job.rng.random() >= weather.by_node:
                self._lose(job, int(worker), int(not worker))
                return
            node = int(job.rng.choice(sorted(self.machines.where[job.case.name])))
            for name, (workers, servers) in self.machines.crowd(node).items():
                self._touch(self.here[name])
                self._lose(self.here[name], workers, servers)

    def _lose(self, job: _Job, workers: int, servers: int) -> None:
        """Members of a job are gone at once."""
        job.result.failures += 1
        held = self.machines.sizes[job.case.name]
        if self.how.fatal:
            self._end(job, False)
            return
        if not self.how.elastic or self.how.failures_restart:
            self._restart(job, held, lose=True)
            return
        live = job.live or held
        wanted = self.policy.lost(self._view(job), workers, servers) or held
        if wanted != held and self.machines.change(job.case.name, wanted) is None:
            wanted = held
        left = max(live.workers - workers, 1)
        job.joins = []
        ready = float(pod_start_s(job.rng, max(workers + servers, 1)).max()) + 10.0
        if servers or live.workers - workers < 1:
            # Lost slots come back from the last cut, on average a minute old, once the new server is there.
            repeated = min(job.rate * 60.0, job.done)
            job.result.repeated += repeated
            job.done -= repeated
            job.live, job.changed_at = wanted, self.now
            self._crew(job, wanted.workers)
            job.state, job.until = "stopped", self.now + ready + 10.0
        else:
            self._crew(job, min(left, wanted.workers))
            job.live, job.changed_at = wanted._replace(workers=min(left, wanted.workers)), self.now
            if wanted.workers > left:
                job.joins = [(self.now + ready, wanted)]
        self._refresh(job)

    def _out_of_memory(self, job: _Job) -> None:
        held = self.machines.sizes[job.case.name]
        if job.live is None or job.state != "running" or self.how.free:
            return
        limit = (
            held.server_gib if job.live.servers == held.servers else max(held.server_gib, job.live.server_gib)
        )
        if job.case.server_need_gib(job.live.servers, job.done / job.case.samples) <= limit:
            return
        job.result.oom_kills += 1
        if self.how.fatal or (not self.how.doubles_memory and job.result.oom_kills >= _OOM_RESTARTS):
            self._end(job, False)
            return
        wanted = held
        if self.how.doubles_memory:
            # The public code's rule: x2 capped at +8 GiB an incident [code].
            wanted = held._replace(server_gib=min(held.server_gib * 2, held.server_gib + 8))
            if self.machines.change(job.case.name, wanted) is None:
                wanted = held
        if self._checkpoints:
            self._restart(job, wanted, lose=True)
        else:
            self._lose(job, 0, 1)

    def _remedy(self, job: _Job, kind: str, member: int) -> None:
        self._touch(job)
        if kind == "move_slots":
            job.hot, job.hot_until = 1.0, 0.0
        elif kind == "smaller_leases" and member < len(job.slow):
            job.less_work.add(member)
        elif kind == "replace_worker" and member < len(job.slow) and not job.joins:
            live = job.live
            if live is None or live.workers < 2:
                return
            last = len(job.slow) - 1
            job.slow[member], job.slow_until[member] = job.slow[last], job.slow_until[last]
            self._crew(job, last)
            job.less_work.clear()
            job.joins = [(self.now + float(pod_start_s(job.rng, 1)[0]), live)]
            job.live, job.changed_at = live._replace(workers=live.workers - 1), self.now
        self._refresh(job)

    # -- telemetry -----------------------------------------------------------------------------------------------------

    def _measure(self, job: _Job) -> None:
        """Take one window of a running job; it may be lost, doubled or late."""
        if job.state != "running" or job.live is None:
            job.window_done = job.done
            return
        weather, live, rng = self.weather, job.live, self.channel
        mean = (job.done - job.window_done) / WINDOW_S
        job.window_done = job.done
        if mean <= 0:
            return
        noise = np.exp(weather.noise * rng.standard_normal())
        speeds = np.where(self.now < job.slow_until, job.slow, 1.0)
        rates = (
            mean
            / live.workers
            * speeds
            / max(speeds.mean(), 1e-9)
            * np.exp(0.04 * rng.standard_normal(len(speeds)))
        )
        busy = min(job.busy[1] / max(live.servers * live.server_cores, 1e-9), 0.98)
        servers = np.clip(busy * np.exp(0.05 * rng.standard_normal(live.servers)), 0.0, 0.99)
        if self.now < job.hot_until and job.hot_server < live.servers:
            servers[job.hot_server] = 0.97
        share = job.done / job.case.samples
        used = job.case.server_need_gib(live.servers, share) * float(np.exp(0.005 * rng.standard_normal()))
        window = Window(
            job.case.name,
            self.now,
            live,
            mean * float(noise),
            rates,
            servers,
            used,
            job.case.worker_gib,
            job.done,
            job.changed_at <= self.now - WINDOW_S - 1e-6,
        )
        draw = rng.random()
        self.late += [window] * (
            0 if draw < weather.lost else 2 if draw < weather.lost + weather.doubled else 1
        )

    def _deliver(self) -> list[Window]:
        """Windows of the last tick, and half of this one's: telemetry is 0 to 30 s late."""
        ready, self.late = self.late, []
        return ready

    def _view(self, job: _Job) -> JobView:
        held = self.machines.sizes.get(job.case.name)
        waited = self.now - job.case.arrive_s if held is None else 0.0
        return JobView(job.case, job.state, held, job.live, job.done, bool(job.joins), waited)  # type: ignore[arg-type]

    def _cluster_view(self) -> ClusterView:
        machines = self.machines
        return ClusterView(
            [self._view(job) for job in self.here.values()],
            self.workload.cores,
            self.workload.nodes * self.workload.node[1],
            float(machines.cores.sum()),
            float(machines.gib.sum()),
            float(machines.shape[1]),
        )

    # -- small things --------------------------------------------------------------------------------------------------

    def _push(self, at_s: float, kind: str, name: str = "", version: int = 0) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (at_s, self.pushed, kind, name, version))

    def _stream(self, *purpose: str | int) -> np.random.Generator:
        words = [zlib.crc32(str(word).encode()) for word in purpose]
        return np.random.default_rng([self.workload.seed, *words])

    def _note(self, name: str, job: _Job) -> None:
        job.result.arrived_s, job.result.large = job.case.arrive_s, job.case.large
        job.result.done_share = job.done / job.case.samples
        self.result.jobs[name] = job.result
