"""A rival with our mechanisms: its sizes, our stage 3.

Fed through `port`. Members come and go while training goes on, a lost member costs itself only, stragglers, hot servers and memory
are dealt with as ours are, by the live Brain without the rules that choose sizes; how large a job is, and when it starts, the rival
alone decides. What ours is better by than this row is planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.simulation.policies.live import LiveBrain, host_of
from bench.simulation.port import ClusterView, JobView, Policy, Remedy, Setting, Size, Window
from rover_bus.brain.decisions.plans import GIB
from rover_bus.brain.v1 import Brain, JobPlacement

CHOOSING = ("sizes", "start", "loss", "cool servers", "memory limits", "leave hosts")


class Equipped(LiveBrain):
    """`rival` makes the policy that sizes the jobs. Its own rounds keep their time; memory is looked at in every one of ours."""

    def __init__(self, setting: Setting, rival: Callable[[Setting], Policy]) -> None:
        super().__init__(setting, frozenset({3}))
        self.rival, self.due_s = rival(setting), 0.0
        self.name = f"{self.rival.name}, our mechanisms"
        self.held: dict[str, Size] = {}  # what the Brain knows that jobs hold

    def make_brain(self) -> Brain:
        """A Brain that chooses no size."""
        return Brain(at_once=False, without=CHOOSING)

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """What the rival wants, with the memory that servers need."""
        needs = {wanted.job: wanted.size.server_gib for wanted in self.wanted(cluster, now_s)}
        its_round = regular and now_s >= self.due_s
        if its_round:
            self.due_s = now_s + self.rival.round_s
        wishes = {name: size for name, size, *_ in self.rival.plan(cluster, now_s, its_round)}
        for job in cluster.jobs:
            name = job.case.name
            if name in needs and job.held is not None:
                size = wishes.get(name, job.held)
                wishes[name] = size._replace(server_gib=max(size.server_gib, needs[name]))
        return list(wishes.items())

    def follow(self, job: JobView) -> None:
        """Tell the Brain of a size that the rival chose."""
        name, held = job.case.name, job.held
        if held is not None and held[:4] != self.held.get(name, held._replace(workers=0))[:4]:
            self.held[name] = held
            self.brain.hold(_placement(job, held), self.now)
        super().follow(job)

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """The rival learns from the same windows; remedies are ours."""
        self.rival.observe(windows)
        return super().observe(windows)

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Both remember."""
        self.held.pop(job.case.name, None)
        self.rival.ended(job, now_s, completed)
        super().ended(job, now_s, completed)


def _placement(job: JobView, held: Size) -> JobPlacement:
    return JobPlacement(
        job=job.case.name,
        worker_hosts=[host_of(number) for number in job.worker_hosts],
        server_hosts=[host_of(number) for number in job.server_hosts],
        worker_cores=held.worker_cores,
        server_cores=held.server_cores,
        worker_memory_bytes=int(held.worker_gib * GIB),
        server_memory_bytes=int(held.server_gib * GIB),
        reason="asked",
    )
