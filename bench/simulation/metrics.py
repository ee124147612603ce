"""What a run is judged by: per job what it took and used, per run the figures of `algorithms.md §8`.

Fed by the engine, feeds the report. Pure sums and quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.simulation.budget import ITEMS, Budget


@dataclass
class JobResult:
    """One job's account, in seconds, core-seconds and GiB-seconds. Times are -1 until they happen."""

    arrived_s: float = 0.0
    started_s: float = -1.0
    ended_s: float = -1.0
    completed: bool = False
    killed: bool = False  # by its user
    large: bool = False
    done_share: float = 0.0
    worker_core_s: float = 0.0
    server_core_s: float = 0.0
    worker_busy_s: float = 0.0
    server_busy_s: float = 0.0
    worker_gib_s: float = 0.0
    server_gib_s: float = 0.0
    worker_used_gib_s: float = 0.0
    server_used_gib_s: float = 0.0
    stopped_s: float = 0.0
    repeated: float = 0.0
    rescales: int = 0
    failures: int = 0
    oom_kills: int = 0
    refused: int = 0
    budget: Budget = field(default_factory=Budget)

    @property
    def jct_s(self) -> float:
        """Seconds from arrival to end."""
        return self.ended_s - self.arrived_s


@dataclass
class Result:
    """One run of one policy on one seed."""

    policy: str
    seed: int
    cores: float
    gib: float
    jobs: dict[str, JobResult] = field(default_factory=dict)
    cpu_s: float = 0.0
    until_s: float = 0.0  # when the run was over

    def figures(self) -> dict[str, float]:
        """The figures of a run. JCT over completed jobs, the mean stay over all; completion is of the jobs that no user killed;
        shares in 0..1; hours and minutes where the name says so."""
        all_jobs = list(self.jobs.values())
        kept = [job for job in all_jobs if not job.killed]  # whose users let them run
        ended = [job for job in all_jobs if job.completed]
        jct = np.array([job.jct_s for job in ended]) if ended else np.array([np.nan])
        large = [job for job in kept if job.large]
        small = [job for job in kept if not job.large]
        waits = [job.started_s - job.arrived_s for job in all_jobs if job.started_s >= 0]
        return {
            "jct_mean_s": float(jct.mean()),
            "jct_median_s": float(np.median(jct)),
            "jct_p95_s": float(np.quantile(jct, 0.95)),
            "jct_p99_s": float(np.quantile(jct, 0.99)),
            "wait_mean_s": float(np.mean(waits)) if waits else float("nan"),
            "makespan_s": max((job.ended_s for job in all_jobs), default=0.0),
            "stay_mean_s": float(np.mean([self._stay_s(job) for job in all_jobs])),
            "killed_by_users": (len(all_jobs) - len(kept)) / len(all_jobs),
            "completion": _share([job.completed for job in kept]),
            "completion_small": _share([job.completed for job in small]),
            "completion_large": _share([job.completed for job in large]),
            "cpu_use": _ratio(all_jobs, "worker_busy_s+server_busy_s", "worker_core_s+server_core_s"),
            "worker_cpu_use": _ratio(all_jobs, "worker_busy_s", "worker_core_s"),
            "server_cpu_use": _ratio(all_jobs, "server_busy_s", "server_core_s"),
            "memory_use": _ratio(
                all_jobs, "worker_used_gib_s+server_used_gib_s", "worker_gib_s+server_gib_s"
            ),
            "worker_memory_use": _ratio(all_jobs, "worker_used_gib_s", "worker_gib_s"),
            "server_memory_use": _ratio(all_jobs, "server_used_gib_s", "server_gib_s"),
            "core_hours": sum(job.worker_core_s + job.server_core_s for job in all_jobs) / 3600.0,
            "oom_kills": float(sum(job.oom_kills for job in all_jobs)),
            "failures": float(sum(job.failures for job in all_jobs)),
            "rescales": float(sum(job.rescales for job in all_jobs)),
            "stopped_minutes": sum(job.stopped_s for job in all_jobs) / 60.0,
            # Completed jobs have counted every sample; what a restart repeats is counted apart and not as loss.
            "samples_lost_share": sum(1.0 - job.done_share for job in ended),
            "refused_for_room": float(sum(job.refused for job in all_jobs)),
            "cpu_s": self.cpu_s,
        } | _budget(ended)

    def _stay_s(self, job: JobResult) -> float:
        """Seconds from a job's arrival to its end, whatever that was; a job that never ended stayed to the end of the run."""
        return (job.ended_s if job.ended_s >= 0 else self.until_s) - job.arrived_s


def _budget(ended: list[JobResult]) -> dict[str, float]:
    """Where the mean completion time goes, item by item."""
    items = ITEMS if ended else ()
    return {f"budget_{item}": float(np.mean([getattr(job.budget, item) for job in ended])) for item in items}


def _share(claims: list[bool]) -> float:
    return sum(claims) / len(claims) if claims else float("nan")


def _ratio(jobs: list[JobResult], above: str, below: str) -> float:
    def total(names: str) -> float:
        return float(sum(getattr(job, name) for job in jobs for name in names.split("+")))

    return total(above) / max(total(below), 1e-12)
