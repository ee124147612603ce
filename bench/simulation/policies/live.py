"""The live Brain as a policy: `rover_bus.brain.v1`, told what a cluster would tell it.

Fed through `port`; behind `on_the_bus` each call crosses the simulated bus as well. Here is only translation: a `Window` is a
measurement, what the engine carried out is said as it happens. Apart from `staged`, which composes the same decisions without a
plan's life: the live Brain begins with one worker where there is no history, measures each change before the next one, and takes
back what does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Menu, Remedy, Setting, Size, Window
from bench.simulation.weather import WINDOW_S
from rover_bus.brain.decisions.plans import GIB
from rover_bus.brain.v1 import Brain, ClusterHost, JobPlacement, Measurement
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec


class LiveBrain:
    """Workers, memory limits, stragglers and roll-backs as the live service decides them today."""

    name = "live Brain"
    round_s = 60.0

    def __init__(self, setting: Setting) -> None:
        self.mechanisms, self.menu = Mechanisms(elastic=True), setting.menu
        self.brain = self._brain()
        self.cases: dict[str, Case] = {}
        self.settled: dict[str, tuple[JobPlacement, float]] = {}  # what was last carried out, and when
        self.now = 0.0

    def _brain(self) -> Brain:
        return Brain(at_once=False)

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Tell what is new, and return the sizes that plans ask for and jobs do not hold."""
        self.now = max(self.now, now_s)
        hosts = {
            _host(number): ClusterHost(cores=cores, memory_bytes=int(gib * GIB), cores_bind=True)
            for number, (cores, gib) in enumerate(cluster.hosts)
        }
        self.brain.set_hosts(hosts, self.now)
        for job in cluster.jobs:
            if job.case.name not in self.cases:
                self.cases[job.case.name] = job.case
                self.brain.submit(self.spec(job.case), self.now)
            self._follow(job)
        self.brain.decide(self.now)  # the service looks once a second
        held = {job.case.name: job.held for job in cluster.jobs}
        wishes = [
            (name, _size(self.cases[name], placed))
            for name, placed in self.brain.placements.items()
            if name in held and placed.reason  # else it waits for its first plan
        ]
        return [(name, size) for name, size in wishes if size != held[name]]

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Hand samples over, let the Brain's time pass, and return the workers that it replaces."""
        for window in windows:
            self.now = max(self.now, window.at_s + WINDOW_S)
            if window.job in self.cases and not self._is_stale(window):
                self.brain.observe(self.measured(window, self.cases[window.job]), self.now)
        self.brain.decide(self.now)
        return [Remedy(each.kind, each.job, each.index) for each in self.brain.take_remedies()]

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """The platform starts lost members again: as it was."""
        return None

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Tell that a job ended."""
        self.now = max(self.now, now_s)
        self.settled.pop(job.case.name, None)
        if self.cases.pop(job.case.name, None) is not None:
            self.brain.end(job.case.name, self.now, completed=completed)

    def spec(self, case: Case) -> JobSpec:
        """The job file that its user would have written."""
        return spec_of(case, self.menu, case.asked, case.family)

    def measured(self, window: Window, case: Case) -> Measurement:
        """What the Brain is told of a window."""
        return measurement_of(window, case, window.worker_rates.tolist())

    def _is_stale(self, window: Window) -> bool:
        """Whether a window that comes late began before the last change was carried out: a member's own word is never so old."""
        _, since_s = self.settled.get(window.job, (None, 0.0))
        return window.at_s - WINDOW_S < since_s - 1e-6

    def _follow(self, job: JobView) -> None:
        """Say where the engine found room, and what became of the last plan."""
        name, held, placed = job.case.name, job.held, self.brain.placements[job.case.name]
        if held is None or not placed.reason:
            return
        workers, servers = list(map(_host, job.worker_hosts)), list(map(_host, job.server_hosts))
        carried_out = held[:4] == _size(job.case, placed)[:4]
        self.brain.placed(name, workers, servers, self.now)
        if carried_out and job.state == "running" and not job.changing:
            if placed != self.settled.get(name, ({}, 0.0))[0]:
                self.settled[name] = placed, self.now
            self.brain.settled(name, self.now)


def spec_of(case: Case, menu: Menu, asked: Size, family: str) -> JobSpec:
    """A job file: counts are the Brain's to choose; members start as large as the user asked and may get what the menu has."""
    return JobSpec(
        name=case.name,
        program=["train"],
        data=DataSpec(train=family, batch_size=int(case.batch_size)),
        workers=WorkersSpec(
            training="synchronous" if case.mode == "sync" else "asynchronous",
            start=asked.workers,
            max_count=case.max_workers,
            cores=min(*menu.worker_cores, asked.worker_cores),
            start_cores=asked.worker_cores,
            max_cores=max(*menu.worker_cores, asked.worker_cores),
            memory_bytes=int(asked.worker_gib * GIB),
        ),
        servers=RoleSpec(
            start=asked.servers,
            max_count=case.max_servers,
            cores=min(*menu.server_cores, asked.server_cores),
            start_cores=asked.server_cores,
            max_cores=max(*menu.server_cores, asked.server_cores),
            memory_bytes=int(asked.server_gib * GIB),
        ),
        plan=PlanSpec(window_s=WINDOW_S, memory_reaction_s=120.0),
        labels={"family": family, "user": case.user},
    )


def _size(case: Case, placed: JobPlacement) -> Size:
    """What the engine is asked for; what the Brain leaves open is as the user asked."""
    asked = case.asked
    return asked._replace(
        workers=len(placed.worker_hosts),
        servers=len(placed.server_hosts),
        worker_cores=placed.worker_cores or asked.worker_cores,
        server_cores=placed.server_cores or asked.server_cores,
        server_gib=placed.server_memory_bytes / GIB or asked.server_gib,
    )


def measurement_of(window: Window, case: Case, rates: list[float]) -> Measurement:
    """What workers, servers and their hosts say of a window. `rates`: samples a second of each worker."""
    return Measurement(
        job=window.job,
        seconds=WINDOW_S,
        samples_per_s=sum(rates),
        worker_samples_per_s=rates,
        samples_done=window.samples,
        samples_left=max(case.samples - window.samples, 0.0),
        input_share=window.input_wait,
        worker_cores_used=window.worker_cores_used,
        server_cores_used=window.server_cores_used,
        server_cores_busy=(window.server_busy * window.size.server_cores).tolist(),
        worker_memory_bytes=int(window.worker_used_gib * GIB),
        server_memory_bytes=int(window.server_used_gib * GIB),
    )


def _host(number: int) -> str:
    return f"n{number:05d}"
