"""The engine: a cluster in virtual time, from arrivals to ends. Knows the truth; policies meet it through `port` only.

Fed by a workload and a policy, feeds `metrics`. Event-driven: arrivals, ends and phases of jobs fall when they fall; every 30 s
telemetry is taken and what accumulates (memory, hazards) is looked at. All chance is drawn from streams named by (seed, job,
purpose) and falls on member-seconds, so that two policies under one seed meet the same weather as far as their choices allow: the
seeds are paired.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bench.simulation.generator import Workload
from bench.simulation.jobs import Job
from bench.simulation.metrics import Result
from bench.simulation.nodes import Machines
from bench.simulation.port import ClusterView, JobView, Policy, Remedy, Wanted
from bench.simulation.runtime import Runtime
from bench.simulation.telemetry import Telemetry
from bench.simulation.weather import WINDOW_S, Weather

GIVE_UP_S = 400_000.0


class Cluster:
    """One run of one policy. `run()` returns the result."""

    def __init__(
        self, workload: Workload, policy: Policy, weather: Weather | None = None, drift: bool = True
    ) -> None:
        self.workload, self.policy = workload, policy
        self.weather = weather or workload.weather
        self.drift = drift
        self.machines = Machines(workload.hosts)
        self.runtime = Runtime(policy.mechanisms, self.machines, self.weather)
        self.telemetry = Telemetry(self.weather, self._stream("telemetry"))
        self.jobs = {
            case.name: Job(case, self._stream(case.name), workload.references[case.name], workload.hosts)
            for case in workload.cases
        }
        self.here: dict[str, Job] = {}  # arrived, not ended
        self.now = 0.0
        self.events: list[tuple[float, int, str, str, int]] = []
        self.pushed = 0
        self.result = Result(policy.name, workload.seed, workload.cores, workload.gib)

    def run(self) -> Result:
        """Run until every job has ended."""
        for case in self.workload.cases:
            self._push(case.arrive_s, "arrive", case.name)
        self._push(WINDOW_S, "tick")
        self._push(self.policy.round_s, "round")
        while self.events and self.now < GIVE_UP_S:
            self.now, _, kind, name, version = heapq.heappop(self.events)
            self.runtime.now = self.now
            if kind == "arrive":
                self.here[name] = self.jobs[name]
                if self.jobs[name].case.kill.patience_s < math.inf:
                    self._push(self.now + self.jobs[name].case.kill.patience_s, "kill", name)
                self._plan(False)
            elif kind == "kill" and name in self.here:
                self.runtime.touch(self.here[name])
                self._kill(self.here[name])
            elif kind == "wake" and name in self.here and self.jobs[name].version == version:
                self._wake(self.here[name])
            elif kind in ("tick", "round"):
                if not self.here and not any(event[2] == "arrive" for event in self.events):
                    break
                self._tick() if kind == "tick" else self._plan(True)
                self._push(self.now + (WINDOW_S if kind == "tick" else self.policy.round_s), kind)
        for name, job in self.jobs.items():
            self._note(name, job)
        self.result.until_s = self.now
        return self.result

    # -- a job's phases ------------------------------------------------------------------------------------------------

    def _refresh(self, job: Job) -> None:
        """Recompute the rate and when the job needs to be looked at next."""
        job.version += 1
        job.rate, job.busy = 0.0, (0.0, 0.0)
        if job.state == "running" and job.live is not None:
            ideal = job.ideal(job.live)
            job.even = job.spread(self.now)
            factor = job.health(self.now)
            factor *= job.case.truth.factor(self.now) if self.drift else 1.0
            job.rate = ideal.speed * factor
            job.busy = (ideal.worker_cores * factor, ideal.server_cores * factor)
        left = max(job.case.samples * min(job.case.kill.share, 1.0) - job.done, 0.0)
        ends = self.now + left / job.rate if job.rate > 0 else math.inf
        due = min(ends, job.joins[0][0] if job.joins else math.inf, job.until)
        if due < math.inf:
            self._push(due, "wake", job.case.name, job.version)

    def _wake(self, job: Job) -> None:
        self.runtime.touch(job)
        if job.case.samples - job.done <= 1e-6 * job.case.samples:
            self._end(job, True)
            return
        if job.share >= job.case.kill.share - 1e-6:
            self._kill(job)
            return
        if job.until <= self.now:
            # What a window saw of a start or a stop is no measurement of the size.
            job.until, job.state, job.changed_at = math.inf, "running", self.now
            job.checkpoint_at = self.now + self.policy.mechanisms.checkpoint_s
            if job.result.started_s < 0:
                job.result.started_s = self.now
        if job.joins and job.joins[0][0] <= self.now:
            _, live = job.joins.pop(0)
            if job.leaving:
                self.runtime.replaced(job)
            self.runtime.go_live(job, live)
        self._refresh(job)

    def _kill(self, job: Job) -> None:
        """The job's user stops it."""
        job.result.killed = True
        self._end(job, False)

    def _end(self, job: Job, completed: bool) -> None:
        job.result.completed, job.result.ended_s = completed, self.now
        view = self._view(job)
        self.machines.stop(job.case.name)
        del self.here[job.case.name]
        self.policy.ended(view, self.now, completed)
        self._plan(False)

    def _plan(self, regular: bool) -> None:
        for job in self.here.values():
            self.runtime.touch(job)
        wishes = self.policy.plan(self._cluster_view(), self.now, regular)
        probing: frozenset[str] = getattr(self.policy, "probing", frozenset())
        for wish in wishes:
            wanted = Wanted(*wish)
            if wanted.job in self.here:
                job = self.here[wanted.job]
                self.runtime.apply(job, wanted)
                job.probing = wanted.job in probing
                self._refresh(job)

    def _remedy(self, remedies: Sequence[Remedy]) -> None:
        replaced = defaultdict[str, dict[int, int]](dict)
        for remedy in remedies:
            target = self.here.get(remedy.job)
            if target is None or target.live is None:
                continue
            if remedy.kind == "replace_worker":
                replaced[remedy.job][remedy.member] = remedy.host
            else:
                self.runtime.remedy(target, remedy.kind, remedy.member)
                self._refresh(target)
        for name, hosts in replaced.items():
            self.runtime.replace(self.here[name], hosts)
            self._refresh(self.here[name])

    # -- what happens to jobs ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._remedy(self.policy.observe(self.telemetry.deliver()))
        for job in list(self.here.values()):
            if job.state == "waiting":
                continue
            self.runtime.touch(job)
            self.telemetry.measure(job, self.now)
            self._strike(job)
            if job.case.name in self.here and self.runtime.out_of_memory(job):
                self._end(job, False)
            if job.case.name in self.here:
                self._refresh(job)

    def _due(self, job: Job, purpose: str, exposure: float, hazard: float) -> bool:
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

    def _strike(self, job: Job) -> None:
        if job.live is None or job.state == "starting" or self.policy.mechanisms.free:
            return
        weather, live = self.weather, job.live
        if self._due(job, "straggler", live.workers * WINDOW_S, weather.straggler):
            i = int(job.rng.integers(len(job.slow)))
            job.slow[i] = job.rng.uniform(0.15, 0.6)
            job.slow_until[i] = self.now + job.rng.lognormal(math.log(weather.straggler_median_s), 1.0)
        if self._due(job, "hot", live.servers * WINDOW_S, weather.hot_server):
            job.hot = float(job.rng.uniform(0.4, 0.8))
            job.hot_until = self.now + job.rng.exponential(weather.hot_mean_s)
            job.hot_server = int(job.rng.integers(live.servers))
        hazard = weather.failure * self.workload.habits.stands_for
        if self._due(job, "failure", live.members * WINDOW_S, hazard):
            worker = job.rng.random() < live.workers / live.members
            if job.rng.random() >= weather.by_node:
                self._lose(job, int(worker), int(not worker))
                return
            node = int(job.rng.choice(sorted(self.machines.where[job.case.name])))
            for name, (workers, servers) in self.machines.crowd(node).items():
                self._lose(self.here[name], workers, servers)

    def _lose(self, job: Job, workers: int, servers: int) -> None:
        """Members of a job are gone at once."""
        self.runtime.touch(job)
        if self.policy.mechanisms.fatal:
            job.result.failures += 1
            self._end(job, False)
            return
        elastic = self.runtime.checkpoint_s is None
        wanted = self.policy.lost(self._view(job), workers, servers) if elastic else None
        self.runtime.lose(job, workers, servers, wanted)
        self._refresh(job)

    # -- what policies see ---------------------------------------------------------------------------------------------

    def _view(self, job: Job) -> JobView:
        held = self.machines.sizes.get(job.case.name)
        waited = self.now - job.case.arrive_s if held is None else 0.0
        workers, servers = self.machines.hosts_of(job.case.name, job.on)
        return JobView(
            job.case, job.state, held, job.live, job.done, bool(job.joins), waited, workers, servers
        )

    def _cluster_view(self) -> ClusterView:
        machines = self.machines
        return ClusterView(
            [self._view(job) for job in self.here.values()],
            self.workload.cores,
            self.workload.gib,
            float(machines.cores.sum()),
            float(machines.gib.sum()),
            machines.largest_gib,
            machines.hosts,
        )

    # -- small things --------------------------------------------------------------------------------------------------

    def _push(self, at_s: float, kind: str, name: str = "", version: int = 0) -> None:
        self.pushed += 1
        heapq.heappush(self.events, (at_s, self.pushed, kind, name, version))

    def _stream(self, *purpose: str | int) -> np.random.Generator:
        words = [zlib.crc32(str(word).encode()) for word in purpose]
        return np.random.default_rng([self.workload.seed, *words])

    def _note(self, name: str, job: Job) -> None:
        job.result.arrived_s, job.result.large = job.case.arrive_s, job.case.large
        job.result.done_share, job.result.budget = job.share, job.budget
        self.result.jobs[name] = job.result
