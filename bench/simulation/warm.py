"""Warm starts of recurring families: how near the first plan is after ten runs, and how soon the job is at full speed; against
cold starts.

Fed by W1's families with 5 % drift a run on a cluster that never binds, by the production stages; feeds the report's last lines.
Full speed is the oracle's on the same last run: 95 % of its mean throughput. Who never gets there is counted to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from bench.simulation.cluster import Cluster
from bench.simulation.generator import Workload, generate
from bench.simulation.policies.live import LiveBrain
from bench.simulation.policies.oracle import Knowing
from bench.simulation.port import Case, Policy, Size
from bench.simulation.weather import CALM
from bench.simulation.worlds import W1

_GAP_S = 6 * 3600.0
_RUN_S = 3600.0
_NODES = 200


class _Watched(Cluster):
    """Notes how fast each job was when, and with what it started and ended."""

    first: dict[str, Size]
    last: dict[str, Size]
    rates: dict[str, list[tuple[float, float]]]

    def run(self) -> object:  # type: ignore[override]
        self.first, self.last, self.rates = {}, {}, {}
        return super().run()

    def _refresh(self, job) -> None:  # type: ignore[no-untyped-def]
        super()._refresh(job)
        name, held = job.case.name, self.machines.sizes.get(job.case.name)
        if held is not None:
            self.first.setdefault(name, held)
            self.last[name] = held
            self.rates.setdefault(name, []).append((self.now - job.case.arrive_s, job.rate))


def measure_warm_starts(seeds: Iterable[int], runs: int) -> dict[str, float]:
    """Accuracy of the last run's first plan in workers and servers (share of the final size), and seconds to 95 % of the oracle's
    throughput, warm and cold."""
    found = [_measure(seed, runs) for seed in seeds]
    workers, servers, warm_s, cold_s, warm_never, cold_never = zip(*found, strict=True)
    return {
        "workers: start within of the final size": float(np.mean(workers)),
        "servers: start within of the final size": float(np.mean(servers)),
        "warm: seconds to 95 % of the oracle's": float(np.median(warm_s)),
        "cold: seconds to 95 % of the oracle's": float(np.median(cold_s)),
        "warm: families that never get there": float(sum(warm_never)),
        "cold: families that never get there": float(sum(cold_never)),
    }


def _measure(seed: int, runs: int) -> tuple[float, float, float, float, bool, bool]:
    """One family: nearness of workers and servers, seconds warm and cold, whether either never got there."""
    workload = recurring(seed, runs)
    last_run = workload.cases[-1]
    alone = replace(workload, cases=(last_run,))
    setting = W1().setting(workload.seed)
    warm = _watch(workload, LiveBrain(setting))
    cold = _watch(alone, LiveBrain(setting, frozenset({2, 3})))
    oracle = _watch(alone, Knowing(setting))
    enough = 0.95 * last_run.samples / oracle.jobs[last_run.name].result.jct_s
    first, last = warm.first[last_run.name], warm.last[last_run.name]
    (warm_s, warm_never), (cold_s, cold_never) = (
        until(run.rates[last_run.name], enough, run.jobs[last_run.name].result.jct_s) for run in (warm, cold)
    )
    near = [1 - abs(first[role] - last[role]) / last[role] for role in (0, 1)]
    return near[0], near[1], warm_s, cold_s, warm_never, cold_never


def recurring(seed: int, runs: int) -> Workload:
    """One family, `runs` times, far apart, each about an hour, everything drifting by 5 % a run."""
    whole = generate(W1(), seed)
    template = next(case for case in whole.cases if case.max_workers >= 8)
    rng = np.random.default_rng([seed, 9])
    reference = whole.references[template.name]
    at = np.array([reference[:4]], dtype=np.float64)
    speed, tables, cases = template.speed, template.tables_gib, list[Case]()
    for run in range(runs):
        speed, tables = (x * float(np.exp(0.05 * rng.standard_normal())) for x in (speed, tables))
        this = replace(template, name=f"run-{run:02d}", arrive_s=run * _GAP_S, speed=speed, tables_gib=tables)
        cases.append(replace(this, samples=float(this.throughput(at)[0]) * _RUN_S))
    hosts = W1().hosts(rng, _NODES)
    return Workload(seed, 0.0, tuple(cases), {c.name: reference for c in cases}, hosts, W1.habits, CALM)


def until(rates: Sequence[tuple[float, float]], enough: float, end_s: float) -> tuple[float, bool]:
    """Seconds until a rate is first enough, of (seconds, rate) as they came; the end and True where none ever is."""
    first = next((at for at, rate in rates if rate >= enough), None)
    return (end_s, True) if first is None else (first, False)


def _watch(workload: Workload, policy: Policy) -> _Watched:
    cluster = _Watched(workload, policy, CALM)
    cluster.run()
    return cluster
