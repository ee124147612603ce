"""The live Brain's decider as a policy: `brain.decider` of production, fed with facts and samples as its service would be.

Fed through `port`; behind `on_the_bus` each call crosses the simulated bus as well. The shell here plays the master and the
platform of every job: it says what was submitted, applied, settled and ended, and turns windows into profiles of members and
hosts. Apart from `staged`, which composes the same decisions without a plan's life: the live Brain begins with one worker where
there is no history, measures each change before the next one, and takes back what does not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulation.port import Case, ClusterView, JobView, Mechanisms, Menu, Remedy, Setting, Size, Window
from bench.simulation.weather import WINDOW_S
from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.plans import GIB
from rover_bus.events import facts, host_facts
from rover_bus.events.identity import DesiredMember, HostCapacity, Member, Resources
from rover_bus.events.inputs import Input, Observed, Sampled, Ticked, TookOver
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec
from rover_bus.events.outbox import FactOut
from rover_bus.events.profiles import AnyProfile, HostProfile, ProcessSample, ServerProfile, WorkerProfile

_HOST = "cluster"


@dataclass
class _Known:
    """What the shell has told of a job. `wanted`: the last plan's size; `members_plan` counts what was carried out."""

    case: Case
    wanted: Size | None = None
    plan: int = 0
    members_plan: int = 0
    settled: bool = True
    sequence: int = 0


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
        self.capacity = (0.0, 0.0)
        self._decide(TookOver("simbench", 1))

    def plan(self, cluster: ClusterView, now_s: float, regular: bool) -> list[tuple[str, Size]]:
        """Tell what is new, and return the sizes that plans ask for and jobs do not hold."""
        self.now = now_s
        if self.capacity != (cluster.cores, cluster.gib):
            self.capacity = (cluster.cores, cluster.gib)
            room = HostCapacity(cores=cluster.cores, memory_bytes=int(cluster.gib * GIB), cores_bind=True)
            self._notice(host_facts.HostRegistered(host=_HOST, daemon="simbench", capacity=room))
        for job in cluster.jobs:
            if job.case.name not in self.jobs:
                self.jobs[job.case.name] = _Known(job.case)
                uid = f"{len(self.jobs):012x}"
                self._notice(facts.JobSubmitted(job=job.case.name, spec=_spec(job.case, self.menu), uid=uid))
            self._follow(job, self.jobs[job.case.name])
        held = {job.case.name: job.held for job in cluster.jobs}
        wishes = [(name, known.wanted) for name, known in self.jobs.items() if name in held]
        return [(name, size) for name, size in wishes if size is not None and size != held[name]]

    def observe(self, windows: Sequence[Window]) -> list[Remedy]:
        """Hand samples over, let the Brain's time pass, and return the workers that it replaces."""
        for window in windows:
            self.now = max(self.now, window.at_s + WINDOW_S)
            if window.job in self.jobs:
                for profile in _profiles(window):
                    self._decide(Sampled(profile))
                self._report(window)
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
        if held is None or known.wanted is None or held[:2] != known.wanted[:2] or known.settled:
            return
        if job.state == "running" and not job.changing:
            known.settled = True
            self._say(known, facts.PlanSettled(job=name, plan=known.plan, members_plan=known.members_plan))

    def _carry_out(self, plan: facts.PlanProposed) -> None:
        known = self.jobs[plan.job]
        asked = known.case.asked
        for member in plan.replaces:
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
        members = [Member("ps", i, 1) for i in range(plan.servers)]
        members += [Member("worker", i, 1) for i in range(plan.workers)]
        desired = [DesiredMember(member=m, host=_HOST, command=["x"], resources=Resources()) for m in members]
        self._say(known, facts.MembersDesired(job=plan.job, term=1, plan=known.members_plan, members=desired))

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
        workers=RoleSpec(
            start=asked.workers,
            max_count=case.max_workers,
            cores=asked.worker_cores,
            max_cores=max(*menu.worker_cores, asked.worker_cores),
            memory_bytes=int(asked.worker_gib * GIB),
        ),
        servers=RoleSpec(
            start=asked.servers,
            max_count=case.max_servers,
            cores=asked.server_cores,
            max_cores=max(*menu.server_cores, asked.server_cores),
            memory_bytes=int(asked.server_gib * GIB),
        ),
        plan=PlanSpec(window_s=5.0),
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
    used = [(m, window.worker_cores_used, window.worker_used_gib) for m in workers]
    used += [(m, window.server_cores_used, window.server_used_gib) for m in servers]
    processes = [
        ProcessSample(job=window.job, member=m, pid=1, cores_used=cores, memory_bytes=int(gib * GIB))
        for m, cores, gib in used
    ]
    said.append(
        HostProfile(
            window_s=WINDOW_S,
            host=_HOST,
            cores=1.0,
            cores_used=0.0,
            memory_bytes=0,
            memory_used_bytes=0,
            processes=processes,
        )
    )
    return said
