"""Which ended jobs are forgotten: by age, and the oldest first when the store holds more than it should.

Fed with the submissions and ends of jobs and with what the streams hold; feeds keeping.py, which carries it out while its Brain
leads.
Never a job that has not ended, nor one whose checkpoint a job that has not ended started from. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rover_bus.events.bus import Stored
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.reading import read_fact
from rover_bus.events.settings import RetentionSettings


@dataclass(slots=True)
class JobRun:
    """A job as far as retention looks at it."""

    uid: str
    started_from: str = ""  # the uid of the job whose checkpoint it began with
    ended_ms: int = 0  # 0: not yet


@dataclass(slots=True)
class JobRuns:
    """All jobs, as submissions and ends tell them in their order."""

    known: dict[str, JobRun] = field(default_factory=dict)

    def take(self, stored: Stored) -> None:
        """Take a stored fact in; what cannot be believed changes nothing."""
        try:
            fact = read_fact(stored)
        except BadMessage:
            return
        match fact:
            case JobSubmitted(job=job, uid=uid, spec=spec):
                self.known[job] = JobRun(uid, spec.start_from.uid if spec.start_from else "")
            case JobEnded(job=job) if job in self.known:
                self.known[job].ended_ms = stored.time_ms


def ended_first(known: Mapping[str, JobRun]) -> list[tuple[str, JobRun]]:
    """Return the jobs that may be forgotten, those that ended first first."""
    in_use = {job.started_from for job in known.values() if not job.ended_ms}
    free = [(name, job) for name, job in known.items() if job.ended_ms and job.uid not in in_use]
    return sorted(free, key=lambda each: each[1].ended_ms)


def next_to_forget(
    free: Sequence[tuple[str, JobRun]], retention: RetentionSettings, stored_bytes: int, now_ms: int
) -> tuple[str, str, str] | None:
    """Return the job that is to go now (name, uid, reason), None when all may stay."""
    if not free:
        return None
    name, job = free[0]
    age_s = (now_ms - job.ended_ms) / 1000
    if retention.jobs_age_s and age_s > retention.jobs_age_s:
        return name, job.uid, f"ended {age_s:.0f} s ago, kept for {retention.jobs_age_s:.0f} s"
    if retention.store_size_bytes and stored_bytes > retention.store_size_bytes:
        return name, job.uid, f"the store holds {stored_bytes} bytes, {retention.store_size_bytes} are kept"
    return None
