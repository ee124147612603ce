"""The policy `optimus`: jobs that chose it are sized by marginal gain over worker and server counts, all of them together.

Fed by the round (`choosing`) with what other policies leave, feeds `granting` with wishes. The algorithm is `decisions.optimus`,
which the simulator's baseline runs too; here stands which curve a job has live. Members keep their cores and memory. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.optimus import (
    Capacity,
    OptimusJob,
    Speed,
    allocate,
    fit_curve,
    is_straggler,
    is_worth,
)
from rover_bus.brain.decisions.plans import Allocation, PlanDecision
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.rounds import Contender
from rover_bus.brain.rules import RULES
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.starting import StartOffer
from rover_bus.brain.state import BrainState, FamilySample, KnownJob, counted
from rover_bus.brain.wishes import CapacityLeft, Wish, declined, predicted, size_after
from rover_bus.events.facts import LosingPlan, Size
from rover_bus.events.identity import Member

YOUNG_S = 600.0  # the curve of a younger job is taken for uncertain
SAME_CORES = 0.05  # by how much a size may differ that counts as the same container


def goes_by_gain(job: KnownJob) -> bool:
    """Return whether a job is sized by Optimus: its curve is of workers and servers, and says nothing of a job without servers."""
    return job.spec.plan.policy == "optimus" and job.spec.has_servers


def choose_by_gain(
    own: Mapping[str, Contender],
    state: BrainState,
    standing: StandingModels,
    starts: Mapping[str, StartOffer],
    room: Budget,
) -> dict[str, Wish | CapacityLeft]:
    """Size the jobs of one priority that chose Optimus. `room`: what they may hold together."""
    curves = {name: curve_of(state.jobs[name], each.view.held, standing) for name, each in own.items()}
    named = [name for name, curve in curves.items() if curve is not None]
    jobs = [_as_optimus(state.jobs[name], own[name], curve) for name in named if (curve := curves[name])]
    decisions = allocate(jobs, Capacity(max(room.cores, 1e-9), max(room.memory_bytes, 1.0)))
    taken = sum(decision.allocation.cores for decision in decisions)
    left = Budget(room.cores - taken, room.memory_bytes)
    answers = dict[str, Wish | CapacityLeft]()
    for name, job, decision in zip(named, jobs, decisions, strict=True):
        known = state.jobs[name]
        if name in starts:
            answers[name] = _start(known, starts[name], job, decision)
        else:
            answers[name] = _change(known, own[name], job, decision, standing, left)
    return answers


def curve_of(job: KnownJob, held: Allocation, standing: StandingModels) -> Speed | None:
    """Return Optimus' curve over what runs of the job's family showed with such containers; None where nothing was shown."""
    measured: dict[tuple[int, int], list[float]] = {}
    for sample in standing.shown(job):
        if _alike(sample, held):
            measured.setdefault((sample.at.workers, sample.at.ps), []).append(sample.throughput)
    medians = {counts: median(speeds) for counts, speeds in measured.items()}
    if not medians:
        return None
    synchronous = job.spec.workers.training == "synchronous"
    return fit_curve(medians, float(job.spec.data.batch_size), synchronous)


def stragglers_by_half(job: KnownJob) -> list[Member]:
    """Return the workers below half of the median rate: the rule of Optimus. With two workers it sees a halt only."""
    rates = {index: pace.share * pace.past for index, pace in job.paces.items() if pace.past}
    slow = {index for index, rate in rates.items() if is_straggler(rate, list(rates.values()))}
    return [member for member in job.members if member.role == "worker" and member.index in slow]


def _alike(sample: FamilySample, held: Allocation) -> bool:
    pairs = ((sample.at.worker_cores, held.worker_cores), (sample.at.ps_cores, held.server_cores))
    return all(abs(one - other) <= SAME_CORES * max(one, other) for one, other in pairs)


def _as_optimus(job: KnownJob, contender: Contender, curve: Speed) -> OptimusJob:
    held, limits = contender.view.held, contender.limits
    most = limits.max_workers
    if limits.cores != float("inf") and held.worker_cores:
        most = min(most, int((limits.cores - held.servers * held.server_cores) / held.worker_cores))
    return OptimusJob(
        speed=curve,
        remaining=_remaining(contender, curve),
        container=held,
        young=job.clock_s < YOUNG_S,
        max_workers=max(limits.workers or most, 1),
        max_servers=limits.servers or limits.max_servers,
    )


def _remaining(contender: Contender, curve: Speed) -> float:
    """Samples left; an unknown number counts as the reference time at the present size."""
    left, held = contender.view.remaining_samples, contender.view.held
    return left if left != float("inf") else RULES.policy.reference_s * curve(held.workers, held.servers)


def _change(
    job: KnownJob,
    contender: Contender,
    own: OptimusJob,
    decision: PlanDecision,
    standing: StandingModels,
    left: Budget,
) -> Wish | CapacityLeft:
    held, wanted = job.held, decision.allocation
    assert held is not None
    if not wanted.workers:
        return CapacityLeft(Reason.NO_CAPACITY, "Optimus finds no room for one worker and one server")
    size = size_after(held, wanted)
    if contender.limits.workers:
        size = size.replace(workers=contender.limits.workers)
    size = _no_less_than_asked(size, job)
    if size.shape == held.shape:
        return CapacityLeft(Reason.KEEP, "no worker or server more would gain anything by Optimus' curve")
    said = f"{counted(size.workers, 'worker')} and {counted(size.servers, 'server')}"
    if not is_worth(own.speed, own.remaining, contender.view.held, job.charge(size), job.change_s):
        return CapacityLeft(
            Reason.DEAD_BAND, f"{said} would save less time by Optimus' curve than the change costs"
        )
    if declined(job, size):
        return CapacityLeft(Reason.DECLINED, "this plan was observed or rejected a while ago")
    return _wish(job, own, standing, size, left)


def _no_less_than_asked(size: Size, job: KnownJob) -> Size:
    """The size with the least of each role that the job asks for; `granting` says whether there is room for that."""
    spec = job.spec
    return size.replace(
        workers=max(size.workers, spec.workers.least), servers=max(size.servers, spec.servers.least)
    )


def _start(job: KnownJob, start: StartOffer, own: OptimusJob, decision: PlanDecision) -> Wish | CapacityLeft:
    if not decision.allocation.workers:
        return CapacityLeft(Reason.NO_CAPACITY, "Optimus finds no room for one worker and one server")
    size = size_after(start.first, decision.allocation)
    if start.contender.limits.workers:
        size = size.replace(workers=start.contender.limits.workers)
    size = _no_less_than_asked(size, job)
    reached = round(own.speed(size.workers, size.servers), 3)
    return Wish(
        size=size,
        step="start",
        constant=Reason.OPTIMUS_MARGINAL_GAIN,
        detail="marginal gain of one member more, by Optimus, from what its family has shown",
        predicted=reached,
        low_90=reached,
        high_90=reached,
    )


def _wish(job: KnownJob, own: OptimusJob, standing: StandingModels, size: Size, left: Budget) -> Wish:
    """The plan with what its curve promises; the interval is that of the job's own model, as far as it has one."""
    middle = own.speed(size.workers, size.servers)
    _, low, high = predicted(job, standing.of(job), size)
    return Wish(
        size=size,
        step="scale",
        constant=Reason.OPTIMUS_MARGINAL_GAIN,
        detail="marginal gain of one member more, by Optimus",
        measured=job.throughput,
        predicted=round(middle, 3),
        low_90=round(min(low, middle), 3),
        high_90=round(max(high, middle), 3),
        losers=list(_losers(own, size, left)),
    )


def _losers(own: OptimusJob, size: Size, left: Budget) -> Iterator[LosingPlan]:
    """The step that comes next for either role: it would gain nothing, or there is no room for it."""
    speed = own.speed(size.workers, size.servers)
    for more, cores in (
        (size.replace(workers=size.workers + 1), own.container.worker_cores),
        (size.replace(servers=size.servers + 1), own.container.server_cores),
    ):
        reached = own.speed(more.workers, more.servers)
        if more.workers <= own.max_workers and more.servers <= own.max_servers:
            gains = reached > speed
            yield LosingPlan(
                size=more,
                reason=Reason.NO_CAPACITY if gains and cores > left.cores else Reason.LESS_GAIN,
                score=round(reached / max(speed, 1e-12) - 1, 6),
                throughput=round(reached, 3),
            )
