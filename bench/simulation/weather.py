"""What goes wrong in a cluster and how long pods take to start: `algorithms.md §6` and `§8`, the same for every policy.

Feeds the engine (`cluster`, `runtime`) and the telemetry. Apart because it is the only page that a reader must check against
published figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bench.simulation.port import FloatArray

WINDOW_S = 30.0


@dataclass(frozen=True)
class Weather:
    """What goes wrong, and how often; a second of a member's life. `CALM` has none of it.

    Failures: e^(-0.00264 n) of jobs of n members survive where a lost member ends a job (`algorithms.md §6` [fitted]; the
    0.930 before it is memory).
    `failure` is that over a mean life of 4,800 s, times what a simulated member stands for (`generator.Habits`).
    Straggling: a slow worker in some ten worker-hours, hot servers likewise. A pod starts within 0 / 1 / 55 / 104 / 523 s at
    p50/75/90/95/99, and initialises for 60 to 300 s.
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
    start_shares: tuple[float, ...] = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
    start_seconds: tuple[float, ...] = (0.0, 0.0, 1.0, 55.0, 104.0, 523.0, 700.0)
    initialisation_s: tuple[float, float] = (60.0, 300.0)

    def start_s(self, rng: np.random.Generator, pods: int) -> FloatArray:
        """Seconds until pods run (n,): the quantiles of a pod's start, and its initialisation."""
        starts = np.interp(rng.random(pods), self.start_shares, self.start_seconds)
        return np.asarray(starts + rng.uniform(*self.initialisation_s, pods))

    def calm(self) -> Weather:
        """The same without anything that goes wrong; pods start as they do."""
        return replace(self, failure=0.0, straggler=0.0, hot_server=0.0, worker_spread=0.0)


CALM = Weather().calm()
