"""Sizes that never change: as the user asked, or as somebody who knew the truth would have asked. First come, first served,
with backfill."""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.generator import reference_plan
from bench.simulation.port import ClusterView, JobView, Mechanisms, Remedy, Setting, Size, Window


class NoIntervention:
    """What the user asked for, until the end; a failure or an OOM kill restarts from the last checkpoint with the same limits."""

    name = "no intervention"
    round_s = 600.0

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.mechanisms = Mechanisms(restart_s=setting.restart_s, doubles_memory=False)

    def size(self, job: JobView) -> Size:
        """The size a job starts with."""
        return job.case.asked

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Try every waiting job in the order of arrival; smaller ones may pass."""
        free = cluster.free_cores
        waiting = [job for job in cluster.jobs if job.state == "waiting"]
        return [(job.case.name, size) for job in waiting if (size := self.size(job)).cores <= free]

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Look away."""
        return []

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """As it was."""
        return None

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Learn nothing."""


class Patience:
    """What a scheduler that counts cores only learns of nodes: a start that found no room is asked for with half of the workers."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}  # workers, of jobs that wait

    def most_workers(self, job: JobView) -> int:
        """How many workers to ask for at most."""
        if job.held is not None:
            self.asked.pop(job.case.name, None)
        asked = self.asked.get(job.case.name)
        return job.case.max_workers if asked is None else max(asked // 2, 1)

    def remember(self, jobs: Sequence[JobView], wishes: Sequence[tuple[str, Size]]) -> None:
        """These starts are asked for now."""
        waiting = {job.case.name for job in jobs if job.held is None}
        self.asked |= {name: size.workers for name, size in wishes if name in waiting}


class StaticUser(NoIntervention):
    """Production as published: a lost member or an OOM kill ends the job. The generator is accepted by it."""

    name = "static user"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.mechanisms = Mechanisms(restart_s=setting.restart_s, fatal=True)


class TunedStatic(NoIntervention):
    """The cheapest plan that reaches a share of the best (`within`), known from the truth, with memory that suffices."""

    def __init__(self, setting: Setting, within: float = 0.9) -> None:
        super().__init__(setting)
        self.within = within
        self.name = "well-tuned static" + (f" at {within:g}" if within != 0.9 else "")
        self.known: dict[str, Size] = {}

    def size(self, job: JobView) -> Size:
        """At 0.9 the reference plan that also defines the load."""
        name = job.case.name
        if name not in self.known:
            self.known[name] = reference_plan(job.case, self.setting.menu, self.within)[0]
        return self.known[name]
