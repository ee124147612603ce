"""Growing jobs under memory limits: kills avoided and how tight the limits end, against no intervention.

    python -m bench.memory [--jobs 1000] [--json]

Each job grows by Heaps' law (h 0.5 to 0.9); in 10 % the slope changes on the way (a feature is launched). It runs 30 to 240
minutes, reports memory once a minute with 0.5 % noise, and a new limit takes effect 40 to 120 s after it was asked for. It starts
with what no-intervention would have: a limit that is too small for the end. The relief is the production one
(`rover_bus.brain.decisions.memory_limits`).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import numpy as np

from rover_bus.brain.decisions.memory_limits import Means, MemoryState, decide_relief
from rover_bus.brain.models.memory import fit_growth
from rover_bus.brain.models.samples import NotEnough

GIB = 2.0**30
_STEP_S = 60.0
_RATE = 1000.0
_KEPT_POINTS = 60


def growing_job(rng: np.random.Generator) -> tuple[float, Callable[[float], float], float]:
    """Duration in seconds, bytes as a function of time, and the limit that it starts with."""
    h, duration = rng.uniform(0.5, 0.9), rng.uniform(30, 240) * 60
    base, grown = rng.uniform(0.5, 2) * GIB, rng.uniform(4, 30) * GIB
    changes = rng.random() < 0.1
    at, factor = rng.uniform(0.2, 0.8) * duration, rng.uniform(1.5, 3.0)

    def used(t: float) -> float:
        extra = 0.0
        if changes and t > at:
            slope = grown * h * (at / duration) ** (h - 1) / duration
            extra = (factor - 1) * slope * (t - at)
        return float(base + grown * (t / duration) ** h + extra)

    return duration, used, used(duration) * rng.uniform(0.4, 0.9)


def run_job(seed: int, relief: bool = True) -> tuple[bool, float, int]:
    """Whether it was killed, its last limit over its true peak, and how many incidents were opened."""
    rng = np.random.default_rng(seed)
    duration, used, limit = growing_job(rng)
    means = Means(largest_server_bytes=512 * GIB, free_bytes=512 * GIB)
    samples, memory, incidents = list[float](), list[float](), set[str]()
    pending: tuple[float, float] | None = None
    for t in np.arange(_STEP_S, duration, _STEP_S):
        if pending is not None and t >= pending[0]:
            limit, pending = pending[1], None
        if used(t) > limit:
            return True, limit / used(duration), len(incidents)
        samples.append(t * _RATE)
        memory.append(used(t) * float(np.exp(0.005 * rng.standard_normal())))
        growth = fit_growth(samples[-_KEPT_POINTS:], memory[-_KEPT_POINTS:])
        if not relief or isinstance(growth, NotEnough) or pending is not None:
            continue
        incident = next(iter(incidents), "")
        state = MemoryState(
            growth=growth,
            limit_bytes=limit,
            samples_per_s=_RATE,
            remaining_samples=(duration - t) * _RATE,
            incident=incident,
        )
        for asked in decide_relief({0: state}, means, f"incident-{seed}"):
            pending = (t + rng.uniform(40, 120), float(asked.limit_bytes))
            incidents.add(asked.incident)
    return False, limit / used(duration), len(incidents)


@click.command(help=__doc__)
@click.option("--jobs", default=1000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(jobs: int, as_json: bool) -> None:
    off = [run_job(seed, relief=False) for seed in range(jobs)]
    on = [run_job(seed) for seed in range(jobs)]
    kills_off, kills_on = sum(run[0] for run in off), sum(run[0] for run in on)
    tightness = [run[1] for run in on if not run[0]]
    result = {
        "jobs": jobs,
        "kills_without": kills_off,
        "kills_with": kills_on,
        "avoided": 1 - kills_on / max(kills_off, 1),
        "limit_over_peak_median": float(np.median(tightness)),
        "limit_over_peak_p95": float(np.quantile(tightness, 0.95)),
        "most_incidents_a_job": max(run[2] for run in on),
    }
    for name, value in result.items():
        print(f"{name:<24} {value:.4g}")
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
