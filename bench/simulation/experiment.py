"""Which cells are run: worlds, loads, policies, seeds; paired statistics over them.

Fed by the command line, feeds the report. All policies of one (world, load, seed) run in one process, one after another, on
the same workload object.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bench.simulation.cluster import Cluster
from bench.simulation.generator import Arrivals, generate
from bench.simulation.policies.elastic import ElasticScheduler, PublicRules
from bench.simulation.policies.live import LiveBrain
from bench.simulation.policies.on_the_bus import OnTheBus
from bench.simulation.policies.optimus import Optimus
from bench.simulation.policies.oracle import Knowing, clairvoyant_bound
from bench.simulation.policies.staged import Staged
from bench.simulation.policies.static import NoIntervention, StaticUser, TunedStatic
from bench.simulation.port import FloatArray, Policy, Setting, World
from bench.simulation.weather import CALM, Weather
from bench.simulation.worlds import WORLDS

Figures = dict[str, float]
DEVELOPMENT_SEEDS, TEST_SEEDS = range(20), range(1000, 1020)
OURS, BOUND = "{1+2+3}", "clairvoyant bound"


def _stages(*stages: int) -> Callable[[Setting], Policy]:
    return lambda setting: Staged(setting, frozenset(stages))


POLICIES: dict[str, Callable[[Setting], Policy]] = {
    "static user": StaticUser,
    "no intervention": NoIntervention,
    "well-tuned static": TunedStatic,
    "Optimus, user containers": Optimus,
    "Optimus, tuned containers": lambda setting: Optimus(setting, tuned=True),
    "Optimus, user containers, our mechanisms": lambda setting: Optimus(setting, elastic=True),
    "Optimus, tuned containers, our mechanisms": lambda setting: Optimus(setting, tuned=True, elastic=True),
    "elastic scheduler": ElasticScheduler,
    "public Brain's rules": PublicRules,
    "{1}": _stages(1),
    "{2}": _stages(2),
    "{3}": _stages(3),
    "{1+2}": _stages(1, 2),
    "{1+2+3}": _stages(1, 2, 3),
    "{1+2+3}, over the bus": lambda setting: OnTheBus(setting, _stages(1, 2, 3)),
    "live Brain": LiveBrain,
    "live Brain, over the bus": lambda setting: OnTheBus(setting, LiveBrain),
    "perfect samples": lambda setting: Knowing(setting, free=False, fitted=True),
    "oracle, our mechanisms": lambda setting: Knowing(setting, free=False),
    "oracle": Knowing,
}


def load_class(name: str) -> Callable[..., Any]:
    """`MODULE:CLASS`, or the name of a built-in world or policy."""
    if name in WORLDS:
        return WORLDS[name]
    if name in POLICIES:
        return POLICIES[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} is neither built in nor MODULE:CLASS")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def run_cell(
    world: World,
    load: float,
    seed: int,
    policies: Sequence[str],
    calm: bool = False,
    restart_s: float = 660.0,
    arrivals: Arrivals = "uniform",
) -> dict[str, Figures]:
    """Figures of every policy on one workload; the bound stands among them."""
    workload = generate(world, seed, load, arrivals=arrivals)
    weather = CALM if calm else Weather()
    cell: dict[str, Figures] = {}
    for name in policies:
        policy = load_class(name)(Setting(world.menu, seed, restart_s))
        start = time.perf_counter()
        result = Cluster(workload, policy, weather, drift=not calm).run()
        result.wall_s = time.perf_counter() - start
        cell[name] = result.figures()
    cell[BOUND] = {"jct_mean_s": clairvoyant_bound(workload, world.menu)}
    return cell


def bootstrap(values: Sequence[float], draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Mean and 95 % interval over seeds by resampling them."""
    x = np.asarray(values, dtype=np.float64)
    x = x[np.isfinite(x)]
    if not len(x):
        return (float("nan"),) * 3
    rng = np.random.default_rng(seed)
    means = x[rng.integers(len(x), size=(draws, len(x)))].mean(axis=1)
    return float(x.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def change_of(
    ours: Sequence[float], theirs: Sequence[float], draws: int = 2000
) -> tuple[float, float, float]:
    """Ratio of means less 1, and its 95 % interval over paired seeds: below 0 ours is smaller."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    pick = np.random.default_rng(0).integers(len(a), size=(draws, len(a)))
    ratios: FloatArray = a[pick].mean(axis=1) / b[pick].mean(axis=1) - 1
    return (
        float(a.mean() / b.mean() - 1),
        float(np.quantile(ratios, 0.025)),
        float(np.quantile(ratios, 0.975)),
    )


def column(cells: Iterable[dict[str, Figures]], policy: str, figure: str) -> list[float]:
    """One figure of one policy over the seeds."""
    return [cell[policy][figure] for cell in cells]
