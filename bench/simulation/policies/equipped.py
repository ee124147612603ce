"""A rival with our mechanisms: its sizes, our stage 3.

Fed through `port`. Members come and go while training goes on, a lost member costs itself only, stragglers, hot servers and memory
are dealt with as ours are; how large a job is, and when it starts, the rival alone decides. What ours is better by than this row is
planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.simulation.policies.staged import Staged
from bench.simulation.port import ClusterView, JobView, Policy, Remedy, Setting, Size, Window


class Equipped(Staged):
    """`rival` makes the policy that sizes the jobs. Its own rounds keep their time; memory is looked at in every one of ours."""

    def __init__(self, setting: Setting, rival: Callable[[Setting], Policy]) -> None:
        super().__init__(setting, frozenset({3}))
        self.rival, self.due_s = rival(setting), 0.0
        self.name = f"{self.rival.name}, our mechanisms"

    def choose(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """What the rival wants."""
        its_round = regular and now_s >= self.due_s
        if its_round:
            self.due_s = now_s + self.rival.round_s
        return self.rival.plan(cluster, now_s, its_round)

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """The rival learns from the same windows; remedies are ours."""
        self.rival.observe(windows)
        return super().observe(windows)

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Both remember."""
        self.rival.ended(job, now_s, completed)
        super().ended(job, now_s, completed)
