"""World W1 of algorithms.md §8: a truth that is not the fitted family, so that fitting it proves something.

A closed queueing network (Schweitzer AMVA): workers think (Amdahl share), every server is a CPU station of several cores
(Seidmann) and a NIC station, tables are placed by a Zipf law (0, 0.3, 0.8). Imports nothing of rover_bus.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Throughput = Callable[[float, int, float, float], float]
BATCH = 512


def queueing_network(seed: int) -> Throughput:
    """Return samples a second as a function of (workers, ps, worker cores, ps cores)."""
    rng = np.random.default_rng(seed)
    serial, think = rng.uniform(0.02, 0.3), rng.lognormal(0.0, 0.5)
    cpu, nic = rng.lognormal(np.log(0.6), 0.6), rng.lognormal(np.log(0.02), 0.8)
    skew, fixed, per_server = (
        rng.choice([0.0, 0.3, 0.8]),
        rng.lognormal(np.log(0.02), 0.5),
        rng.uniform(0, 0.01),
    )

    def throughput(workers: float, ps: int, worker_cores: float, ps_cores: float) -> float:
        share = 1 / np.arange(1, ps + 1) ** skew
        share = share / share.sum()
        delay = think * (serial + (1 - serial) / worker_cores) + fixed + per_server * ps
        delay += float((cpu * share).max()) * (1 - 1 / ps_cores)
        demand = np.concatenate([cpu * share / ps_cores, nic * share])
        queue = np.full(len(demand), workers / len(demand) / 2)
        for _ in range(100):
            residence = demand * (1 + queue * (workers - 1) / workers)
            rate = workers / (delay + residence.sum())
            queue = rate * residence
        return float(rate * BATCH)

    return throughput


def measured_table(
    seed: int, rows: int, noise: float = 0.05
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Random configurations (rows, 4) of one W1 job and their throughput with log-normal noise."""
    rng = np.random.default_rng(seed + 1_000)
    truth = queueing_network(seed)
    columns = [
        rng.integers(1, 33, rows),
        rng.integers(1, 13, rows),
        rng.choice([1, 2, 4, 8, 12, 16], rows),
        rng.choice([1, 2, 4, 8], rows),
    ]
    grid = np.stack(columns, axis=1).astype(np.float64)
    speeds = np.array([truth(w, int(p), lw, lp) for w, p, lw, lp in grid])
    return grid, speeds * np.exp(noise * rng.standard_normal(rows))
