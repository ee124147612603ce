"""What warm spares and first-server starts gain: a row with our mechanisms against itself without them, on the same seeds.

    python -m bench.simulation.quick_starts --world W1 --seeds 2000 2001 --policy "{1+2+3}"

Fed by the same workloads, weather and policies as every row; only what a start costs is another (docs/design/0042, 0046). Apart
from `runtime`, so that rows that were kept stay what they are. A worker on a host that runs workers of its job finds a spare there,
two at most until others are ready, whatever room was free before: an upper bound. Each group of servers that arrives stops the job
as any change of servers does, though slots move while it trains: a lower one.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from bench.simulation.cluster import Cluster
from bench.simulation.experiment import POLICIES, load_class, load_world
from bench.simulation.generator import Workload, generate
from bench.simulation.jobs import Job
from bench.simulation.nodes import Machines
from bench.simulation.port import FloatArray, Mechanisms, Policy, Size
from bench.simulation.runtime import NOWHERE, Runtime
from bench.simulation.weather import Weather

WARM_S = 2.0  # from its plan to a spare's first commit (docs/figures.md: 1.1 to 1.8)
SPARES = 2  # of a job on a host
TOGETHER_S = 10.0  # members that are ready within this time join together
WAYS = {"": (False, False), "spares": (True, False), "first server": (False, True), "both": (True, True)}


class QuickRuntime(Runtime):
    """Our mechanisms with warm spares, with first-server starts, or with both."""

    def __init__(
        self, how: Mechanisms, machines: Machines, weather: Weather, *, spares: bool, first: bool
    ) -> None:
        super().__init__(how, machines, weather)
        self.spares, self.first = spares, first
        self.warm = 0  # of the workers that start next
        self.used: dict[tuple[str, int], list[float]] = defaultdict(list)  # when others are ready instead
        self.weather = _Starts(weather, self)

    def start(self, job: Job, size: Size) -> None:
        if not self.first or not self.how.elastic or self.how.free:
            super().start(job, size)
            return
        job.changed_at = self.now
        workers = np.sort(self.weather.start_s(job.rng, size.workers))
        servers = np.sort(self.weather.start_s(job.rng, size.servers))
        first = max(float(workers[0]), float(servers[_needed(job, size) - 1]))
        times = [first, *sorted(at for at in (*workers.tolist(), *servers.tolist()) if at > first)]
        there = [
            (at, _ready(size, workers, servers, at))
            for at, after in zip(times, [*times[1:], math.inf], strict=True)
            if after > at + TOGETHER_S
        ]
        job.live, job.state, job.until = _ready(size, workers, servers, first), "starting", self.now + first
        job.joins = [(self.now + at, live) for at, live in there if live != job.live]
        self._crew(job, job.live.workers)

    def _bring_in(self, job: Job, size: Size, moved: bool, stays_on: Mapping[int, int] = NOWHERE) -> None:
        staying = job.staying(self.machines.where[job.case.name])
        self.warm = 0 if moved else self._take(job, size.workers - staying)
        super()._bring_in(job, size, moved, stays_on)
        self.warm = 0

    def replace(self, job: Job, hosts: Mapping[int, int]) -> None:
        self.warm = self._take(job, len(hosts))
        super().replace(job, hosts)
        self.warm = 0

    def lose(self, job: Job, workers: int, servers: int, wanted: Size | None) -> None:
        self.warm = 0 if servers else self._take(job, workers)
        super().lose(job, workers, servers, wanted)
        self.warm = 0

    def _take(self, job: Job, wanted: int) -> int:
        """Return how many of the workers that a job starts now are what spares become."""
        if not self.spares or not self.how.elastic or self.how.free:
            return 0
        taken = 0
        for node, workers in Counter(job.on).items():
            used = self.used[job.case.name, node] = [
                at for at in self.used[job.case.name, node] if at > self.now
            ]
            for _ in range(SPARES - len(used) if workers else 0):
                if taken < wanted:
                    taken += 1
                    used.append(self.now + self.weather.initialisation_s[1])
        return taken


class _Starts(Weather):
    """The weather, in which workers that are spares start at once. As much chance is drawn as without."""

    def __init__(self, weather: Weather, runtime: QuickRuntime) -> None:
        super().__init__(**{name: getattr(weather, name) for name in weather.__dataclass_fields__})
        object.__setattr__(self, "runtime", runtime)

    def start_s(self, rng: np.random.Generator, pods: int) -> FloatArray:
        starts = super().start_s(rng, pods)
        runtime: QuickRuntime = self.__dict__["runtime"]
        warm, runtime.warm = min(runtime.warm, pods), 0
        starts[:warm] = WARM_S
        return starts


def _needed(job: Job, size: Size) -> int:
    """The fewest servers that the tables fit, as the first servers weigh them."""
    fit = (
        count
        for count in range(1, size.servers)
        if job.case.server_need_gib(count, job.share) <= size.server_gib
    )
    return next(fit, size.servers)


def _ready(size: Size, workers: FloatArray, servers: FloatArray, at: float) -> Size:
    """What is there a moment after some time."""
    here = [int(np.searchsorted(each, at + TOGETHER_S, side="right")) for each in (workers, servers)]
    return size._replace(workers=max(here[0], 1), servers=max(here[1], 1))


def run(workload: Workload, policy: Policy, spares: bool, first: bool) -> dict[str, float]:
    """Figures of one policy on one workload, with these mechanisms."""
    cluster = Cluster(workload, policy)
    if spares or first:
        cluster.runtime = QuickRuntime(
            policy.mechanisms, cluster.machines, cluster.weather, spares=spares, first=first
        )
    return cluster.run().figures()


def compare(world: str, seeds: Sequence[int], policy: str, ways: Sequence[str]) -> list[str]:
    """Return a line a way: mean completion times over the seeds, and what the way gains over the row without it."""
    made = load_world(world)
    found: dict[str, list[float]] = {way: [] for way in ("", *ways)}
    for seed in seeds:
        workload = generate(made, seed, 1.0)
        for way, times in found.items():
            spares, first = WAYS[way]
            figures = run(workload, load_class(policy)(made.setting(seed)), spares, first)
            times.append(figures["jct_mean_s"])
    base = float(np.mean(found[""]))
    return [
        f"{world} {policy}{f', {way}' if way else ''}: mean JCT {np.mean(times):,.0f} s"
        + (f" ({np.mean(times) / base - 1:+.1%} of its own row)" if way else "")
        for way, times in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.simulation.quick_starts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--world", default="W1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2000])
    parser.add_argument("--policy", default="{1+2+3}", choices=[*POLICIES])
    parser.add_argument("--ways", nargs="+", default=[way for way in WAYS if way], choices=[*WAYS])
    options = parser.parse_args()
    for line in compare(options.world, options.seeds, options.policy, options.ways):
        print(line)


if __name__ == "__main__":
    main()
