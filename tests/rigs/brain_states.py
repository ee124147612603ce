"""Small states of the Brain: jobs that wait or run at a measured size, and the hosts that they share."""

from __future__ import annotations

import msgspec

from rover_bus.brain.choosing import choose_sizes
from rover_bus.brain.decisions.pieces import finish
from rover_bus.brain.decisions.plans import PlanDecision, PlanSpace
from rover_bus.brain.decisions.rounds import Contender, deciding_round
from rover_bus.brain.decisions.scaling import (
    DEFAULT_RULES,
    NO_LIMITS,
    JobView,
    Limits,
    Predictor,
    ScalingRules,
    choose_alone,
    plan_front,
)
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.starting import offer_start
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

GIB = 1 << 30


def spec_of(name: str, priority: int = 0, memory_bytes: int = 0, train: str = "t") -> JobSpec:
    return JobSpec(
        name=name,
        program=["train"],
        data=DataSpec(train=train, batch_size=100),
        workers=WorkersSpec(max_count=16, cores=0.5),
        servers=RoleSpec(max_count=4, cores=0.5, memory_bytes=memory_bytes),
        priority=priority,
    )


def size(workers: int, servers: int = 1, cores: float = 0.5, server_bytes: int = 0) -> Size:
    return Size(
        workers=workers,
        servers=servers,
        worker_cores=cores,
        server_cores=0.5,
        server_memory_bytes=server_bytes,
    )


def waits(name: str, priority: int = 0) -> KnownJob:
    return KnownJob(name, spec_of(name, priority))


def runs(name: str, held: Size, host: str = "h", priority: int = 0) -> KnownJob:
    """A job that is open: settled long ago, measured at three sizes of 1 / (1 / (3600 w) + 1 / 36000)."""
    job = KnownJob(name, spec_of(name, priority), plan=3, held=held, clock_s=1000.0, settled_s=0.0)
    job.tried = [TriedSize(size=size(w), weight=3.0, mean=speed(w)) for w in (1, 2, 4, held.workers)]
    job.recent = [speed(held.workers)] * 3
    job.total, job.committed = 1_000_000_000, 1_000_000
    members = [Member("worker", i, 1) for i in range(held.workers)]
    job.members = [*members, *(Member("ps", i, 1) for i in range(held.servers))]
    job.where = {member.name: host for member in job.members}
    return job


def speed(workers: int) -> float:
    return 1.0 / (1 / (3600.0 * workers) + 1 / 36000.0)


def cluster(
    *jobs: KnownJob, cores: float = 8.0, hosts: str = "h", memory_bytes: int = 64 * GIB
) -> BrainState:
    each = HostCapacity(cores=cores, memory_bytes=memory_bytes)
    state = BrainState(timeline=1, hosts=dict.fromkeys(hosts, each), jobs={job.uid: job for job in jobs})
    for job in jobs:
        if job.held is not None:
            charged = job.charge(job.held)
            for host in set(job.where.values()):
                job.load = {host: (charged.cores, float(charged.memory_bytes))}
                former = state.host_load.get(host, (0.0, 0.0))
                state.host_load[host] = former[0] + charged.cores, former[1] + charged.memory_bytes
    return state


def round_of(state: BrainState) -> dict[str, object]:
    standing = StandingModels(state)
    starts = {
        name: offer_start(name, job, state, {}, standing) for name, job in state.jobs.items() if not job.plan
    }
    turns = [name for name, job in state.jobs.items() if job.plan]
    return dict(choose_sizes(turns, state, {}, standing, starts))


def choose_size(
    job: JobView,
    model: Predictor,
    space: PlanSpace,
    rules: ScalingRules = DEFAULT_RULES,
    limits: Limits = NO_LIMITS,
) -> PlanDecision:
    """What a job takes alone: its front, and the choice on it; the model stands in where nothing was measured."""
    if not job.measured_throughput:
        said = model.predict(Configurations.from_list([job.held.configuration(job.batch_size)]))
        job = msgspec.structs.replace(job, measured_throughput=float(said.throughput[0]))
    return choose_alone(job, plan_front(job, model, space, rules, limits), rules)


def decide_round(
    contenders: list[Contender],
    cores: float,
    memory_bytes: float,
    space: PlanSpace,
    rules: ScalingRules = DEFAULT_RULES,
) -> list[PlanDecision]:
    """One choice across jobs, all of it at once."""
    return finish(deciding_round(contenders, cores, memory_bytes, space, rules))
