"""Optimus as a whole policy: allocation by marginal gain, for users who want it and as the baseline.

Fed by its curve (`fit_curve`) and what is left to do, feeds plans (`brain/marginal.py`); placement is `placement`.
    allocate: every job 1 PS + 1 worker, then greedily the best gain until capacity is used or gains end
    gain = max{ (Q/f(p,w) - Q/f(p,w+1))/O_worker , (Q/f(p,w) - Q/f(p+1,w))/O_ps }   Q steps left, O dominant resource
(`algorithms.md §2` [paper]). Containers have the size that the user gave. The paper allocates anew every ten minutes and starts a
job again for it; here a change must save more than it costs (`is_worth`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec
import numpy as np

from rover_bus.brain.decisions.plans import Allocation, PlanDecision
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.models.forms import OPTIMUS_ASYNC, OPTIMUS_SYNC
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.models.statistics import Line, Statistics, fit_line

# Optimus de-prioritises young jobs, whose curves are uncertain, by this factor.
YOUNG_JOB_FACTOR = 0.95
LEAST_ROWS = 3  # of a fit of its form
LEAST_SHRINK = 1.5  # what gives back less is left
# Steps (or samples) a second with (workers, servers).
Speed = Callable[[int, int], float]


class Capacity(msgspec.Struct, frozen=True):
    """What a cluster has: cores and bytes of memory."""

    cores: float
    memory_bytes: float


class OptimusJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as Optimus sees it: a speed curve, what is left to do, and its container sizes."""

    speed: Speed
    remaining: float  # Q, in the units of the speed
    container: Allocation  # the sizes of one worker and one server; its counts are not looked at
    young: bool = False
    max_workers: int = 64
    max_servers: int = 16


def fit_curve(
    measured: Mapping[tuple[int, int], float], batch_size: float, synchronous: bool = False
) -> Speed:
    """Fit Optimus' form to samples a second by (workers, servers), at least one of them."""
    times = -(-LEAST_ROWS // len(measured))  # a job with fewer counts to choose from repeats them
    counts = np.array(list(measured) * times, dtype=np.float64)
    speeds = np.array(list(measured.values()) * times, dtype=np.float64)
    form = OPTIMUS_SYNC if synchronous else OPTIMUS_ASYNC
    at = Configurations.of(counts[:, 0], counts[:, 1], batch_size=batch_size)
    line = fit_line(Statistics.of(form.design(at), form.seconds(at, speeds)))
    assert isinstance(line, Line)
    known: dict[tuple[int, int], float] = {}

    def speed(workers: int, servers: int) -> float:
        key = (workers, servers)
        if key not in known:
            point = Configurations.of(workers, servers, batch_size=batch_size)
            known[key] = float(form.throughput(point, line.seconds(form.design(point)))[0])
        return known[key]

    return speed


def is_worth(speed: Speed, remaining: float, held: Allocation, wanted: Allocation, change_s: float) -> bool:
    """Whether growth saves more seconds than the change costs, or a shrink gives back a third: the paper changes every round."""
    before, after = speed(held.workers, held.servers), speed(wanted.workers, wanted.servers)
    if wanted.cores < held.cores / LEAST_SHRINK:
        return True
    saved = remaining / before - remaining / after if before < after else 0.0
    return saved > change_s


def allocate(jobs: Sequence[OptimusJob], capacity: Capacity) -> list[PlanDecision]:
    """Allocate workers and servers. A job that even 1 + 1 does not fit gets nothing (`no_capacity`), in the order given."""
    held = [(0, 0)] * len(jobs)
    free = [capacity.cores, capacity.memory_bytes]
    for i, job in enumerate(jobs):
        if _take(free, job, 1, 1):
            held[i] = (1, 1)
    heap = [
        (-gain, i, role)
        for i, job in enumerate(jobs)
        if held[i][0]
        for gain, role in [_best(job, held[i], free, capacity)]
    ]
    heapq.heapify(heap)
    while heap:
        negative, i, role = heapq.heappop(heap)
        if negative >= 0:
            break
        more = (1, 0) if role == "worker" else (0, 1)
        if _take(free, jobs[i], *more):
            held[i] = (held[i][0] + more[0], held[i][1] + more[1])
        gain, role = _best(jobs[i], held[i], free, capacity)
        if gain > 0:
            heapq.heappush(heap, (-gain, i, role))
    return [_decision(job, *counts) for job, counts in zip(jobs, held, strict=True)]


def marginal_gain(job: OptimusJob, workers: int, servers: int, capacity: Capacity) -> tuple[float, str]:
    """Time saved an amount of the dominant resource by one more worker or server, and which of the two."""
    now = job.remaining / job.speed(workers, servers)
    factor = YOUNG_JOB_FACTOR if job.young else 1.0
    more_worker = more_server = float("-inf")
    if workers < job.max_workers:
        more_worker = (now - job.remaining / job.speed(workers + 1, servers)) / _dominant(
            job, "worker", capacity
        )
    if servers < job.max_servers:
        more_server = (now - job.remaining / job.speed(workers, servers + 1)) / _dominant(job, "ps", capacity)
    return factor * max(more_worker, more_server), "worker" if more_worker >= more_server else "ps"


def is_straggler(speed: float, speeds: Sequence[float]) -> bool:
    """Optimus' rule: below half the median speed (`algorithms.md §2` [paper]). With two workers it sees none but a halt."""
    return speed < median(speeds) / 2


def _best(job: OptimusJob, held: tuple[int, int], free: list[float], capacity: Capacity) -> tuple[float, str]:
    """The best gain among what fits; the other role when the better one does not fit."""
    gain, role = marginal_gain(job, *held, capacity)
    if _fits(free, job, *((1, 0) if role == "worker" else (0, 1))):
        return gain, role
    other = "ps" if role == "worker" else "worker"
    if not _fits(free, job, *((1, 0) if other == "worker" else (0, 1))):
        return 0.0, role
    pinned = msgspec.structs.replace(job, **{f"max_{'workers' if role == 'worker' else 'servers'}": 0})
    return marginal_gain(pinned, *held, capacity)[0], other


def _dominant(job: OptimusJob, role: str, capacity: Capacity) -> float:
    """Share of its dominant resource that one member takes of the cluster."""
    c = job.container
    cores, memory = (
        (c.worker_cores, c.worker_memory_bytes)
        if role == "worker"
        else (c.server_cores, c.server_memory_bytes)
    )
    return max(cores / capacity.cores, memory / max(capacity.memory_bytes, 1), 1e-12)


def _need(job: OptimusJob, workers: int, servers: int) -> Allocation:
    return job.container.replace(workers=workers, servers=servers)


def _fits(free: list[float], job: OptimusJob, workers: int, servers: int) -> bool:
    need = _need(job, workers, servers)
    return need.cores <= free[0] + 1e-9 and need.memory_bytes <= free[1]


def _take(free: list[float], job: OptimusJob, workers: int, servers: int) -> bool:
    if not _fits(free, job, workers, servers):
        return False
    need = _need(job, workers, servers)
    free[0] -= need.cores
    free[1] -= need.memory_bytes
    return True


def _decision(job: OptimusJob, workers: int, servers: int) -> PlanDecision:
    reason = Reason.OPTIMUS_MARGINAL_GAIN if workers else Reason.NO_CAPACITY
    speed = job.speed(workers, servers) if workers else 0.0
    return PlanDecision(allocation=_need(job, workers, servers), reason=reason, scores={"speed": speed})
