"""Jobs as a production cluster submits them: log-normal durations, recurring families, users who ask for too much or too little.

Fed by a world and a seed, feeds the engine. Its constants are fitted once so that the policy "static user" reproduces the
published use of CPU
and memory and the published completion rates (`gate`); nothing else may run before that holds.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bench.simulation.port import Case, FloatArray, Hosts, Menu, Needs, Size, TableLaw, Truth
from bench.simulation.weather import Weather
from bench.simulation.world import Habits, World

HORIZON_S = 12_000.0
PRICE_CORE, PRICE_GIB = 1.0, 0.1
_MEDIAN_S, _LN_SD = 1500.0, 1.5
_SHORTEST_S, _LONGEST_S = 240.0, 14_400.0
_RECURRING, _FAMILIES = 0.65, 7
_TOO_LITTLE_CPU = 0.25
_USUAL_SHARE = 0.6  # users have in mind the cheapest plan that reaches this share of the best throughput
_DRIFT = 0.05
_MOST_SURFACES = 128
_MOST_OF_A_NODE = 0.75
Arrivals = Literal["uniform", "poisson", "bursty"]


@dataclass(frozen=True)
class Workload:
    """The jobs of one seed, each job's reference plan, the hosts that make the load what was asked for, and the weather."""

    seed: int
    load: float
    cases: tuple[Case, ...]
    references: dict[str, Size]
    hosts: Hosts
    habits: Habits
    weather: Weather

    @property
    def cores(self) -> float:
        """Capacity."""
        return float(self.hosts.cores.sum())

    @property
    def gib(self) -> float:
        """Memory of all hosts."""
        return float(self.hosts.gib.sum())


def plan_cost(at: FloatArray, case: Case) -> FloatArray:
    """Price of plans (n, 4): cores, and the memory that their members really need."""
    w, p, lw, lp = at.T
    gib = w * case.worker_gib + p * case.server_gib + case.tables_gib
    return np.asarray(PRICE_CORE * (w * lw + p * lp) + PRICE_GIB * gib)


def reference_plan(case: Case, menu: Menu, within: float = 0.9) -> tuple[Size, float]:
    """The cheapest plan that reaches this share of the best, and its throughput.

    At 0.9 it defines the load, and is what "well-tuned" means.
    """
    at = menu.grid(case.max_workers, case.max_servers)
    speed = case.read(at, _surface(case, menu, at))
    near = np.flatnonzero(speed >= within * speed.max())
    best = near[np.argmin(plan_cost(at[near], case))]
    return tuned_size(case, at[best]), float(speed[best])


# A truth's throughput over its whole plan space, for the runs of a family: (truth, what it answered) by what was asked.
_surfaces: OrderedDict[object, tuple[Truth, FloatArray]] = OrderedDict()


def _surface(case: Case, menu: Menu, at: FloatArray) -> FloatArray:
    key = (id(case.truth), menu, case.max_workers, case.max_servers)
    if key not in _surfaces:
        _surfaces[key] = (case.truth, case.truth.throughput(at))
        if len(_surfaces) > _MOST_SURFACES:
            _surfaces.popitem(last=False)
    return _surfaces[key][1]


def tuned_size(case: Case, row: FloatArray, margin: float = 1.15) -> Size:
    """A plan with memory limits that hold to the end of the job, by a margin."""
    w, p = int(row[0]), int(row[1])
    worker, server = case.worker_gib * margin, case.server_need_gib(p) * margin
    return Size(w, p, float(row[2]), float(row[3]), worker, server)


def generate(
    world: World, seed: int, load: float = 1.0, jobs: int | None = None, arrivals: Arrivals = "uniform"
) -> Workload:
    """Draw one workload. The same seed gives the same jobs in every world of the same menu, and for every policy."""
    rng = np.random.default_rng([seed, 5])
    jobs = world.jobs if jobs is None else jobs
    families = [_Family.draw(rng, world, seed * 1000 + i, f"family-{i}") for i in range(_FAMILIES)]
    at = world.arrivals(np.random.default_rng([seed, 6]), jobs)
    at = _arrivals(rng, jobs, arrivals) if at is None else at
    cases: list[Case] = []
    references: dict[str, Size] = {}
    core_seconds = 0.0
    runs: dict[str, int] = {}
    for i in range(jobs):
        if rng.random() < _RECURRING:
            family = families[int(rng.integers(_FAMILIES))]
        else:
            family = _Family.draw(rng, world, seed * 1000 + 100 + i, f"single-{i}")
        runs[family.name] = runs.get(family.name, 0) + 1
        case, reference, duration = family.run(rng, world, f"job-{i:03d}", float(at[i]))
        cases.append(case)
        references[case.name] = reference
        core_seconds += reference.cores * duration
    nodes = world.nodes or _nodes(world, core_seconds / (load * HORIZON_S), cases, references)
    hosts = world.hosts(np.random.default_rng([seed, 7]), nodes)
    return Workload(seed, load, tuple(cases), references, hosts, world.habits, world.weather)


def _nodes(world: World, cores: float, cases: list[Case], references: dict[str, Size]) -> int:
    """As many as have these cores. Whatever the load, the largest wish must fit the cluster."""
    largest = max(max(case.asked.cores for case in cases), max(r.cores for r in references.values()))
    return max(int(np.ceil(cores / world.node[0])), int(np.ceil(1.15 * largest / world.node[0])) + 1)


@dataclass
class _Family:
    """What recurs: a truth, a user, a size of data, tables, and a habit of asking."""

    name: str
    seed: int
    truth: Truth
    max_workers: int
    duration_s: float
    worker_gib: float
    server_gib: float
    tables_gib: float
    law: TableLaw
    habit: FloatArray
    input_per_s: float = math.inf
    speed: float = 1.0

    @classmethod
    def draw(cls, rng: np.random.Generator, world: World, seed: int, name: str) -> _Family:
        """A family out of nothing."""
        most = [w for w in world.menu.workers if w >= 4] or list(world.menu.workers)
        weights = np.array([1.0 / w**0.35 for w in most])
        max_workers = int(rng.choice(most, p=weights / weights.sum()))
        duration = float(np.clip(_MEDIAN_S * np.exp(_LN_SD * rng.standard_normal()), _SHORTEST_S, _LONGEST_S))
        worker, server = (
            float(np.clip(rng.lognormal(np.log(2), 0.4), 1, 6)),
            float(rng.lognormal(np.log(1.5), 0.3)),
        )
        tables = float(np.clip(rng.lognormal(np.log(12), 0.8), 2, 100))
        needs = world.memory(np.random.default_rng([seed, 11]), Needs(worker, server, tables))
        law = world.law(np.random.default_rng([seed, 8]))
        truth = world.truth(seed)
        family = cls(name, seed, truth, max_workers, duration, *needs, law, rng.random(8))
        usual, speed = reference_plan(family._draft(world, name, 0.0), world.menu, _USUAL_SHARE)
        family.input_per_s = world.input_per_s(np.random.default_rng([seed, 9]), speed / usual.workers)
        return family

    def run(
        self, rng: np.random.Generator, world: World, name: str, arrive_s: float
    ) -> tuple[Case, Size, float]:
        """One run: everything drifts by 5 %. Returns the case, its reference plan and how long that takes."""
        self.speed *= float(np.exp(_DRIFT * rng.standard_normal()))
        self.tables_gib *= float(np.exp(_DRIFT * rng.standard_normal()))
        duration = self.duration_s * float(np.exp(_DRIFT * rng.standard_normal()))
        draft = self._draft(world, name, arrive_s)
        reference, throughput = reference_plan(draft, world.menu)
        # What users have in mind is what they need to be served well, not the last tenth of throughput.
        usual, _ = reference_plan(draft, world.menu, _USUAL_SHARE)
        case = replace(
            draft,
            samples=throughput * duration,
            asked=self._ask(draft, usual, world),
            kill=world.kill(np.random.default_rng([self.seed, 10, int(arrive_s)]), duration),
        )
        return case, reference, duration

    def _draft(self, world: World, name: str, arrive_s: float) -> Case:
        """A run of the family now, before its length and its user's wishes are known."""
        most = max(2, self.max_workers // 3)
        return Case(
            name=name,
            family=self.name,
            user=f"user-{self.seed % 11}",
            arrive_s=arrive_s,
            samples=0.0,
            max_workers=self.max_workers,
            max_servers=max((p for p in world.menu.servers if p <= most), default=min(world.menu.servers)),
            asked=Size(1, 1, 1, 1, 1, 1),
            mode=self.truth.mode,
            batch_size=self.truth.batch_size,
            large=self.max_workers >= 12,
            truth=self.truth,
            seed=self.seed,
            speed=self.speed,
            worker_gib=self.worker_gib,
            server_gib=self.server_gib,
            tables_gib=self.tables_gib,
            law=self.law,
            input_per_s=self.input_per_s,
        )

    def _ask(self, case: Case, reference: Size, world: World) -> Size:
        """What the user asks for: about the right counts, twice the cores or (one in four) too few, 4.5 times the memory."""
        menu = world.menu
        few, count_w, count_p, worker_over, server_over, short, how_short, over = self.habit
        workers = _nearest(menu.workers, reference.workers * 2 ** (count_w - 0.5), case.max_workers)
        servers = _nearest(menu.servers, reference.servers * 2 ** (count_p - 0.5), case.max_servers)
        habits = world.habits
        enough = few >= _TOO_LITTLE_CPU
        worker_factor = habits.worker_cores * 2 ** (worker_over - 0.5) if enough else 0.35
        server_factor = habits.server_cores * 2 ** (server_over - 0.5) if enough else 0.35
        most = _MOST_OF_A_NODE * world.node[0]  # no user asks for a member that no node could hold
        worker_cores = _cores(reference.worker_cores * worker_factor, min(menu.worker_cores), most)
        server_cores = _cores(reference.server_cores * server_factor, min(menu.server_cores), most)
        memory = 2 ** (over - 0.5)
        is_short = short < (habits.short_large if case.large else habits.short_small)
        server_memory = 0.5 + 0.45 * how_short if is_short else memory * habits.server_memory
        return Size(
            workers,
            servers,
            worker_cores,
            server_cores,
            case.worker_gib * memory * habits.worker_memory,
            min(case.server_need_gib(servers) * server_memory, world.node[1] * 0.9),
        )


def _cores(cores: float, least: float, most: float) -> float:
    """Whole cores, or halves where jobs are that small."""
    return float(np.clip(round(cores) if cores >= 1 else 0.5, least, most))


def _nearest(axis: tuple[int, ...], value: float, most: int) -> int:
    return min((v for v in axis if v <= most), key=lambda v: abs(np.log(v / value)))


def _arrivals(rng: np.random.Generator, jobs: int, kind: Arrivals) -> FloatArray:
    """Seconds of arrival, ascending: uniform over the horizon, Poisson, or bursty (CV of the gaps 15)."""
    if kind == "uniform":
        return np.sort(rng.uniform(0, HORIZON_S, jobs))
    if kind == "poisson":
        gaps = rng.exponential(1.0, jobs)
    else:
        # Gamma gaps: CV = 1 / sqrt(shape).
        gaps = rng.gamma(1 / 15**2, 15**2, jobs)
    at = np.cumsum(gaps)
    return np.asarray(at / at[-1] * HORIZON_S * 0.999)
