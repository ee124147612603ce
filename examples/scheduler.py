"""A scheduler of one's own around the Brain, without a bus: called at each tick, it returns job -> replicas by node.

`nodes`: devices by node. `jobs`: all that wait or run, with what each did since the last tick. `python -m bench.foreign` drives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rover_bus.brain.v1 import Brain, ClusterHost, Measurement, TrainingJob


class JobInfo(NamedTuple):
    """What a scheduler knows of a job. `seconds` of training at `samples_per_s` since the last tick; `left`: None is not known."""

    name: str
    family: str
    batch_size: int
    most_replicas: int
    seconds: float
    samples_per_s: float
    done: float
    left: float | None


class BrainScheduler:
    """Allocations by the Brain. `memory`: of a former scheduler's (`brain.memory()`)."""

    def __init__(self, *, memory: bytes = b"", fair_share: float = 0.0, restart_s: float = 30.0) -> None:
        self.brain = Brain(memory=memory, fair_share=fair_share)
        self.restart_s = restart_s

    def tick(
        self, now_s: float, jobs: Sequence[JobInfo], nodes: Mapping[str, int]
    ) -> dict[str, dict[str, int]]:
        """Tell what happened since the last tick, and return what each job shall hold."""
        brain, present = self.brain, {job.name for job in jobs}
        # A list, not a difference of sets: their order is another one in each process.
        gone = [name for name in brain.placements if name not in present]
        for name in gone:
            brain.end(name, now_s)
        brain.set_hosts({node: ClusterHost(cores=devices) for node, devices in nodes.items()}, now_s)
        for job in jobs:
            if job.name not in brain.placements:
                wanted = TrainingJob(name=job.name, family=job.family, batch_size=job.batch_size)
                brain.submit(wanted.replace(max_workers=job.most_replicas, change_s=self.restart_s), now_s)
            elif job.samples_per_s > 0:
                ran = Measurement(job=job.name, seconds=job.seconds, samples_per_s=job.samples_per_s)
                brain.observe(ran.replace(samples_done=job.done, samples_left=job.left), now_s)
        brain.decide(now_s)
        return {name: placed.workers_by_host for name, placed in brain.placements.items()}
