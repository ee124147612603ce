"""The Brain in a scheduler that is not ours: a small stand-in for the simulator of Pollux (OSDI 2021), through the library alone.

    python -m bench.foreign [--seeds 1] [--json]

16 nodes of four devices, 160 all-reduce jobs of six families in eight hours, most of them short and a few very long, steps of
60 s, 30 s of standstill at every change. How fast a job really is follows Pollux' own form: compute that is split, a
synchronisation that costs more across nodes, and an overlap of both. The Brain knows nothing of that. Beside it: sizes as users
asked (static, first come first served), the shortest remaining time first, told the truth, and least attained service (Tiresias).
Means over seeds, in seconds. A seed takes some thirty seconds of a core.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from scheduler import BrainScheduler, JobInfo

NODES, DEVICES, TICK_S, RESTART_S = 16, 4, 60.0, 30.0
CLUSTER = {f"n{i:02d}": DEVICES for i in range(NODES)}
JOBS, HOURS = 160, 8
FORMER, FORMER_S = 500, 3 * 3600.0  # the shift before a warm one: another seed, its first hours
# jobs an hour of a day's shift, by its share of the peak
SHAPE = (0.3, 0.6, 1.0, 0.9, 0.7, 0.9, 0.6, 0.4)
Allocation = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Family:
    """How jobs of one program run: Pollux' parameters in seconds, the whole job's batch, hours of one device, share of the jobs."""

    name: str
    batch_size: int
    compute_s: float  # of a batch on one device
    fixed_s: float
    ring_s: float  # of a ring of two on one node, and for each further member
    member_s: float
    across_s: float  # of a ring that crosses nodes
    overlap: float
    hours: tuple[float, float]
    asked: tuple[int, ...]
    share: float

    def throughput(self, replicas: int, nodes: int) -> float:
        """Samples a second."""
        compute = self.fixed_s + self.compute_s / replicas
        ring = 0.0
        if replicas > 1:
            ring = (self.across_s if nodes > 1 else self.ring_s) + self.member_s * (replicas - 2)
        return self.batch_size / float((compute**self.overlap + ring**self.overlap) ** (1 / self.overlap))


FAMILIES = (
    Family("cifar10", 512, 0.40, 0.010, 0.03, 0.001, 0.08, 1.8, (0.1, 1.0), (1, 1, 2, 4), 0.38),
    Family("ncf", 8192, 0.08, 0.004, 0.01, 0.001, 0.05, 1.4, (0.1, 0.6), (1, 1, 2), 0.24),
    Family("bert", 48, 1.60, 0.020, 0.12, 0.006, 0.35, 2.2, (0.6, 4.0), (1, 2, 4, 4), 0.13),
    Family("deepspeech2", 80, 1.10, 0.030, 0.10, 0.004, 0.25, 2.0, (0.6, 5.0), (1, 2, 4), 0.15),
    Family("yolov3", 64, 2.40, 0.040, 0.15, 0.003, 0.30, 2.4, (4.0, 16.0), (2, 4, 8), 0.08),
    Family("imagenet", 512, 5.00, 0.050, 0.20, 0.004, 0.40, 2.6, (20.0, 50.0), (4, 8, 16), 0.02),
)


@dataclass
class SimJob:
    """One job. `held`: devices by node; `frozen_s`: what is left of a restart."""

    name: str
    family: Family
    pace: float
    arrive_s: float
    samples: float
    asked: int
    done: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    frozen_s: float = 0.0
    service: float = 0.0  # device seconds
    restarts: int = 0
    waited_s: float = 0.0  # in ticks in which it held no device
    ended_s: float = 0.0
    trained_s: float = 0.0

    def rate(self, replicas: int = 0, nodes: int = 0) -> float:
        replicas, nodes = replicas or sum(self.held.values()), nodes or len(self.held)
        return self.pace * self.family.throughput(replicas, nodes) if replicas else 0.0


class Scheduler(Protocol):
    """What the simulator asks."""

    def tick(self, now_s: float, jobs: Sequence[SimJob]) -> Allocation: ...


def workload(seed: int) -> list[SimJob]:
    """The jobs of a shift: arrivals by the hour, lengths of a family log-uniform between its bounds."""
    rng = np.random.default_rng(seed)
    hours = rng.choice(HOURS, JOBS, p=np.array(SHAPE) / sum(SHAPE))
    arrivals = np.sort(3600.0 * (hours + rng.random(JOBS)))
    kinds = rng.choice(len(FAMILIES), JOBS, p=np.array([each.share for each in FAMILIES]))
    jobs = []
    for number, (arrive_s, kind) in enumerate(zip(arrivals, kinds, strict=True)):
        family, pace = FAMILIES[kind], float(np.exp(0.05 * rng.standard_normal()))
        device_s = 3600.0 * float(np.exp(rng.uniform(*np.log(family.hours))))
        name = f"{family.name}-{number}"
        samples, asked = device_s * family.throughput(1, 1), int(rng.choice(family.asked))
        jobs.append(SimJob(name, family, pace, float(arrive_s), samples, asked))
    return jobs


def simulate(jobs: list[SimJob], scheduler: Scheduler) -> list[SimJob]:
    """Run until the last job ends."""
    now_s, waiting = 0.0, list(jobs)
    running: list[SimJob] = []
    while waiting or running:
        running += [job for job in waiting if job.arrive_s <= now_s]
        waiting = [job for job in waiting if job.arrive_s > now_s]
        allocation = scheduler.tick(now_s, running)
        check(allocation)
        for job in running:
            now = {node: count for node, count in allocation.get(job.name, {}).items() if count}
            if now != job.held:
                job.restarts += bool(job.service) and bool(now)
                job.held, job.frozen_s = now, RESTART_S if now else 0.0
            advance(job, now_s)
        running = [job for job in running if not job.ended_s]
        now_s += TICK_S
    return jobs


def advance(job: SimJob, now_s: float) -> None:
    """One tick of a job."""
    job.trained_s = max(TICK_S - job.frozen_s, 0.0) if job.held else 0.0
    job.waited_s += 0.0 if job.held else TICK_S
    job.frozen_s = max(job.frozen_s - TICK_S, 0.0)
    job.service += TICK_S * sum(job.held.values())
    rate = job.rate()
    if job.trained_s * rate >= job.samples - job.done and rate:
        job.ended_s = now_s + TICK_S - job.trained_s + (job.samples - job.done) / rate
    job.done += job.trained_s * rate


def check(allocation: Allocation) -> None:
    used: dict[str, int] = {}
    for by_node in allocation.values():
        for node, count in by_node.items():
            used[node] = used.get(node, 0) + count
    over = {node: count for node, count in used.items() if count > CLUSTER[node]}
    if over:
        raise AssertionError(f"more devices than there are: {over}")


# -- rivals ------------------------------------------------------------------------------------------------------------


def pack(count: int, free: dict[str, int]) -> dict[str, int]:
    """Devices on the fewest nodes, the fullest that fit; empty where there are too few. Takes them."""
    if sum(free.values()) < count:
        return {}
    placed: dict[str, int] = {}
    while count:
        enough = [node for node, left in free.items() if left >= count]
        node = min(enough, key=lambda n: free[n]) if enough else max(free, key=lambda n: free[n])
        placed[node] = min(free[node], count)
        free[node] -= placed[node]
        count -= placed[node]
    return placed


class ByOrder:
    """Sizes as asked, to the jobs that come first in an order; a job keeps its devices while it stays among these."""

    def __init__(self, order: Callable[[SimJob], tuple[float, ...]]) -> None:
        self.order = order

    def tick(self, now_s: float, jobs: Sequence[SimJob]) -> Allocation:
        chosen, left = list[SimJob](), NODES * DEVICES
        for job in sorted(jobs, key=self.order):
            if job.asked <= left:
                chosen.append(job)
                left -= job.asked
        free, allocation = dict(CLUSTER), Allocation()
        for job in chosen:
            if job.held:
                allocation[job.name] = job.held
                for node, count in job.held.items():
                    free[node] -= count
        for job in chosen:
            if not job.held and (placed := pack(job.asked, free)):
                allocation[job.name] = placed
        return allocation


def static() -> Scheduler:
    return ByOrder(lambda job: (not job.held, job.arrive_s))


def shortest_first() -> Scheduler:
    return ByOrder(lambda job: ((job.samples - job.done) / job.rate(job.asked, -(-job.asked // DEVICES)),))


def tiresias() -> Scheduler:
    """Two queues by attained service, first come first served in each."""
    return ByOrder(lambda job: (job.service > 3600.0, not job.held, job.arrive_s))


class ByBrain:
    """The example's scheduler."""

    def __init__(
        self, knows_left: bool = True, memory: bytes = b"", fair_share: float = 0.0, seed: int = 0
    ) -> None:
        self.scheduler = BrainScheduler(memory=memory, fair_share=fair_share, restart_s=RESTART_S)
        self.knows_left, self.noise = knows_left, np.random.default_rng(seed + 77)

    def tick(self, now_s: float, jobs: Sequence[SimJob]) -> Allocation:
        infos = [
            JobInfo(
                name=job.name,
                family=job.family.name,
                batch_size=job.family.batch_size,
                most_replicas=NODES * DEVICES,
                seconds=job.trained_s,
                samples_per_s=job.rate()
                * float(np.exp(0.02 * self.noise.standard_normal()))
                * (job.trained_s > 0),
                done=job.done,
                left=job.samples - job.done if self.knows_left else None,
            )
            for job in jobs
        ]
        return self.scheduler.tick(now_s, infos, CLUSTER)


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(jobs: Sequence[SimJob]) -> dict[str, float]:
    """Mean and worst job completion time, restarts a job, and for how long a job held no device in the mean."""
    times = [job.ended_s - job.arrive_s for job in jobs]
    return {
        "mean_jct_s": float(np.mean(times)),
        "p95_jct_s": float(np.quantile(times, 0.95)),
        "worst_jct_s": float(max(times)),
        "restarts": float(np.mean([job.restarts for job in jobs])),
        "waited_s": float(np.mean([job.waited_s for job in jobs])),
    }


def compare(seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """Every scheduler on every seed; means."""
    rows: dict[str, list[dict[str, float]]] = {}

    def run(name: str, seed: int, scheduler: Scheduler) -> None:
        began = time.process_time()
        row = figures(simulate(workload(seed), scheduler))
        rows.setdefault(name, []).append({**row, "cpu_s": time.process_time() - began})

    for seed in seeds:
        run("static as asked", seed, static())
        run("shortest first, told", seed, shortest_first())
        run("least service first", seed, tiresias())
        cold = ByBrain(seed=seed)
        run("Brain, cold", seed, cold)
        former = ByBrain(seed=seed + FORMER)
        simulate([job for job in workload(seed + FORMER) if job.arrive_s < FORMER_S], former)
        run("Brain, warm", seed, ByBrain(memory=former.scheduler.brain.memory(), seed=seed))
        run("Brain, left unknown", seed, ByBrain(knows_left=False, seed=seed))
        run("Brain, fair share", seed, ByBrain(knows_left=False, fair_share=-1.0, seed=seed))
    return {
        name: {key: float(np.mean([row[key] for row in found])) for key in found[0]}
        for name, found in rows.items()
    }


@click.command(help=__doc__)
@click.option("--seeds", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(seeds: int, as_json: bool) -> None:
    table = compare(range(seeds))
    for name, row in table.items():
        print(f"{name:<22}", "  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
    if as_json:
        print(json.dumps(table))


if __name__ == "__main__":
    main()
