"""A world of one's own in some 60 lines: `python -m bench.simulation run --world bench.simulation.example_world:Rough --seeds 2`.

A small cluster whose hosts are 25 to 60 % slow for hours, that gets its jobs in three bursts, and whose users lose patience.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.simulation.memory_laws import Steps
from bench.simulation.port import FloatArray, Hosts, Kill, Mode, TableLaw
from bench.simulation.weather import Weather
from bench.simulation.world import World


@dataclass
class Retrograde:
    """Gunther's law: beyond some number of workers each further one makes the job slower."""

    slope: float
    back: float
    mode: Mode = "async"
    batch_size: float = 256.0

    def throughput(self, at: FloatArray) -> FloatArray:
        w, p, lw, lp = at.T
        return np.asarray(500 * w * lw**0.6 / (1 + self.slope * (w - 1) / (p * lp) + self.back * w * (w - 1)))

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        w, p, lw, lp = at.T
        return np.asarray(0.7 * w * lw), np.asarray(0.5 * p * lp)

    def factor(self, at_s: float) -> float:
        return 0.8 if 6000 < at_s < 9000 else 1.0  # the network is busy for 50 minutes, for all jobs


class Rough(World):
    name, jobs, nodes, node = "Rough", 20, 16, (32.0, 256.0)
    weather = Weather(straggler=0.3 / 3600, worker_spread=0.1)
    ungated = "its users and hosts are not those of the published clusters"

    def truth(self, seed: int) -> Retrograde:
        rng = np.random.default_rng(seed)
        return Retrograde(rng.uniform(0.2, 2.0), rng.uniform(0.001, 0.01))

    def hosts(self, rng: np.random.Generator, nodes: int) -> Hosts:
        begins, lasts = rng.uniform(0, 20_000, nodes), rng.uniform(7200, 14_400, nodes)
        slow = rng.uniform(0.4, 0.75, nodes)
        ever = rng.random(nodes) < 0.4

        def pace(at_s: float) -> FloatArray:
            return np.where(ever & (begins < at_s) & (at_s < begins + lasts), slow, 1.0)

        return Hosts(np.full(nodes, self.node[0]), np.full(nodes, self.node[1]), pace)

    def arrivals(self, rng: np.random.Generator, jobs: int) -> FloatArray:
        return np.sort(rng.choice([0.0, 4000.0, 9000.0], jobs) + rng.uniform(0, 60, jobs))

    def law(self, rng: np.random.Generator) -> TableLaw:
        return Steps((0.3, 0.6), jumps=0.9)

    def kill(self, rng: np.random.Generator, duration_s: float) -> Kill:
        return Kill(share=0.5) if rng.random() < 0.1 else Kill(patience_s=20 * duration_s + 3600)
