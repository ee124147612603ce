"""World W1 of algorithms.md §8: a truth that is not the fitted family, so that fitting it proves something.

A closed queueing network (Schweitzer AMVA): workers think (Amdahl share), every server is a CPU station of several cores
(Seidmann) and a NIC station, tables are placed by a Zipf law (0, 0.3, 0.8). Imports nothing of rover_bus.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Throughput = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], FloatArray]
BATCH = 512


def queueing_network(seed: int) -> Throughput:
    """Return samples a second as a function of (workers, ps, worker cores, ps cores), arrays of one length."""
    rng = np.random.default_rng(seed)
    serial, think = rng.uniform(0.02, 0.3), rng.lognormal(0.0, 0.5)
    cpu, nic = rng.lognormal(np.log(0.6), 0.6), rng.lognormal(np.log(0.02), 0.8)
    skew, fixed, per_server = (
        rng.choice([0.0, 0.3, 0.8]),
        rng.lognormal(np.log(0.02), 0.5),
        rng.uniform(0, 0.01),
    )

    def throughput(
        workers: ArrayLike, ps: ArrayLike, worker_cores: ArrayLike, ps_cores: ArrayLike
    ) -> FloatArray:
        columns = (workers, ps, worker_cores, ps_cores)
        w, p, lw, lp = (np.asarray(column, dtype=np.float64).reshape(-1, 1) for column in columns)
        place = np.arange(1, int(p.max()) + 1)[None, :]
        share = np.where(place <= p, 1.0 / place**skew, 0.0)
        share = share / share.sum(axis=1, keepdims=True)
        delay = think * (serial + (1 - serial) / lw) + fixed + per_server * p
        delay = delay + cpu * share.max(axis=1, keepdims=True) * (1 - 1 / lp)
        demand = np.concatenate([cpu * share / lp, nic * share], axis=1)
        queue = np.where(demand > 0, w / (4 * p), 0.0)
        for _ in range(100):
            residence = demand * (1 + queue * (w - 1) / w)
            rate = w / (delay + residence.sum(axis=1, keepdims=True))
            queue = rate * residence
        return np.asarray(rate[:, 0] * BATCH)

    return throughput


def measured_table(seed: int, rows: int, noise: float = 0.05) -> tuple[FloatArray, FloatArray]:
    """Random configurations (rows, 4) of one W1 job and their throughput with log-normal noise."""
    rng = np.random.default_rng(seed + 1_000)
    columns = [
        rng.integers(1, 33, rows),
        rng.integers(1, 13, rows),
        rng.choice([1, 2, 4, 8, 12, 16], rows),
        rng.choice([1, 2, 4, 8], rows),
    ]
    speeds = queueing_network(seed)(*columns)
    return np.stack(columns, axis=1).astype(np.float64), speeds * np.exp(noise * rng.standard_normal(rows))
