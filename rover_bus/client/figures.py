"""Where a worker's time goes, and how it fares: sums that the training thread adds to, and samples made of them.

Fed by `job` and `parameters`; feeds `WorkerProfile`. Adding is one float addition a time, so that measuring costs nothing worth
measuring. One thread adds, another takes differences: a torn read shifts a microsecond into the next sample, no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from rover_bus.events.identity import Member
from rover_bus.events.profiles import WorkerProfile


@dataclass(slots=True)
class Figures:
    """Totals since the start of this process. Seconds are the training thread's."""

    samples: int = 0
    batches: int = 0
    wait_s: float = 0.0  # no lease was there
    read_s: float = 0.0  # a lease was there, its batch was not yet parsed
    pull_s: float = 0.0
    push_s: float = 0.0
    barrier_s: float = 0.0  # the program waited for other workers of its group
    staleness_sum: int = 0
    acks: int = 0
    loss_sum: float = 0.0
    losses: int = 0
    metrics: dict[str, float] = field(default_factory=dict)  # the latest of each

    @property
    def blocked_s(self) -> float:
        """How long the training thread stood still in this library outside server calls."""
        return self.wait_s + self.read_s

    @property
    def staleness_batches(self) -> float:
        """Mean number of others' batches applied between a batch's pull and its push."""
        return self.staleness_sum / self.acks if self.acks else 0.0

    def copy(self) -> Figures:
        return replace(self, metrics=dict(self.metrics))

    def since(self, before: Figures) -> Figures:
        """Return the differences to an earlier copy; metrics stay the latest."""
        changes = {
            f.name: getattr(self, f.name) - getattr(before, f.name)
            for f in fields(self)
            if f.name != "metrics"
        }
        return replace(self.copy(), **changes)

    def profile(
        self, job: str, member: Member, window_s: float, cores_used: float = 0.0, memory_bytes: int = 0
    ) -> WorkerProfile:
        """Return a window's figures (`since`) as a sample. What is neither waiting nor a server call is the program's own."""
        spent = self.blocked_s + self.pull_s + self.push_s + self.barrier_s
        return WorkerProfile(
            window_s=window_s,
            job=job,
            member=member,
            samples=max(self.samples, 0),
            batches=max(self.batches, 0),
            read_s=max(self.read_s, 0.0),
            pull_s=max(self.pull_s, 0.0),
            push_s=max(self.push_s, 0.0),
            wait_s=max(self.wait_s, 0.0),
            barrier_s=max(self.barrier_s, 0.0),
            compute_s=max(window_s - spent, 0.0),
            staleness_batches=self.staleness_batches,
            loss=self.loss_sum / self.losses if self.losses else 0.0,
            metrics=dict(self.metrics),
            cores_used=cores_used,
            memory_bytes=memory_bytes,
        )
