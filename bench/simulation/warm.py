"""Warm starts of recurring families: how near the first plan is after ten runs, and how soon the job is at full speed; against
cold starts.

Fed by W1's families with 5 % drift a run on a cluster that never binds, by the production stages; feeds the report's last lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from bench.simulation.cluster import Cluster
from bench.simulation.generator import Habits, Workload, generate
from bench.simulation.policies.staged import Staged
from bench.simulation.port import Case, Setting, Size
from bench.simulation.weather import CALM
from bench.simulation.worlds import W1

_GAP_S = 6 * 3600.0
_RUN_S = 3600.0


class _Watched(Cluster):
    """Notes when each job first trained at 95 % of what it trained at in the end, and with what it started and ended."""

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
    """Accuracy of the last run's first plan in workers and servers (share of the final size), and seconds to 95 % of the final
    speed."""
    workers, servers, warm_s, cold_s = [], [], [], []
    for seed in seeds:
        workload = recurring(seed, runs)
        name = workload.cases[-1].name
        warm = _watch(workload, frozenset({1, 2, 3}))
        cold = _watch(replace(workload, cases=workload.cases[-1:]), frozenset({2, 3}))
        first, last = warm.first[name], warm.last[name]
        workers.append(1 - abs(first.workers - last.workers) / last.workers)
        servers.append(1 - abs(first.servers - last.servers) / last.servers)
        top = max(rate for _, rate in warm.rates[name] + cold.rates[name])
        warm_s.append(_until(warm.rates[name], 0.95 * top))
        cold_s.append(_until(cold.rates[name], 0.95 * top))
    return {
        "workers: start within of the final size": float(np.mean(workers)),
        "servers: start within of the final size": float(np.mean(servers)),
        "warm: seconds to 95 % of the best speed": float(np.median(warm_s)),
        "cold: seconds to 95 % of the best speed": float(np.median(cold_s)),
    }


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
        samples = float(template.truth.throughput(at)[0]) * speed * _RUN_S
        cases.append(
            replace(
                template,
                name=f"run-{run:02d}",
                arrive_s=run * _GAP_S,
                samples=samples,
                speed=speed,
                tables_gib=tables,
            )
        )
    return Workload(seed, 0.0, tuple(cases), {c.name: reference for c in cases}, 200, (32.0, 256.0), Habits())


def _watch(workload: Workload, stages: frozenset[int]) -> _Watched:
    cluster = _Watched(workload, Staged(Setting(W1.menu, workload.seed), stages), CALM)
    cluster.run()
    return cluster


def _until(rates: list[tuple[float, float]], enough: float) -> float:
    return next((at for at, rate in rates if rate >= enough), rates[-1][0])
