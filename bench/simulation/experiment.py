"""Which cells are run: worlds, loads, policies, seeds; paired statistics over them.

Fed by the command line, feeds the report. All policies of one (world, load, seed) run in one process, one after another, on
the same workload object.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.simulation.cluster import Cluster
from bench.simulation.generator import Arrivals, Workload, generate
from bench.simulation.policies.elastic import ElasticScheduler, PublicRules
from bench.simulation.policies.equipped import Equipped
from bench.simulation.policies.live import LiveBrain
from bench.simulation.policies.on_the_bus import OnTheBus
from bench.simulation.policies.optimus import Optimus
from bench.simulation.policies.oracle import Knowing, clairvoyant_bound
from bench.simulation.policies.static import NoIntervention, StaticUser, TunedStatic
from bench.simulation.port import FloatArray, Policy, Setting
from bench.simulation.world import World
from bench.simulation.worlds import WORLDS

Figures = dict[str, float]
DEVELOPMENT_SEEDS, FRAME_SEEDS, TEST_SEEDS = range(20), range(2000, 2020), range(3000, 3020)
OURS, BOUND = "{1+2+3}", "clairvoyant bound"


Factory = Callable[[Setting], Policy]


def _stages(*stages: int) -> Factory:
    return partial(LiveBrain, stages=frozenset(stages))


POLICIES: dict[str, Factory] = {
    "static user": StaticUser,
    "no intervention": NoIntervention,
    "well-tuned static": TunedStatic,
    "well-tuned static at 0.8": partial(TunedStatic, within=0.8),
    "well-tuned static at 0.7": partial(TunedStatic, within=0.7),
    "Optimus, user containers": Optimus,
    "Optimus, tuned containers": partial(Optimus, tuned=True),
    "elastic scheduler": ElasticScheduler,
    "well-tuned static, our mechanisms": partial(Equipped, rival=TunedStatic),
    "well-tuned static at 0.8, our mechanisms": partial(Equipped, rival=partial(TunedStatic, within=0.8)),
    "well-tuned static at 0.7, our mechanisms": partial(Equipped, rival=partial(TunedStatic, within=0.7)),
    "Optimus, user containers, our mechanisms": partial(Equipped, rival=partial(Optimus, elastic=True)),
    "Optimus, tuned containers, our mechanisms": partial(
        Equipped, rival=partial(Optimus, tuned=True, elastic=True)
    ),
    "elastic scheduler, our mechanisms": partial(Equipped, rival=partial(ElasticScheduler, elastic=True)),
    "public Brain's rules": PublicRules,
    "{1}": _stages(1),
    "{2}": _stages(2),
    "{3}": _stages(3),
    "{1+2}": _stages(1, 2),
    "{1+2+3}": LiveBrain,
    "{1+2+3}, over the bus": partial(OnTheBus, make=LiveBrain),
    "perfect samples": partial(Knowing, free=False, fitted=True),
    "oracle, our mechanisms": partial(Knowing, free=False),
    "oracle": Knowing,
}


def parts_of(make: Factory) -> list[tuple[str, str]]:
    """What a policy is made of: module and name of each class, and what each is given."""
    if not isinstance(make, partial):
        return [(make.__module__, getattr(make, "__name__", ""))]
    given = {name: value for name, value in make.keywords.items() if not callable(value)}
    inner = [part for value in make.keywords.values() if callable(value) for part in parts_of(value)]
    module, name = parts_of(make.func)[0]
    return [(module, f"{name} {sorted(given.items())}"), *inner]


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


def load_world(name: str) -> World:
    """A built-in world, or MODULE:CLASS made without arguments. Raises TypeError where that is no `World`."""
    world = load_class(name)()
    if not isinstance(world, World):
        raise TypeError(
            f"{name} is no world: let it inherit bench.simulation.world.World, which has a default for each part"
        )
    return world


def run_cell(
    world: World,
    load: float,
    seed: int,
    policies: Sequence[str],
    calm: bool = False,
    restart_s: float = 660.0,
    arrivals: Arrivals = "uniform",
) -> dict[str, Figures]:
    """Figures of every policy on one workload; the bound may stand among them."""
    workload = _workload(world, seed, load, arrivals)
    weather = world.weather.calm() if calm else world.weather
    cell: dict[str, Figures] = {}
    for name in policies:
        if name == BOUND:
            cell[name] = {"jct_mean_s": clairvoyant_bound(workload, world.menu)}
            continue
        policy = load_class(name)(world.setting(seed, restart_s))
        start = time.process_time()
        result = Cluster(workload, policy, weather, drift=not calm).run()
        result.cpu_s = time.process_time() - start
        cell[name] = result.figures()
    return cell


def _workload(world: World, seed: int, load: float, arrivals: Arrivals) -> Workload:
    """The workload that all policies of a seed share; a process remembers its last one."""
    key = (type(world), seed, load, arrivals)
    if key not in _last:
        _last.clear()
        _last[key] = generate(world, seed, load, arrivals=arrivals)
    return _last[key]


_last: dict[object, Workload] = {}


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
