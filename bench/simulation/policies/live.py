"""The live Brain's decider as a policy: `brain.decider` of production, fed with facts and samples as its service would be.

Fed through `port`; behind `on_the_bus` each call crosses the simulated bus as well. The shell here plays the master and the
platform of every job: it says what was submitted, applied, settled and ended, and turns windows into profiles of members and
hosts. Apart from `staged`, which composes the same decisions without a plan's life: the live Brain begins with one worker where
there is no history, measures each change before the next one, and takes back what does not pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Menu, Remedy, Setting, Size, Window
from bench.simulation.weather import WINDOW_S
from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.plans import GIB
from rover_bus.events import facts, host_facts
from rover_bus.events.identity import DesiredMember, HostCapacity, Member, Resources, Role
from rover_bus.events.inputs import Input, Observed, Sampled, Ticked, TookOver
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec
from rover_bus.events.outbox import FactOut
from rover_bus.events.profiles import AnyProfile, HostProfile, ProcessSample, ServerProfile, WorkerProfile


@dataclass
class _Known:
    """What the shell has told of a job. `wanted`: the last plan's size; `members_plan` counts what was carried out."""

    case: Case
    wanted: Size | None = None
    plan: int = 0
    members_plan: int = 0
    settled: bool = True
    sequence: int = 0
    where: tuple[tuple[str, ...], tuple[str, ...]] = (
        (),
        (),
    )  # hosts of workers and of servers, as they were told


class LiveBrain:
    """Workers, memory limits, stragglers and roll-backs as the live service decides them today."""

    name = "live Brain"
    round_s = 60.0

    def __init__(self, setting: Setting) -> None:
        self.mechanisms, self.menu = Mechanisms(elastic=True), setting.menu
        self.brain = BrainDecider(1)
        self.jobs: dict[str, _Known] = {}
        self.remedies: list[Remedy] = []
        self.position = 0
        self.now = 0.0
        self.hosts: list[tuple[float, float]] = []
        self._decide(TookOver("simbench", 1))

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Tell what is new, and return the sizes that plans ask for and jobs do not hold."""
        self.now = now_s
        if self.hosts != list(cluster.hosts):
            self.hosts = list(cluster.hosts)
            for number, (cores, gib) in enumerate(self.hosts):
                room = HostCapacity(cores=cores, memory_bytes=int(gib * GIB), cores_bind=True)
                self._notice(host_facts.HostRegistered(host=_host(number), daemon="simbench", capacity=room))
        for job in cluster.jobs:
            if job.case.name not in self.jobs:
                self.jobs[job.case.name] = _Known(job.case)
                uid = f"{len(self.jobs):012x}"
                self._notice(facts.JobSubmitted(job=job.case.name, spec=_spec(job.case, self.menu), uid=uid))
            self._follow(job, self.jobs[job.case.name])
        self._decide(Ticked())  # the service looks once a second
        held = {job.case.name: job.held for job in cluster.jobs}
        wishes = [(name, known.wanted) for name, known in self.jobs.items() if name in held]
        return [(name, size) for name, size in wishes if size is not None and size != held[name]]

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Hand samples over, let the Brain's time pass, and return the workers that it replaces."""
        processes: dict[str, list[ProcessSample]] = {_host(number): [] for number in range(len(self.hosts))}
        for window in windows:
            self.now = max(self.now, window.at_s + WINDOW_S)
            if window.job in self.jobs:
                for profile in _profiles(window):
                    self._decide(Sampled(profile))
                for host, process in _processes(window, self.jobs[window.job].where):
                    processes[host].append(process)
                self._report(window)
        for host, used in processes.items():
            self._decide(Sampled(_host_profile(host, used)))
        self._decide(Ticked())
        found, self.remedies = self.remedies, []
        return found

    def lost(self, job: JobView, workers: int, servers: int) -> Size | None:
        """The platform starts lost members again: as it was."""
        return None

    def ended(self, job: JobView, now_s: float, completed: bool) -> None:
        """Tell that a job ended."""
        self.now = now_s
        self._notice(facts.JobEnded(job=job.case.name, state="completed" if completed else "failed"))
        self.jobs.pop(job.case.name, None)

    # -- the master ----------------------------------------------------------------------------------------------------

    def _follow(self, job: JobView, known: _Known) -> None:
        """Say what became of the last plan."""
        name, held = job.case.name, job.held
        workers, servers = tuple(map(_host, job.worker_hosts)), tuple(map(_host, job.server_hosts))
        if held is not None and known.wanted is not None and (workers, servers) != known.where:
            self._tell_members(known, workers, servers)
        if held is None or known.wanted is None or held[:2] != known.wanted[:2] or known.settled:
            return
        if job.state == "running" and not job.changing:
            known.settled = True
            self._say(known, facts.PlanSettled(job=name, plan=known.plan, members_plan=known.members_plan))

    def _carry_out(self, plan: facts.PlanProposed) -> None:
        known = self.jobs[plan.job]
        asked = known.case.asked
        for member in (
            plan.replaces if plan.step == "replace" else []
        ):  # else the engine moves who has no room
            self.remedies.append(Remedy("replace_worker", plan.job, member.index))
        limit = plan.server_memory_bytes / GIB or asked.server_gib
        known.wanted = asked._replace(
            workers=plan.workers,
            servers=plan.servers,
            worker_cores=plan.size.worker_cores or asked.worker_cores,
            server_cores=plan.size.server_cores or asked.server_cores,
            server_gib=limit,
        )
        known.plan, known.settled = plan.plan, False
        known.members_plan += 1
        self._say(known, facts.PlanChecked(job=plan.job, plan=plan.plan, outcome="passed"))
        size = plan.size
        self._say(
            known,
            facts.PlanApplied(
                job=plan.job, plan=plan.plan, workers=plan.workers, servers=plan.servers, size=size
            ),
        )
        workers, servers = known.where
        workers = (*workers, *plan.worker_hosts)[: plan.workers]
        servers = (*servers, *plan.server_hosts)[: plan.servers]
        rest = plan.hosts[0]  # until the engine says where it found room
        workers += (rest,) * (plan.workers - len(workers))
        self._tell_members(known, workers, servers + (rest,) * (plan.servers - len(servers)))

    def _tell_members(self, known: _Known, workers: tuple[str, ...], servers: tuple[str, ...]) -> None:
        """Say which members there are, and where."""
        known.where = workers, servers
        members = [(Member("ps", i, 1), host) for i, host in enumerate(servers)]
        members += [(Member("worker", i, 1), host) for i, host in enumerate(workers)]
        desired = [
            DesiredMember(member=m, host=host, command=["x"], resources=Resources()) for m, host in members
        ]
        name = known.case.name
        self._say(known, facts.MembersDesired(job=name, term=1, plan=known.members_plan, members=desired))

    def _report(self, window: Window) -> None:
        known = self.jobs[window.job]
        self._say(
            known,
            facts.JobReported(
                job=window.job,
                epoch=0,
                committed=int(window.samples),
                dead_lettered=0,
                total=int(known.case.samples),
            ),
        )

    def _say(self, known: _Known, fact: facts.JobFact) -> None:
        known.sequence += 1
        self._notice(fact.replace(position=(known.sequence, 0)))

    # -- the Brain -----------------------------------------------------------------------------------------------------

    def _notice(self, fact: facts.Fact) -> None:
        self._decide(Observed(fact, "F:1"))

    def _decide(self, input: Input) -> None:
        records = self.brain.decide(input, self.now).effects
        for record in records:
            self.position += 1
            for item in self.brain.outgoing(record, (self.position, 0), 1):
                if isinstance(item, FactOut):
                    self._obey(item.fact)

    def _obey(self, fact: facts.Fact) -> None:
        """Do what the master of a job does with a fact of the Brain."""
        match fact:
            case facts.PlanProposed():
                self._carry_out(fact)
            case facts.StragglerFound(job=job, member=member):
                self.remedies.append(Remedy("smaller_leases", job, member.index))
            case facts.SlotsMoveRequested(job=job, source=source):
                self.remedies.append(Remedy("move_slots", job, int(source.removeprefix("ps-"))))
            case _:
                pass  # told for others


def _spec(case: Case, menu: Menu) -> JobSpec:
    """A job file: counts are the Brain's to choose; members start as large as the user asked and may get what the menu has."""
    asked = case.asked
    return JobSpec(
        name=case.name,
        program=["train"],
        data=DataSpec(train=case.family, batch_size=int(case.batch_size)),
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
        labels={"family": case.family, "user": case.user},
    )


def _profiles(window: Window) -> list[AnyProfile]:
    """What workers, servers and their hosts would have said of a window."""
    workers = [Member("worker", i, 1) for i in range(len(window.worker_rates))]
    servers = [Member("ps", i, 1) for i in range(window.size.servers)]
    said: list[AnyProfile] = [
        WorkerProfile(
            window_s=WINDOW_S,
            job=window.job,
            member=member,
            samples=round(WINDOW_S * float(rate)),
            batches=1,
            read_s=WINDOW_S * window.input_wait,
            compute_s=WINDOW_S * (1 - window.input_wait),
        )
        for member, rate in zip(workers, window.worker_rates.tolist(), strict=True)
    ]
    busy = (WINDOW_S * window.server_busy * window.size.server_cores).tolist()
    said += [
        ServerProfile(
            window_s=WINDOW_S, job=window.job, member=member, pulls=0, pushes=0, ignored=0, busy_s=seconds
        )
        for member, seconds in zip(servers, busy, strict=False)
    ]
    return said


def _processes(
    window: Window, where: tuple[tuple[str, ...], tuple[str, ...]]
) -> Iterator[tuple[str, ProcessSample]]:
    """What the hosts of a window's members would have said of their processes."""
    roles: tuple[tuple[Role, tuple[str, ...], float, float], ...] = (
        ("worker", where[0][: len(window.worker_rates)], window.worker_cores_used, window.worker_used_gib),
        ("ps", where[1][: window.size.servers], window.server_cores_used, window.server_used_gib),
    )
    for role, hosts, cores, gib in roles:
        for index, host in enumerate(hosts):
            member = Member(role, index, 1)
            used = int(gib * GIB)
            yield (
                host,
                ProcessSample(job=window.job, member=member, pid=1, cores_used=cores, memory_bytes=used),
            )


def _host_profile(host: str, processes: list[ProcessSample]) -> HostProfile:
    return HostProfile(
        window_s=WINDOW_S,
        host=host,
        cores=1.0,
        cores_used=0.0,
        memory_bytes=0,
        memory_used_bytes=0,
        processes=processes,
    )


def _host(number: int) -> str:
    return f"n{number:05d}"
