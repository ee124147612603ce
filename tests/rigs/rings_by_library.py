"""Rings on a cluster of a few hosts, sized by the Brain as a library: what its tests share."""

from __future__ import annotations

from rover_bus.brain.v1 import Brain, ClusterHost, JobPlacement, Measurement, TrainingJob

BATCH = 128.0


def devices(hosts: int = 4, each: int = 4) -> dict[str, ClusterHost]:
    return {f"h{i}": ClusterHost(cores=each) for i in range(hosts)}


def ring(name: str, family: str = "f", **more: object) -> TrainingJob:
    return TrainingJob(name=name, family=family, batch_size=int(BATCH), max_workers=16, **more)


def speed(placed: JobPlacement) -> float:
    """Samples a second of a ring: compute that is split, a part for there being one, another where it crosses hosts."""
    w, hosts = len(placed.worker_hosts), len(set(placed.worker_hosts))
    return BATCH / (0.2 / w + 0.01 * (w > 1) + 0.01 * (hosts > 1)) if w else 0.0


def run(brain: Brain, ticks: int, now_s: float = 0.0, left: float | None = None) -> float:
    """Let jobs run for so many ticks of a minute, each change half a minute of standstill."""
    for _ in range(ticks):
        now_s += 60.0
        for name, placed in brain.placements.items():
            if placed.worker_hosts:
                sample = Measurement(
                    job=name, seconds=30.0, samples_per_s=speed(placed), samples_done=1e9, samples_left=left
                )
                brain.observe(sample, now_s)
        brain.decide(now_s)
    return now_s


def started(*jobs: TrainingJob, hosts: int = 4, **more: object) -> Brain:
    brain = Brain(**more)  # type: ignore[arg-type]
    brain.set_hosts(devices(hosts), 0.0)
    for job in jobs:
        brain.submit(job, 0.0)
    brain.decide(0.0)
    return brain
