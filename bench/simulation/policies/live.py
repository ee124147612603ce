"""Ours: the live Brain as a policy, `rover_bus.brain.v1`, told what a cluster would tell it.

Fed through `port`; behind `on_the_bus` each call crosses the simulated bus as well. Here is only translation: a `Window` is a
measurement, what the engine carried out is said as it happens, and no decision is taken. With some of its stages only it is the
same Brain: without {1} no job has relatives, without {3} it does without the rules that look after members, and without {2} users
fix what they ask for, or (with {1}) what follows a first plan is only said.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.port import (
    Case,
    ClusterView,
    JobView,
    Mechanisms,
    Menu,
    Remedy,
    Setting,
    Size,
    Wanted,
    Window,
)
from bench.simulation.weather import WINDOW_S
from rover_bus.brain.decisions.plans import GIB
from rover_bus.brain.v1 import Brain, ClusterHost, JobPlacement, Measurement
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec

_SLACK = 1.001  # of a limit, as it is rounded
ALL_STAGES = frozenset({1, 2, 3})
SIZING = ("sizes", "memory limits")
LOOKING_AFTER = (
    "hosts",
    "stragglers",
    "hot server",
    "leave hosts",
    "replace",
    "replace slowest",
    "cool servers",
    "loss",
)


class LiveBrain:
    """The Brain that a cluster runs: `stages` out of 1 (history), 2 (sizes), 3 (stragglers, hot servers, relief, losses)."""

    round_s = WINDOW_S

    def __init__(self, setting: Setting, stages: frozenset[int] = ALL_STAGES) -> None:
        self.stages = stages
        self.name = "{" + "+".join(str(stage) for stage in sorted(stages)) + "}"
        self.mechanisms = Mechanisms(
            elastic=True, failures_restart=3 not in stages, restart_s=setting.restart_s
        )
        self.menu = setting.menu
        self.brain = self.make_brain()
        self.cases: dict[str, Case] = {}
        self.asked: dict[str, JobPlacement] = {}  # of the engine, at the last look
        self.settled: dict[str, tuple[JobPlacement, float]] = {}  # what was last carried out, and when
        self.now = 0.0
        self.shown: Sequence[tuple[float, float]] = ()
        self.hosts: dict[str, ClusterHost] = {}

    def make_brain(self) -> Brain:
        """A Brain with the rules of these stages."""
        without = [
            *(SIZING if 2 not in self.stages else ()),
            *(LOOKING_AFTER if 3 not in self.stages else ()),
        ]
        return Brain(at_once=False, without=without)

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> Sequence[tuple[str, Size] | Wanted]:
        """Tell what is new, and return the sizes that plans ask for and jobs do not hold."""
        return self.wanted(cluster, now_s)

    def wanted(self, cluster: ClusterView, now_s: float) -> list[Wanted]:
        """What plans ask for and jobs do not hold, on the hosts that the Brain chose."""
        self.now = max(self.now, now_s)
        self.brain.set_hosts(self.hosts_of(cluster), self.now)
        for job in cluster.jobs:
            if job.case.name not in self.cases:
                self.cases[job.case.name] = job.case
                self.brain.submit(self.spec(job.case), self.now)
            self.follow(job)
        self.brain.decide(self.now)  # the service looks once a second
        held = {job.case.name: job.held for job in cluster.jobs}
        wishes = [
            _wanted(self.cases[name], placed)
            for name, placed in self.brain.placements.items()
            if name in held and placed.reason  # else it waits for its first plan
        ]
        self.asked = self.brain.placements
        changes = [wanted for wanted in wishes if wanted.size != held[wanted.job]]
        return sorted(changes, key=lambda wanted: _turn(wanted, held[wanted.job]))

    def hosts_of(self, cluster: ClusterView) -> dict[str, ClusterHost]:
        """Return a cluster's hosts as the Brain knows them: made once, they are asked for at every look and stay the same."""
        if cluster.hosts != self.shown:
            self.shown = cluster.hosts
            self.hosts = {
                host_of(number): ClusterHost(cores=cores, memory_bytes=int(gib * GIB), cores_bind=True)
                for number, (cores, gib) in enumerate(cluster.hosts)
            }
        return self.hosts

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Hand samples over, let the Brain's time pass, and return the workers that it replaces."""
        for window in windows:
            self.now = max(self.now, window.at_s + WINDOW_S)
            if window.job in self.cases and not self._is_stale(window):
                self.brain.observe(self.measured(window, self.cases[window.job]), self.now)
        self.brain.decide(self.now)
        return [
            Remedy(each.kind, each.job, each.index, self._host_for(each.job, each.index))
            for each in self.brain.take_remedies()
        ]

    def _host_for(self, job: str, worker: int) -> int:
        """The host that a plan named for a worker; -1 where the job was made smaller since."""
        hosts = self.brain.placements[job].worker_hosts
        return _number_of(hosts[worker]) if worker < len(hosts) else -1

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """Tell that members are gone. The platform starts them again: as it was."""
        if job.case.name in self.cases:
            self.brain.lost(job.case.name, self.now, members=workers + servers)
        return None

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Tell that a job ended."""
        self.now = max(self.now, now_s)
        self.settled.pop(job.case.name, None)
        if self.cases.pop(job.case.name, None) is not None:
            self.brain.end(job.case.name, self.now, completed=completed)

    def spec(self, case: Case) -> JobSpec:
        """The job file that its user would have written."""
        spec = spec_of(case, self.menu, case.asked, case.family if 1 in self.stages else case.name)
        spec = spec.replace(plan=spec.plan.replace(relief=3 in self.stages))
        if 2 in self.stages:
            return spec
        return spec.replace(plan=spec.plan.replace(mode="observe")) if 1 in self.stages else fixed(spec)

    def measured(self, window: Window, case: Case) -> Measurement:
        """What the Brain is told of a window."""
        return measurement_of(window, case, window.worker_rates.tolist())

    def _is_stale(self, window: Window) -> bool:
        """Whether a window that comes late began before the last change was carried out: a member's own word is never so old."""
        _, since_s = self.settled.get(window.job, (None, 0.0))
        return window.at_s - WINDOW_S < since_s - 1e-6

    def follow(self, job: JobView) -> None:
        """Say where the engine found room, and what became of the last plan."""
        name, held, placed = job.case.name, job.held, self.brain.placements[job.case.name]
        if held is None or not placed.reason:
            return
        workers, servers = list(map(host_of, job.worker_hosts)), list(map(host_of, job.server_hosts))
        decided = _size(job.case, placed)
        carried_out = held[:4] == decided[:4]
        if self.asked.get(name) is placed and held.server_gib > _SLACK * decided.server_gib:
            self.brain.killed(name, self.now)  # the engine gave it more after a kill
        # Until it is carried out the room of what was decided is kept for it, as by what a master desires.
        if carried_out:
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
        on_server_lost="restore",
        labels={"family": family, "user": case.user},
    )


def fixed(spec: JobSpec) -> JobSpec:
    """The same job, whose user fixes the size that he asks for."""
    workers, servers = (
        role.replace(count=role.start, cores=role.start_cores, start_cores=0.0, max_cores=0.0)
        for role in (spec.workers, spec.servers)
    )
    return spec.replace(workers=workers, servers=servers)


def _size(case: Case, placed: JobPlacement) -> Size:
    """What the engine is asked for; what the Brain leaves open is as the user asked."""
    asked = case.asked
    return asked._replace(
        workers=len(placed.worker_hosts),
        servers=len(placed.server_hosts),
        worker_cores=placed.worker_cores or asked.worker_cores,
        server_cores=placed.server_cores or asked.server_cores,
        worker_gib=placed.worker_memory_bytes / GIB or asked.worker_gib,
        server_gib=placed.server_memory_bytes / GIB or asked.server_gib,
    )


def _wanted(case: Case, placed: JobPlacement) -> Wanted:
    """What the engine is asked for, on the hosts that a plan named."""
    hosts = placed.worker_hosts, placed.server_hosts, placed.stays_on
    workers, servers, stays_on = (tuple(map(_number_of, each)) for each in hosts)
    return Wanted(case.name, _size(case, placed), workers, servers, stays_on)


def _turn(wanted: Wanted, held: Size | None) -> tuple[bool, bool]:
    """What gives room back comes first, then starts, as the Brain has them."""
    return held is None or wanted.size.cores > held.cores, held is not None


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
        worker_cores_peak=window.worker_cores_peak,
        server_cores_peak=window.server_cores_peak,
        server_cores_busy=(window.server_busy * window.size.server_cores).tolist(),
        worker_memory_bytes=int(window.worker_used_gib * GIB),
        server_memory_bytes=int(window.server_used_gib * GIB),
    )


def host_of(number: int) -> str:
    return f"n{number:05d}"


def _number_of(host: str) -> int:
    return int(host.removeprefix("n"))
