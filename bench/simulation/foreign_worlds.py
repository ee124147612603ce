"""Worlds by which nothing of the Brain was chosen (docs/design/0088): slow hosts, users who kill, speeds of another form.

    python -m bench.simulation run --no-gate --world bench.simulation.foreign_worlds:Curves --seeds 4 --keep FILE

They are run with seeds from 3000 on only. Apart from `worlds`, whose digest stands in every kept cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.simulation.port import FloatArray, Hosts, Kill, Mode
from bench.simulation.world import World
from bench.simulation.worlds import W1

_UNGATED = "it is not held against published production"


def _some_slow(world: World, rng: np.random.Generator, nodes: int) -> Hosts:
    """Four hosts of ten are 25 to 60 % slow for two to four hours."""
    begins, lasts = rng.uniform(0, 20_000, nodes), rng.uniform(7200, 14_400, nodes)
    slow, ever = rng.uniform(0.4, 0.75, nodes), rng.random(nodes) < 0.4

    def pace(at_s: float) -> FloatArray:
        return np.where(ever & (begins < at_s) & (at_s < begins + lasts), slow, 1.0)

    return Hosts(np.full(nodes, world.node[0]), np.full(nodes, world.node[1]), pace)


class SlowHosts(W1):
    """W1's jobs on hosts of which some are slow for hours."""

    name, jobs, ungated = "SlowHosts", 30, _UNGATED

    def hosts(self, rng: np.random.Generator, nodes: int) -> Hosts:
        """Some are slow."""
        return _some_slow(self, rng, nodes)


class Kills(W1):
    """W1's jobs in three bursts; users stop a fifth of them, and what takes six times as long as it should."""

    name, jobs, ungated = "Kills", 30, _UNGATED

    def kill(self, rng: np.random.Generator, duration_s: float) -> Kill:
        """At some share of its samples, or when patience ends."""
        if rng.random() < 0.2:
            return Kill(share=float(rng.uniform(0.1, 0.9)))
        return Kill(patience_s=6 * duration_s + 3600)

    def arrivals(self, rng: np.random.Generator, jobs: int) -> FloatArray:
        """Three bursts of a minute."""
        return np.sort(rng.choice([0.0, 4000.0, 9000.0], jobs) + rng.uniform(0, 60, jobs))


@dataclass
class _SoftMinimum:
    """What workers, servers and their network can do, as a soft minimum of power `sharp`; by `back` more workers are slower.

    `k`: samples a second of a worker of one core; `of_cores`: how its speed grows with them; `served`, `carried`: of one server of
    one core, and of the network of one server.
    """

    k: float
    of_cores: float
    served: float
    carried: float
    sharp: float
    back: float
    mode: Mode = "async"
    batch_size: float = 256.0

    def throughput(self, at: FloatArray) -> FloatArray:
        """Samples a second."""
        w, p, lw, lp = at.T
        parts = self.k * w * lw**self.of_cores, self.served * p**0.9 * lp**0.8, self.carried * p
        together = sum(part**-self.sharp for part in parts) ** (-1 / self.sharp)
        return np.asarray(together / (1 + self.back * (w - 1) ** 2))

    def busy_cores(self, at: FloatArray) -> tuple[FloatArray, FloatArray]:
        """As large a share of its cores as of what it can do."""
        w, p, lw, lp = at.T
        speed = self.throughput(at)
        of_workers = speed / (self.k * w * lw**self.of_cores)
        of_servers = speed / (self.served * p**0.9 * lp**0.8)
        return w * lw * np.minimum(of_workers, 1.0), p * lp * np.minimum(of_servers, 1.0)

    def factor(self, at_s: float) -> float:
        """Nothing drifts."""
        return 1.0


class Curves(World):
    """Speeds of another form, half of them with a part that makes more workers slower, four of ten synchronous."""

    name, jobs, ungated = "Curves", 30, _UNGATED

    def truth(self, seed: int) -> _SoftMinimum:
        """A random soft minimum."""
        rng = np.random.default_rng([seed, 5])
        k = float(rng.lognormal(np.log(400), 0.5))
        return _SoftMinimum(
            k,
            of_cores=float(rng.uniform(0.3, 0.95)),
            served=k * float(rng.uniform(1, 4)),
            carried=k * float(rng.uniform(2, 12)),
            sharp=float(rng.uniform(1, 6)),
            back=float(rng.choice([0, 0, 0.0005, 0.002])),
            mode="sync" if rng.random() < 0.4 else "async",
        )


class CurvesOnSlowHosts(Curves):
    """The same on hosts of which some are slow for hours."""

    name = "CurvesOnSlowHosts"

    def hosts(self, rng: np.random.Generator, nodes: int) -> Hosts:
        """Some are slow."""
        return _some_slow(self, rng, nodes)
