"""A job that a Brain looks after, in a few lines: samples from a truth, a master that obeys, and every word that leaves the Brain.

Time passes in half seconds. What the decider decides goes through its log's bytes into a twin: both must be equal (P22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from brain_totals import assert_totals_agree

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.log import BrainBatch
from rover_bus.events import facts, host_facts
from rover_bus.events.fact import Fact
from rover_bus.events.host_facts import HostFact
from rover_bus.events.identity import DesiredMember, HostCapacity, Member, Resources
from rover_bus.events.inputs import Continued, Input, Observed, Sampled, Ticked, TookOver
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, WorkersSpec, is_synchronous
from rover_bus.events.log import Record
from rover_bus.events.outbox import FactOut
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile

GIB = 1 << 30
BEGAN_S = 1_800_000_000.0  # Unix time at the beginning of a life: 2027-01-15 08:00 UTC
Truth = Callable[[int], float]  # workers -> samples a second of the whole job


class Job:
    """One job as its master and platform would play it. `slow`: worker index -> share of its usual speed."""

    def __init__(self, spec: JobSpec, truth: Truth, total: int = 10_000_000, input_share: float = 0.7):
        self.spec, self.truth, self.total, self.input_share = spec, truth, total, input_share
        self.members_plan = 0
        self.members: list[Member] = []
        self.size: facts.Size | None = None
        self.done = 0.0
        self.slow: dict[int, float] = {}
        self.server_bytes = 0.0
        self.grows_by = 0.0  # bytes a sample
        self.killed = False
        self.live_at = float("inf")
        self.plan = 0
        self.obeys = True
        self.starts_s = 1.5  # until new members take part
        self.late = 0  # workers that others do not wait for: so many come last, and these train meanwhile
        self.loss = 0.0
        self.needs_cores = 0.0  # of a worker, to be as fast as the truth says
        self.a_server = 0.0  # samples a second that one server can take; 0: any number
        self.rollouts_fail = False
        self.servers_before = 0
        self.spins = False  # workers use all cores that they are given, for nothing
        self.server_cores: dict[int, float] = {}
        self.where: dict[str, str] = {}  # hosts of its members, by member name
        self.away: list[Member] = []  # that a pause took away
        self.incarnations: dict[str, int] = {}  # the last one of each member, by name

    @property
    def workers(self) -> list[Member]:
        return [member for member in self.members if member.role == "worker"]


class Life:
    """A Brain and its jobs. `said` collects what people would read."""

    def __init__(self, cores: float = 2.0, memory_bytes: int = 8 * GIB, **how: Any) -> None:
        self.brain, self.how = BrainDecider(7, **how), how
        self.log: list[Record] = []
        self.said: list[str] = []
        self.facts: list[Fact] = []
        self.jobs: dict[str, Job] = {}
        self.now = 0.0
        self.sequence = 0
        self.brain_away = False
        self.slow_hosts: dict[str, float] = {}  # host -> share of its usual speed
        self.host_speaks = True  # also while nobody trains there
        self._decide(TookOver("b", 1))
        self.notice(
            host_facts.HostRegistered(
                host="h",
                daemon="d",
                capacity=HostCapacity(cores=cores, memory_bytes=memory_bytes, cores_bind=True),
            )
        )

    # -- the world -----------------------------------------------------------------------------------------------------

    def submit(self, name: str, truth: Truth, workers: int = 0, servers: int = 1, **more: Any) -> Job:
        roles = {"max_count": more.pop("max_workers", 64), "cores": more.pop("cores", 0.0)}
        roles["max_cores"] = more.pop("max_cores", 0.0)
        plan = {"window_s": 4.0, **more.pop("plan", {})}
        spec = JobSpec(
            name=name,
            program=["train"],
            data=DataSpec(train="t", batch_size=100),
            workers=WorkersSpec(count=workers, training=more.pop("training", "asynchronous"), **roles),
            servers=RoleSpec(count=servers, memory_bytes=more.pop("server_memory_bytes", 0)),
            plan=PlanSpec(**plan),
            **{key: more.pop(key) for key in ("priority", "stop", "labels") if key in more},
        )
        return self.hand_in(spec, truth, **more)

    def hand_in(self, spec: JobSpec, truth: Truth, **more: Any) -> Job:
        """Submit a job of this spec."""
        job = Job(spec, truth, **more)
        self.jobs[spec.name] = job
        self.notice(facts.JobSubmitted(job=spec.name, spec=spec, uid=f"{len(self.jobs):012x}"))
        return job

    def wait(self, seconds: float) -> None:
        """Let time pass: samples every 2 s, the Brain's tick every half second."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for name, job in self.jobs.items():
                self._train(name, job)
            if self.host_speaks and self.now % 2.0 == 0.0 and not self.brain_away:
                self._decide(Sampled(_idle_host()))
            if not self.brain_away:
                self._decide(Ticked(round((BEGAN_S + self.now) * 1000)))

    def end(self, name: str) -> None:
        self.notice(facts.JobEnded(job=name, state="completed"))
        del self.jobs[name]

    def _train(self, name: str, job: Job) -> None:
        if job.size is None or not job.members:
            return
        if self.now >= job.live_at:
            job.live_at = float("inf")
            servers = sum(member.role == "ps" for member in job.members)
            if job.rollouts_fail and 0 < job.servers_before < servers:
                self._give_up(name, job)
            self.notice(
                self._placed(facts.PlanSettled(job=name, plan=job.plan, members_plan=job.members_plan))
            )
        workers = job.workers
        if job.live_at != float("inf"):
            workers = workers[: -job.late] if job.late else []
        if not workers:
            return
        total = job.truth(len(workers))
        if job.a_server:
            servers = len(job.members) - len(workers)
            total = min(total, job.a_server * servers)
            job.server_cores = {index: min(total / (job.a_server * servers), 1.0) for index in range(servers)}
        each = total / len(workers)
        if job.needs_cores:
            each *= min(job.size.worker_cores / job.needs_cores, 1.0)
        rates = {
            member: each * job.slow.get(member.index, 1.0) * self.slow_hosts.get(job.where[member.name], 1.0)
            for member in workers
        }
        own = dict(rates)
        if is_synchronous(job.spec):  # all have the pace of the slowest
            rates = dict.fromkeys(rates, min(rates.values()))
        job.done += 0.5 * sum(rates.values())
        job.server_bytes += 0.5 * sum(rates.values()) * job.grows_by
        if job.size.server_memory_bytes and job.server_bytes > job.size.server_memory_bytes:
            job.killed = True
        if self.now % 2.0 == 0.0 and not self.brain_away:
            for member, rate in rates.items():
                self._decide(Sampled(_profile(name, member, rate, job, rate / own[member])))
            self._decide(Sampled(_host(name, job)))
            for member in job.members if job.late else ():
                if member.role == "ps":
                    self._decide(Sampled(_server(name, member)))
        if self.now % 5.0 == 0.0:
            self.notice(
                self._placed(
                    facts.JobReported(
                        job=name, epoch=0, committed=int(job.done), dead_lettered=0, total=job.total
                    )
                )
            )

    def replace_members(self, name: str) -> None:
        """The master replaced lives by itself."""
        job = self.jobs[name]
        job.members_plan += 1
        self.notice(self._placed(_desired(name, job)))

    def _give_up(self, name: str, job: Job) -> None:
        """S14: the new server never starts; the old routing stands."""
        job.members = [m for m in job.members if m.role == "worker" or m.index < job.servers_before]
        job.members_plan += 1
        self.notice(self._placed(_desired(name, job)))

    def _placed(self, fact: Any) -> Any:
        self.sequence += 1
        return fact.replace(position=(self.sequence, 0))

    # -- the master ----------------------------------------------------------------------------------------------------

    def _obey(self, plan: facts.PlanProposed) -> None:
        job = self.jobs[plan.job]
        outcome = {"auto": "passed", "approve": "waits", "observe": "observed"}[plan.mode]
        if job.size is None or not job.members:
            outcome = "passed"
        self.notice(self._placed(facts.PlanChecked(job=plan.job, plan=plan.plan, outcome=outcome)))
        if outcome == "passed" and job.obeys:
            self.apply(plan)

    def apply(self, plan: facts.PlanProposed, by: str = "") -> None:
        job = self.jobs[plan.job]
        job.plan, job.size, job.members_plan = plan.plan, plan.size, job.members_plan + 1
        lives = {member.name: member for member in job.members}
        wanted = [("ps", index) for index in range(plan.servers)]
        wanted += [("worker", index) for index in range(plan.workers)]
        job.servers_before = sum(member.role == "ps" for member in job.members)
        job.members = []
        able = [host for host in plan.hosts if host not in plan.slow_hosts] or plan.hosts
        chosen = {"worker": iter(plan.worker_hosts), "ps": iter(plan.server_hosts)}
        for role, index in wanted:
            life = lives.get(f"{role}-{index}") or self._next(job, Member(role, index, 0))
            if life in plan.replaces:
                life = self._next(job, life)
                job.slow.pop(index, None)
                stays = job.where[life.name] if job.where[life.name] in able else able[0]
                job.where[life.name] = next(chosen[role], stays)
            if life.name not in job.where:
                job.where[life.name] = next(chosen[role], able[len(job.members) % len(able)])
            job.members.append(life)
        job.where = {member.name: job.where[member.name] for member in job.members}
        self.notice(
            self._placed(
                facts.PlanApplied(
                    job=plan.job,
                    plan=plan.plan,
                    workers=plan.workers,
                    servers=plan.servers,
                    size=plan.size,
                    constant=plan.constant,
                    approved_by=by,
                )
            )
        )
        self.notice(self._placed(_desired(plan.job, job)))
        job.live_at = self.now + job.starts_s

    def pause(self, name: str, release: bool = False) -> None:
        """A person pauses a job: its workers leave, and its servers where they are released."""
        job = self.jobs[name]
        self.notice(self._placed(facts.JobPaused(job=name, workers=len(job.workers), release=release)))
        job.away = [member for member in job.members if release or member.role == "worker"]
        job.members = [member for member in job.members if member not in job.away]
        job.live_at = float("inf")
        self.replace_members(name)

    def resume(self, name: str, by_itself: bool = False) -> None:
        """A person resumes it: what left comes again, as the next incarnations; where all did, by a plan, if not `by_itself`."""
        job = self.jobs[name]
        self.notice(self._placed(facts.JobResumed(job=name, workers=0)))
        if not job.members and not by_itself:
            return
        job.members, job.away = [*job.members, *(self._next(job, member) for member in job.away)], []
        job.live_at = self.now + job.starts_s
        self.replace_members(name)

    def _next(self, job: Job, member: Member) -> Member:
        number = job.incarnations[member.name] = job.incarnations.get(member.name, 0) + 1
        return Member(member.role, member.index, number)

    # -- the Brain -----------------------------------------------------------------------------------------------------

    def notice(self, fact: Fact) -> None:
        self._decide(Observed(fact, "F:1"))

    def observe(self, sample: Any) -> None:
        self._decide(Sampled(sample))

    def take_over(self) -> None:
        """A new Brain, its state from the bytes of the log alone."""
        twin = self._twin()
        self.brain = twin
        self.brain_away = False
        self._decide(TookOver("b2", twin.state.term + 1, len(self.log), log_sequence=len(self.log)))

    def same(self) -> bool:
        """Whether replay gives the same state, bit for bit."""
        return self._twin().dump() == self.brain.dump()

    def same_from_snapshot(self) -> bool:
        """Whether a snapshot gives the same state, bit for bit."""
        twin = BrainDecider(7, **self.how)
        twin.restore(self.brain.dump())
        return twin.dump() == self.brain.dump()

    def _twin(self) -> BrainDecider:
        batch = BrainBatch(job="brain", timeline=7, term=1, holder="b", number=1, records=self.log)  # type: ignore[arg-type]
        twin = BrainDecider(7, **self.how)
        for record in msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=BrainBatch).records:
            twin.evolve(record)
        return twin

    def _decide(self, input: Input) -> None:
        decision = self.brain.decide(input, self.now)
        records = decision.effects
        assert_totals_agree(self.brain.state)
        left = []
        for index, record in enumerate(records):
            self.log.append(record)
            left += self.brain.outgoing(record, (len(self.log), index), self.brain.state.term)
        for item in left:
            assert isinstance(item, FactOut)
            self.facts.append(item.fact)
            about = item.fact.host if isinstance(item.fact, HostFact) else item.fact.job
            self.said.append(f"{self.now:6.1f} {about}: {tell(item.fact)}")
            if isinstance(item.fact, facts.PlanProposed):
                self._obey(item.fact)
        if decision.unfinished:
            self._decide(Continued())

    def found(self, kind: type[Any]) -> Iterator[Any]:
        return (fact for fact in self.facts if isinstance(fact, kind))


def _desired(name: str, job: Job) -> facts.MembersDesired:
    desired = [
        DesiredMember(member=m, host=job.where[m.name], command=["x"], resources=Resources())
        for m in job.members
    ]
    return facts.MembersDesired(job=name, term=1, plan=job.members_plan, members=desired)


def _profile(name: str, member: Member, rate: float, job: Job, busy: float) -> WorkerProfile:
    """`busy`: the share of its time in which it does not wait for other workers."""
    samples = round(2 * rate)
    return WorkerProfile(
        window_s=2.0,
        job=name,
        member=member,
        samples=samples,
        batches=samples // 100,
        read_s=2.0 * job.input_share * busy,
        compute_s=2.0 * (1 - job.input_share) * busy,
        barrier_s=2.0 * (1 - busy),
        loss=job.loss,
    )


def _server(name: str, member: Member) -> ServerProfile:
    return ServerProfile(window_s=2.0, job=name, member=member, pulls=9, pushes=9, ignored=0, busy_s=0.1)


def _idle_host() -> HostProfile:
    return HostProfile(
        window_s=2.0, host="h", cores=2.0, cores_used=0.0, memory_bytes=8 * GIB, memory_used_bytes=GIB
    )


def _host(name: str, job: Job) -> HostProfile:
    return HostProfile(
        window_s=2.0,
        host="h",
        cores=2.0,
        cores_used=1.0,
        memory_bytes=8 * GIB,
        memory_used_bytes=GIB,
        processes=[
            ProcessSample(
                job=name,
                member=member,
                pid=1,
                cores_used=(
                    job.size.worker_cores
                    if job.spins
                    else min(job.needs_cores or 0.35, job.size.worker_cores or 64.0)
                )
                if member.role == "worker"
                else job.server_cores.get(member.index, 0.2),
                memory_bytes=int(job.server_bytes),
            )
            for member in job.members
        ],
    )


def tell(fact: Any) -> str:
    """One line: what a person would read, with the numbers."""
    kind = fact.kind()
    hidden = {"job", "cause", "by", "position", "brain_position", "brain_term", "hosts", "masters", "scores"}
    hidden |= {"worker_hosts", "server_hosts"}
    hidden |= {"log_sequence", "resumed_from", "constraints", "predicted_low_90", "predicted_high_90"}
    parts = []
    for field in msgspec.structs.fields(type(fact)):
        value = getattr(fact, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if field.name in hidden or value == default:
            continue
        parts.append(f"{field.name}={plain(value)}")
    return " ".join([kind, *parts])


def plain(value: Any) -> str:
    if isinstance(value, facts.Size):
        memory = f"/{value.server_memory_bytes >> 20}MiB" if value.server_memory_bytes else ""
        cores = f"x{value.worker_cores:g}" if value.worker_cores else ""
        return f"{value.workers}w{cores}{value.servers}p{memory}"
    if isinstance(value, facts.LosingPlan):
        return f"{plain(value.size)}:{value.reason}:{value.throughput:.0f}"
    if isinstance(value, Member):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + " ".join(plain(each) for each in value) + "]"
    return repr(value) if isinstance(value, str) and " " in value else str(value)
