"""What one job should be next, if it were alone: a wish with its reason, prediction and losers; or why it is left as it is.

Fed by a job's state, feeds the round, where wishes meet capacity and quotas. The order: pins and pauses, one change at a time,
cooldown, probes until the model can tell sizes apart, then the plan space. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rover_bus.brain.decisions.lifecycle import ChangeHistory, may_change
from rover_bus.brain.decisions.plans import Allocation, Decision, Loser, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import JobView, Limits, Rules, decide_scaling
from rover_bus.brain.decisions.scoring import ScalePolicy
from rover_bus.brain.models.samples import Configurations, NotEnough
from rover_bus.brain.models.throughput import Prediction
from rover_bus.brain.predicting import OverruledModel, fit_job, place_of
from rover_bus.brain.state import KnownJob
from rover_bus.events.facts import LosingPlan, Size
from rover_bus.events.plan_facts import PlanStep

PROBE_WINDOWS = 2  # a probe is measured so long
PROBED_SIZES = 3  # different counts of workers tell the terms apart
UNREST = (
    0.5  # windows of one size that differ by more than this share of their median tell sizes apart no more
)
DECLINED_S = 120.0  # a plan that was observed or rejected is not proposed again so soon
WORTH_WINDOWS = 15  # a job that ends sooner is not changed any more
CORES_FULL, CORES_IDLE = 0.85, 0.4  # shares of a worker's cores above and below which it gets others
SCALE_S = 3.0  # what a change of workers costs a local job
RULES = Rules(policy=ScalePolicy(scale_s=SCALE_S))


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wants to be. Throughput in samples a second."""

    size: Size
    step: PlanStep
    constant: str
    detail: str = ""
    measured: float = 0.0
    predicted: float = 0.0
    low_90: float = 0.0
    high_90: float = 0.0
    scores: dict[str, float] = {}
    losers: list[LosingPlan] = []
    score: float = 0.0
    at_risk: bool = False
    incident: str = ""


class Left(msgspec.Struct, frozen=True):
    """Nothing is wished for: a constant and words."""

    constant: str
    detail: str = ""


def wish_of(job: KnownJob, cores_left: float) -> Wish | Left:
    """Say what a running job wants. `cores_left`: what it may use of the cluster, its own included."""
    held, spec = job.held, job.spec
    if held is None or job.paused or not spec:
        return Left("paused" if job.paused else Reason.CHANGE_IN_FLIGHT)
    if job.change is not None:
        return Left(Reason.CHANGE_IN_FLIGHT)
    if held.workers == 0:
        rest = job.rest or held.replace(workers=1)
        return Wish(size=rest, step="room", constant=Reason.ROOM_AGAIN, detail="it goes on where it was")
    vary = spec.workers.max_cores > spec.workers.cores > 0
    if spec.workers.count and not vary:
        return Left(Reason.CONSTRAINED_BY_USER, f"workers are pinned to {spec.workers.count} by the user")
    if len(job.recent) < PROBE_WINDOWS:
        return Left(Reason.NOT_ENOUGH_SAMPLES, f"{len(job.recent)} of {PROBE_WINDOWS} windows at this size")
    if remaining_s(job) < WORTH_WINDOWS * spec.plan.window_s:
        return Left(Reason.KEEP, "it ends before a change would pay")
    if vary and (more := _cores(job, cores_left)) is not None:
        return more
    if spec.workers.count:
        return Left(Reason.CONSTRAINED_BY_USER, f"workers are pinned to {spec.workers.count} by the user")
    probe = _probe(job, cores_left)
    if probe is not None:
        return probe
    history = ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    if not _probing_ended_now(job) and (waits := may_change(history, job.clock_s, spec.plan.cooldown_s)):
        return Left(waits)
    return _scale(job, cores_left)


def remaining_s(job: KnownJob) -> float:
    """Seconds to the end at the present speed; infinite while the total is not known."""
    if not job.total or job.throughput <= 0:
        return float("inf")
    return max(job.total - job.committed, 0) / job.throughput


# -- probes ------------------------------------------------------------------------------------------------------------


def _probe(job: KnownJob, cores_left: float) -> Wish | None:
    """The next probe around the first size, until three counts of workers were measured."""
    tried = {row.size.workers for row in job.tried}
    if len(tried) >= PROBED_SIZES or not job.tried:
        return None
    if not job.cold and not isinstance(fit_job(job), NotEnough):
        return None
    held = job.held
    assert held is not None
    for workers in _around(job.tried[0].size.workers, job.spec.workers.max_count):
        size = held.replace(workers=workers)
        if workers in tried or job.charge(size).cores > cores_left or _declined(job, size):
            continue
        said = _predicted(job, fit_job(job), size)
        return Wish(
            size=size,
            step="probe",
            constant=Reason.PROBE,
            detail=f"{len(tried)} of {PROBED_SIZES} sizes are measured: the model must tell them apart",
            measured=job.throughput,
            predicted=said[0],
            low_90=said[1],
            high_90=said[2],
        )
    return None


def _around(first: int, most: int) -> Iterator[int]:
    step = max(1, round(first / 4))
    for workers in (first + step, first + 2 * step if first == 1 else first - step, first + 2 * step):
        if 1 <= workers <= most:
            yield workers


def _probing_ended_now(job: KnownJob) -> bool:
    """The last probe is over: what follows is what the probes were for, and needs no cooldown."""
    return job.cold and len(job.tried) == PROBED_SIZES and not job.ceilings and job.rollbacks == 0


def _predicted(job: KnownJob, model: OverruledModel | NotEnough, size: Size) -> tuple[float, float, float]:
    """Prediction of a size with its interval; before there is a model, perfect scaling until tried (`algorithms.md §7`)."""
    if isinstance(model, NotEnough):
        assert job.held is not None
        speed = job.throughput * size.workers / max(job.held.workers, 1)
        return speed, speed / 2, speed
    return _spoken(model.predict(Configurations.from_list([place_of(job, size)])), 0)


def _spoken(said: Prediction, row: int) -> tuple[float, float, float]:
    columns = (said.throughput, said.low_90, said.high_90)
    middle, low, high = (round(float(column[row]), 3) for column in columns)
    return middle, low, high


# -- cores of running workers ------------------------------------------------------------------------------------------


def _cores(job: KnownJob, cores_left: float) -> Wish | None:
    """More cores for workers that use up theirs, fewer for those that do not; judged by what it brings, like any change.

    "Scale from used + extra + safety with a dead-band, one strategy at a time" (Primus; `algorithms.md §7`).
    """
    held, spec = job.held, job.spec.workers
    assert held is not None
    history = ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    if not held.workers or may_change(history, job.clock_s, job.spec.plan.cooldown_s):
        return None
    now, used = held.worker_cores, job.cores_used.get("worker", 0.0)
    wanted = now
    if used > CORES_FULL * now:
        wanted = min(now * 2, spec.max_cores)
    elif used < CORES_IDLE * now:
        wanted = max(now / 2, spec.cores)
    size = held.replace(worker_cores=wanted)
    failed = any(size == other for other, _, _ in job.ceilings)
    if wanted == now or failed or _declined(job, size) or job.charge(size).cores > cores_left:
        return None
    grows = wanted > now
    return Wish(
        size=size,
        step="scale",
        constant=Reason.CORES_USED_UP if grows else Reason.LESS_COST,
        detail=f"a worker keeps {used:.2f} of {now:g} cores busy: {wanted:g} each, without a restart",
        measured=job.throughput,
        predicted=job.throughput * (wanted / now if grows else 1.0),
        low_90=job.throughput,
        high_90=job.throughput * max(wanted / now, 1.0),
    )


# -- scaling -----------------------------------------------------------------------------------------------------------


def _scale(job: KnownJob, cores_left: float) -> Wish | Left:
    held = job.held
    assert held is not None
    unrest = (max(job.recent) - min(job.recent)) / max(job.throughput, 1e-9)
    if unrest > UNREST:
        return Left(Reason.UNCERTAIN, f"its windows differ by {unrest:.0%}: something else is changing")
    model = fit_job(job)
    if isinstance(model, NotEnough):
        return Left(Reason.NOT_ENOUGH_SAMPLES, model.reason)
    decision = decide_scaling(view_of(job), model, space_of(job), RULES, limits_of(job, cores_left))
    size = size_after(held, decision.allocation)
    if size == held:
        same = decision.reason in (Reason.MORE_THROUGHPUT, Reason.LESS_COST)  # only its own figures moved
        return Left(Reason.DEAD_BAND if same else decision.reason)
    if _declined(job, size):
        return Left("declined", "this plan was observed or rejected a while ago")
    said = _predicted(job, model, size)
    return Wish(
        size=size,
        step="scale",
        constant=decision.reason,
        detail=decision.detail,
        measured=job.throughput,
        scores={name: round(value, 6) for name, value in decision.scores.items() if np.isfinite(value)},
        losers=losers_of(job, decision, model),
        score=min(decision.scores.get("score", 0.0), 1e6),
        predicted=said[0],
        low_90=said[1],
        high_90=said[2],
    )


def view_of(job: KnownJob) -> JobView:
    """The job as scaling sees it."""
    assert job.held is not None
    left = max(job.total - job.committed, 0) if job.total else 1e12
    return JobView(
        held=job.charge(job.held),
        batch_size=float(job.spec.data.batch_size),
        remaining_samples=float(left),
        measured_throughput=job.throughput,
    )


def space_of(job: KnownJob) -> PlanSpace:
    """Every count of workers; servers and cores as they are (servers change by rollouts)."""
    assert job.held is not None
    charged = job.charge(job.held)
    return PlanSpace(
        workers=tuple(range(1, min(job.spec.workers.max_count, 256) + 1)),
        servers=(job.held.servers,),
        worker_cores=(charged.worker_cores,),
        server_cores=(charged.server_cores,),
    )


def limits_of(job: KnownJob, cores_left: float) -> Limits:
    """What a plan of this job may not pass."""
    assert job.held is not None
    return Limits(
        workers=job.spec.workers.count,
        servers=job.held.servers,
        max_workers=job.spec.workers.max_count,
        max_servers=max(job.spec.servers.max_count, job.held.servers),
        cores=max(cores_left, job.charge(job.held).cores),
    )


def size_after(held: Size, allocation: Allocation) -> Size:
    """A size with the counts of an allocation: limits of members stay what they are."""
    return held.replace(workers=allocation.workers, servers=allocation.servers)


def losers_of(job: KnownJob, decision: Decision, model: OverruledModel) -> list[LosingPlan]:
    """The alternatives as a plan carries them, each with what it was believed to reach."""
    assert job.held is not None
    losers: list[Loser] = [loser for loser in decision.losers if np.isfinite(loser.score)]
    if not losers:
        return []
    sizes = [size_after(job.held, loser.allocation) for loser in losers]
    said = model.predict(Configurations.from_list([place_of(job, size) for size in sizes]))
    return [
        LosingPlan(
            size=size,
            reason=loser.reason,
            score=round(loser.score, 6),
            throughput=round(float(said.throughput[row]), 3),
        )
        for row, (size, loser) in enumerate(zip(sizes, losers, strict=True))
    ]


def _declined(job: KnownJob, size: Size) -> bool:
    return any(size == other and job.clock_s - at_s < DECLINED_S for other, at_s in job.declined)
