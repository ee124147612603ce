"""The quality of the Brain's choice: greedy against the exact knapsack, NSGA-II's front against the exact one.

    python -m bench.knapsack [--instances 200] [--fronts 40] [--json]

Greedy against `scipy.optimize.milp` on instances of 20 to 200 jobs with fronts from W1 (a queueing network), CPU and memory both
binding in half of them; NSGA-II against the enumerated front on jobs of `bench.brain`, each by what the live Brain fitted.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import click
import numpy as np

from bench.brain import cluster
from bench.queueing import queueing_network
from rover_bus.brain.decisions.knapsack import Offers, choose_exactly, choose_greedily
from rover_bus.brain.decisions.nsga2 import search_front
from rover_bus.brain.decisions.pareto import hypervolume, pareto_front
from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.models.samples import Configurations, FloatArray, NotEnough
from rover_bus.brain.standing_models import StandingModels


def w1_offers(jobs: int, both_bind: bool, seed: int) -> Offers:
    """A knapsack of W1 fronts: cores and GiB; in the other half of the instances memory never binds."""
    rng = np.random.default_rng(seed)
    values, usages = [], []
    for _ in range(jobs):
        truth = queueing_network(int(rng.integers(1_000_000)))
        w, p = np.r_[1, rng.integers(1, 33, 60)], np.r_[1, rng.integers(1, 9, 60)]
        lw, lp = np.r_[1, rng.choice([1, 2, 4, 8, 12], 60)], np.r_[1, rng.choice([1, 2, 4, 8], 60)]
        speed = truth(w, p, lw, lp)
        cores, gib = w * lw + p * lp, w * rng.lognormal(np.log(2), 0.7) + p * rng.lognormal(np.log(4), 0.7)
        front = pareto_front(cores + 0.25 * gib, speed)
        front = np.r_[0, front[front != 0]]
        values.append(speed[front] / speed.max())
        usages.append(np.stack([cores[front], gib[front]], axis=1))
    width = max(map(len, values))
    value, usage = np.full((jobs, width), -np.inf), np.zeros((jobs, width, 2))
    for job, (v, u) in enumerate(zip(values, usages, strict=True)):
        value[job, : len(v)], usage[job, : len(v)] = v, u
    full = usage[np.arange(jobs), value.argmax(axis=1)].sum(axis=0)
    least = usage[:, 0].sum(axis=0)
    tight = rng.uniform(0.25, 0.8)
    share = np.array([tight, tight * rng.uniform(0.8, 1.2) if both_bind else 10.0])
    return Offers(value, usage, least + share * np.maximum(full - least, 0.1 * least))


def measure_gaps(instances: int) -> dict[str, float]:
    """Gap of the greedy choice to the exact one: median, p95, worst; and both times."""
    gaps, greedy_ms, exact_ms = [], [], []
    for seed in range(instances):
        jobs = int(np.random.default_rng(seed + 5_000).integers(20, 201))
        offers = w1_offers(jobs, seed % 2 == 0, seed)
        start = time.perf_counter()
        greedy = choose_greedily(offers)
        middle = time.perf_counter()
        with _quiet():
            exact = choose_exactly(offers, gap=2e-4, node_limit=20_000)
        gaps.append(max(1 - greedy.worth / exact.bound, 0.0))
        greedy_ms.append(1e3 * (middle - start))
        exact_ms.append(1e3 * (time.perf_counter() - middle))
    return {
        "instances": instances,
        "gap_median": float(np.median(gaps)),
        "gap_p95": float(np.quantile(gaps, 0.95)),
        "gap_worst": max(gaps),
        "greedy_ms": statistics.median(greedy_ms),
        "exact_ms": statistics.median(exact_ms),
    }


class _quiet:  # noqa: N801
    """HiGHS writes stray lines to the process' stdout: keep them out of the table."""

    def __enter__(self) -> None:
        self.kept = os.dup(1)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)

    def __exit__(self, *_: object) -> None:
        os.dup2(self.kept, 1)
        os.close(self.kept)


def measure_fronts(jobs: int) -> dict[str, float]:
    """The exact front of 65,536 plans of each job against NSGA-II's: hypervolume, and milliseconds of both."""
    state, space = cluster(jobs, families=jobs), PlanSpace()
    standing, ratios, nsga_ms, exact_ms = StandingModels(state), [], [], []
    at = space.configurations(512.0)
    for number, job in enumerate(state.jobs.values()):
        model = standing.of(job)
        assert not isinstance(model, NotEnough)

        def objective(x: Configurations) -> tuple[FloatArray, FloatArray]:
            full = Configurations(x.workers, x.ps, x.worker_cores, x.ps_cores, np.full(len(x), 512.0))
            return x.workers * x.worker_cores + x.ps * x.ps_cores, model.sketch(full)  # noqa: B023 - called at once

        began = time.process_time()
        costs, gains = objective(at)
        pareto_front(costs, gains)
        middle = time.process_time()
        found = search_front(space, objective, seed=number)
        exact_ms.append(1e3 * (middle - began))
        nsga_ms.append(1e3 * (time.process_time() - middle))
        worst = float(costs.max())
        ratios.append(hypervolume(*objective(found), worst) / hypervolume(costs, gains, worst))
    return {
        "exact_65536_ms": statistics.median(exact_ms),
        "nsga2_ms": statistics.median(nsga_ms),
        "nsga2_hypervolume": statistics.median(ratios),
        "nsga2_hypervolume_worst": min(ratios),
    }


@click.command(help=__doc__)
@click.option("--instances", default=200, show_default=True)
@click.option("--fronts", default=40, show_default=True, help="Jobs whose fronts are compared.")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(instances: int, fronts: int, as_json: bool) -> None:
    result = {"fronts": measure_fronts(fronts), "knapsack": measure_gaps(instances)}
    for part, figures in result.items():
        print(f"{part:<10}", "  ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
