"""What became of single jobs of one cell: sizes held and wanted, how fast they are in truth, and where their time went.

Fed by `experiment`'s worlds and policies, feeds people who look for a cause. A policy is watched through `port`, as the engine
meets it, and is asked nothing else; the truth beside it is the engine's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from bench.simulation.cluster import Cluster
from bench.simulation.experiment import load_class, load_world
from bench.simulation.generator import Arrivals, generate
from bench.simulation.jobs import Job
from bench.simulation.port import ClusterView, JobView, Policy, Size, Wanted

RESTART_S = 660.0  # of the baselines
State = tuple[str, Size | None, Size | None]  # of a job: how it stands, what it holds, what is wanted


@dataclass
class Life:
    """One job: each change of what it held or was to hold, as a line."""

    last: State | None = None
    lines: list[str] = field(default_factory=list)


class Watched:
    """A policy whose answers are noted while its cell runs. `jobs` are the engine's, known once there is one."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.mechanisms, self.round_s = policy.name, policy.mechanisms, policy.round_s
        self.observe, self.lost, self.ended = policy.observe, policy.lost, policy.ended
        self.jobs: dict[str, Job] = {}
        self.lives: dict[str, Life] = {}

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> Sequence[tuple[str, Size] | Wanted]:
        """What the policy wants, noted for each job."""
        wishes = self.policy.plan(cluster, now_s, regular)
        wanted = {wish[0]: wish[1] for wish in wishes}
        for view in cluster.jobs:
            self._note(view, wanted.get(view.case.name), now_s)
        return wishes

    def _note(self, view: JobView, wanted: Size | None, now_s: float) -> None:
        name = view.case.name
        life, now = self.lives.setdefault(name, Life()), (view.state, view.held, wanted)
        if now == life.last:
            return
        life.last = now
        job, held = self.jobs[name], view.held
        speed = job.ideal(held).speed / job.reference_speed if held else 0.0
        asks = f" -> {_words(wanted)}, {self._why(name)}" if wanted else ""
        state = view.state + ("*" if view.changing else "")
        when, done = now_s - view.case.arrive_s, view.done / view.case.samples
        life.lines.append(f"{when:8.0f} {done:6.1%} {speed:5.2f}  {state:<9} {_words(held)}{asks}")

    def _why(self, name: str) -> str:
        brain = getattr(self.policy, "brain", None)
        placed = brain.placements.get(name) if brain is not None else None
        return f"{placed.reason}: {placed.detail}" if placed is not None else "not said"


def watch(world: str, policy: str, seed: int, load: float, arrivals: Arrivals) -> tuple[Cluster, Watched]:
    """Return the engine of one cell, not run yet, and its policy, which is watched. Raises ValueError for unknown names."""
    found = load_world(world)
    watched = Watched(load_class(policy)(found.setting(seed, RESTART_S)))
    cluster = Cluster(generate(found, seed, load, arrivals=arrivals), watched, found.weather)
    watched.jobs = cluster.jobs
    return cluster, watched


def told(cluster: Cluster, watched: Watched, names: Sequence[str], most: int) -> Iterator[str]:
    """Yield the lives of the named jobs, or of the `most` that lost most time by their sizes."""
    by_size = sorted(cluster.jobs, key=lambda name: -cluster.jobs[name].budget.size_s)
    for name in names or by_size[:most]:
        job, budget = cluster.jobs[name], cluster.jobs[name].budget
        spent = [(each.name.removesuffix("_s"), getattr(budget, each.name)) for each in fields(budget)]
        where = ", ".join(f"{what} {seconds:,.0f}" for what, seconds in spent if round(seconds))
        yield f"{name}: {job.case.family}, {job.case.mode}; seconds: {where}"
        yield f"  asked {_words(job.case.asked)}, reference {_words(job.reference)}"
        yield "  seconds   done speed  state     holds (speed: of the reference's; *: members are on their way)"
        yield from watched.lives[name].lines


class Lost(NamedTuple):
    """What one job takes longer than under another policy, in seconds, and in which items of its budget."""

    seconds: float
    job: str
    items: dict[str, float]


def longer_beside(cluster: Cluster, beside: Cluster) -> list[Lost]:
    """Return what each job of one workload takes longer than under another policy, the most first. Both cells were run."""
    found = list[Lost]()
    for name, job in cluster.jobs.items():
        other = beside.jobs[name].budget
        items = {
            each.name.removesuffix("_s"): getattr(job.budget, each.name) - getattr(other, each.name)
            for each in fields(other)
        }
        found.append(Lost(job.budget.total_s - other.total_s, name, items))
    return sorted(found, reverse=True)


def _words(size: Size | None) -> str:
    if size is None:
        return "nothing"
    cores, server_cores = size.worker_cores, size.server_cores
    return (
        f"{size.workers} x {cores:g} + {size.servers} x {server_cores:g} cores of {size.server_gib:.0f} GiB"
    )
