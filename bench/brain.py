"""The Brain's speed and the quality of its choice.

    python -m bench.brain [--jobs 4000] [--instances 200] [--growth] [--plot growth.png] [--json]

Speed, on one core whatever the machine has: a planning round over 4,000 jobs (a space of 65,536 plans each) and 16,000 nodes,
some 100,000 tasks, from samples to typed plans, placement included; the refit of one job; the front of 10^5 plans. `--growth`
times 1,000 to 40,000 jobs and fits the exponent of the cost (1 is linear); `--plot` draws it. `--instances 0` leaves the
knapsack out.
Quality: greedy against the exact knapsack (scipy.optimize.milp) on instances of 20 to 200 jobs with fronts from W1 (a queueing
network), CPU and memory both binding in half of them; the fleet's fronts and NSGA-II's against the exact ones.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from bench.fit import refit_ms
from bench.queueing import queueing_network
from rover_bus.brain.decisions.fleet import Fleet, Fronts, fit_fleet, fleet_fronts, plan_round
from rover_bus.brain.decisions.knapsack import Offers, choose_exactly, choose_greedily
from rover_bus.brain.decisions.nsga2 import search_front
from rover_bus.brain.decisions.pareto import hypervolume, pareto_front
from rover_bus.brain.decisions.placement import Node
from rover_bus.brain.decisions.plans import GIB, PlanSpace, Prices
from rover_bus.brain.decisions.scoring import ScalePolicy
from rover_bus.brain.models.forms import ASYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, FloatArray

_SAMPLES = 8
_TYPICAL = np.array([1 / 512, 0.1, 0.02, 0.05 / 512, 0.05])


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def random_fleet(jobs: int, seed: int = 0) -> Fleet:
    """Jobs of all sizes, some 25 tasks each."""
    rng = np.random.default_rng(seed)
    return Fleet(
        _TYPICAL * rng.lognormal(0.0, 0.6, (jobs, 5)),
        np.full(jobs, 512.0),
        rng.integers(2, 33, jobs),
        rng.integers(1, 9, jobs),
        rng.choice([1.0, 2, 4, 8], jobs),
        rng.choice([1.0, 2, 4], jobs),
        rng.lognormal(np.log(2), 0.5, jobs),
        rng.lognormal(np.log(2), 0.5, jobs),
        rng.lognormal(np.log(8), 0.6, jobs),
        rng.lognormal(np.log(1e7), 1.0, jobs),
        np.ones(jobs),
    )


def measured_seconds(fleet: Fleet, seed: int = 1) -> tuple[FloatArray, FloatArray]:
    """Design rows (samples, 5) and noisy seconds an iteration (jobs, samples): what a round starts from."""
    rng = np.random.default_rng(seed)
    w, p, worker_cores, server_cores = (rng.integers(1, high, _SAMPLES) for high in (17, 7, 9, 5))
    at = Configurations.of(w, p, worker_cores, server_cores, 512.0)
    design = ASYNCHRONOUS.design(at)
    return design, fleet.coefficients @ design.T * np.exp(0.05 * rng.standard_normal((len(fleet), _SAMPLES)))


def round_from_samples(
    fleet: Fleet, design: FloatArray, seconds: FloatArray, nodes: list[Node]
) -> tuple[int, int, float]:
    """Samples to typed plans: statistics, fits, fronts, choice, placement. Returns tasks, jobs without room, the gap."""
    rows = design[None] / seconds[..., None]
    grams, moments = rows.transpose(0, 2, 1) @ rows, rows.sum(axis=1)
    fitted = replace(fleet, coefficients=fit_fleet(grams, moments, np.full(len(fleet), float(_SAMPLES))))
    outcome = plan_round(fitted, nodes, Prices(), ScalePolicy(), headroom=0.1)
    tasks = sum(plan.allocation.members for plan in outcome.plans)
    return tasks, sum(plan.placement.missing > 0 for plan in outcome.plans), outcome.choice.gap


def measure_round(jobs: int, repeats: int = 5) -> dict[str, float]:
    """Time of a whole round; four nodes a job."""
    fleet = random_fleet(jobs)
    design, seconds = measured_seconds(fleet)
    nodes = [Node(f"node-{i}", 32.0, 128 * GIB) for i in range(4 * jobs)]
    taken, result = [], (0, 0, 0.0)
    for _ in range(repeats):
        start = time.perf_counter()
        result = round_from_samples(fleet, design, seconds, nodes)
        taken.append(time.perf_counter() - start)
    return {
        "jobs": jobs,
        "nodes": len(nodes),
        "tasks": result[0],
        "jobs_without_room": result[1],
        "gap_bound": result[2],
        "round_s": statistics.median(taken),
        "fastest_s": min(taken),
    }


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


def measure_fronts(jobs: int = 40) -> dict[str, float]:
    """The exact front of 65,536 plans against the fleet's budgets and against NSGA-II."""
    fleet, space = random_fleet(jobs, seed=9), PlanSpace()
    fronts = fleet_fronts(fleet, Prices(), space)
    at = space.configurations(512.0)
    losses, ratios, nsga_ms, exact_ms = [], [], [], []
    for job in range(jobs):
        objective = objective_of(fleet, job)
        start = time.perf_counter()
        costs, gains = objective(at)
        pareto_front(costs, gains)
        middle = time.perf_counter()
        found = search_front(space, objective, seed=job)
        exact_ms.append(1e3 * (middle - start))
        nsga_ms.append(1e3 * (time.perf_counter() - middle))
        worst = float(costs.max())
        ratios.append(hypervolume(*objective(found), worst) / hypervolume(costs, gains, worst))
        losses.append(loss_of_front(fleet, fronts, job, at, costs, gains))
    rng = np.random.default_rng(0)
    random_costs, random_gains = rng.random(100_000), rng.random(100_000)
    return {
        "front_1e5_ms": median_ms(lambda: pareto_front(random_costs, random_gains), 20),
        "exact_65536_ms": statistics.median(exact_ms),
        "nsga2_ms": statistics.median(nsga_ms),
        "nsga2_hypervolume": statistics.median(ratios),
        "nsga2_hypervolume_worst": min(ratios),
        "fleet_front_loss_median": statistics.median(losses),
        "fleet_front_loss_worst_job": max(losses),
    }


def objective_of(fleet: Fleet, job: int) -> Callable[[Configurations], tuple[FloatArray, FloatArray]]:
    """Return what sizes of a job cost (cores and a tenth of GiB) and bring (throughput)."""
    c, wg, sg = fleet.coefficients[job], fleet.worker_gib[job], fleet.server_gib[job]

    def objective(x: Configurations) -> tuple[FloatArray, FloatArray]:
        full = Configurations(x.workers, x.ps, x.worker_cores, x.ps_cores, np.full(len(x), 512.0))
        cost = x.workers * (x.worker_cores + 0.1 * wg) + x.ps * (x.ps_cores + 0.1 * sg)
        return cost, ASYNCHRONOUS.throughput(full, ASYNCHRONOUS.design(full) @ c)

    return objective


def loss_of_front(
    fleet: Fleet, fronts: Fronts, job: int, at: Configurations, costs: FloatArray, gains: FloatArray
) -> float:
    """Return which share of the exact front's throughput a job's offers lack at their cost, in the median."""
    reach = np.flatnonzero((at.workers <= 2 * fleet.workers[job]) & (at.ps <= 2 * fleet.servers[job]))
    best = reach[pareto_front(costs[reach], gains[reach])]
    offered = fronts.workers[job] * (fronts.worker_cores[job] + 0.1 * fleet.worker_gib[job])
    servers = fronts.servers[job] * (fronts.server_cores[job] + 0.1 * fleet.server_gib[job])
    offered = (offered + servers)[1:]
    index = np.maximum(np.searchsorted(costs[best], offered + 1e-6, side="right") - 1, 0)
    return float(np.median(1 - fronts.throughput[job, 1:] / gains[best][index]))


def draw_growth(rounds: list[dict[str, float]], path: Path) -> None:
    """Draw the time of a round against the number of jobs, beside a line through the first in proportion."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    jobs, seconds = [each["jobs"] for each in rounds], [each["fastest_s"] for each in rounds]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(jobs, seconds, "o-", label="a round, from samples to placed plans")
    axes.loglog(jobs, [seconds[0] * n / jobs[0] for n in jobs], "--", color="grey", label="linear")
    axes.set(xlabel="jobs", ylabel="seconds, one core")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


@click.command(help=__doc__)
@click.option("--jobs", default=4000, show_default=True)
@click.option("--instances", default=200, show_default=True)
@click.option("--growth", is_flag=True, help="Time 1,000 to 40,000 jobs as well.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the growth into this file (PNG, SVG).")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(jobs: int, instances: int, growth: bool, plot: Path | None, as_json: bool) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    measure_round(200, 1)  # imports and page faults are nobody's planning time
    result: dict[str, object] = {
        "round": measure_round(jobs),
        "refit": {"refit_ms": refit_ms()},
        "fronts": measure_fronts(),
    }
    if instances:
        result["knapsack"] = measure_gaps(instances)
    if growth or plot:
        rounds = [measure_round(n, 3) for n in (1_000, 2_000, 4_000, 10_000, 20_000, 40_000)]
        sizes, times = np.log([r["jobs"] for r in rounds]), np.log([r["fastest_s"] for r in rounds])
        result |= {"growth": rounds, "growth_exponent": float(np.polyfit(sizes, times, 1)[0])}
        if plot:
            draw_growth(rounds, plot)
    for part, figures in result.items():
        for row in figures if isinstance(figures, list) else [figures]:
            cells = row.items() if isinstance(row, dict) else [("", row)]
            print(f"{part:<10}", "  ".join(f"{name} {value:.4g}" for name, value in cells))
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
