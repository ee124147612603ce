"""What a job of which too little is known shall try next: relief first, then the size that teaches most.

Fed by what a job holds, how its members use their cores and what was measured; feeds cold starts (`algorithms.md §4`: "a small
start, then probes that double as identification of the model"). Apart from `models.probing`, which knows nothing of what a probe
costs a running job: here nothing beyond the free capacity is tried, a member that its cores hold back gets more of them at once,
and all probes stay around one anchor, because probes that start from probes walk away from where the job should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rover_bus.brain.decisions.plans import Allocation, PlanDecision, PlanSpace
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import NO_LIMITS, Limits
from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.probing import next_probe
from rover_bus.brain.models.samples import Configuration, Configurations, Observations

_GROWTH, _TREBLE, _FEWER = 2.0, 3.0, 3 / 4


class ProbeView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that may be probed. `anchor`: the size around which it is; `free_cores`: what a probe may hold more than it holds now.

    `workers_held_back`, `servers_held_back`: whether these members use all the cores that they have.
    """

    held: Allocation
    anchor: Allocation
    batch_size: float
    free_cores: float = 0.0
    workers_held_back: bool = False
    servers_held_back: bool = False
    limits: Limits = NO_LIMITS


def decide_probe(
    job: ProbeView,
    space: PlanSpace,
    form: Form,
    seen: Observations,
    allowed: Callable[[Allocation], bool] = lambda _: True,
) -> PlanDecision | None:
    """Decide the next size to measure; None when nothing fits that was not measured yet.

    A job is probed upwards where there is room, which slows no job and is given back at once. More cores than a synchronous job's
    members use teach nothing (`models.core_use`): upwards it is probed with more members.

    Memory limits stay as they are: a probe with another count of servers needs the tables moved. `allowed` is asked last, of the
    size that would teach most: whether hosts have room for it, say.
    """
    relief = _relief(job, space)
    if (
        relief is not None
        and not _measured([relief], job, seen)[0]
        and _fits(relief, job)
        and allowed(relief)
    ):
        return PlanDecision(allocation=relief, reason=Reason.PROBE, detail="members use all their cores")
    options = [option for option in _around(job, space) if _fits(option, job)]
    if len(space.worker_cores) > 1 or len(space.server_cores) > 1:  # these tell sizes apart as well
        options = [option for option in options if _keeps_members(option, job)]
    fresh = [o for o, known in zip(options, _measured(options, job, seen), strict=True) if not known]
    if not fresh:
        return None
    fresh = [option for option in fresh if _costs_nothing(option, job.held, form)] or fresh
    while fresh:
        at = Configurations.from_list([option.configuration(job.batch_size) for option in fresh])
        best = fresh.pop(next_probe(at, form, seen))
        if allowed(best):
            return PlanDecision(allocation=best, reason=Reason.PROBE, detail="teaches most")
    return None


def relieved_anchor(job: ProbeView, space: PlanSpace) -> Allocation:
    """The anchor, moved up to the cores that held-back members are given."""
    relief = _relief(job, space)
    if relief is None:
        return job.anchor
    return job.anchor.replace(
        worker_cores=max(job.anchor.worker_cores, relief.worker_cores),
        server_cores=max(job.anchor.server_cores, relief.server_cores),
    )


def _relief(job: ProbeView, space: PlanSpace) -> Allocation | None:
    """What is held, with more cores for the members that use all of theirs."""
    held = job.held
    wanted = held.replace(
        worker_cores=_up(space.worker_cores, held.worker_cores)
        if job.workers_held_back
        else held.worker_cores,
        server_cores=_up(space.server_cores, held.server_cores)
        if job.servers_held_back
        else held.server_cores,
    )
    return wanted if wanted != held else None


def _around(job: ProbeView, space: PlanSpace) -> list[Allocation]:
    """Sizes around the anchor: counts doubled or three quarters, cores one step up or down. A single worker has no fewer: its
    double and its treble are tried.
    """
    anchor, limits = job.anchor, job.limits
    other = _FEWER if anchor.workers > min(space.workers) else _TREBLE
    workers = {anchor.workers} | {
        _times(space.workers, anchor.workers, factor) for factor in (other, _GROWTH)
    }
    servers = {anchor.servers, _up(space.servers, anchor.servers)}
    return [
        job.held.replace(workers=int(w), servers=int(p), worker_cores=lw, server_cores=lp)
        for w in sorted(w for w in workers if w <= limits.max_workers)
        for p in sorted(p for p in servers if p <= limits.max_servers)
        for lw in _near(space.worker_cores, anchor.worker_cores)
        for lp in _near(space.server_cores, anchor.server_cores)
    ]


def _fits(option: Allocation, job: ProbeView) -> bool:
    within = option.cores - job.held.cores <= max(job.free_cores, 0.0) and option.cores <= job.limits.cores
    return within and option != job.held


def _keeps_members(option: Allocation, job: ProbeView) -> bool:
    """Whether no member goes: in a crowded cluster it may not come back for long."""
    return option.workers >= job.held.workers and option.servers >= job.held.servers


def _costs_nothing(option: Allocation, held: Allocation, form: Form) -> bool:
    """Whether a probe slows no job, and teaches something."""
    more_members = option.members > held.members
    return _takes_nothing(option, held) and (more_members or form.mode == "async")


def _takes_nothing(option: Allocation, held: Allocation) -> bool:
    """Whether every count and every container stays or grows: such a probe slows no job."""
    return (
        option.workers >= held.workers
        and option.servers >= held.servers
        and option.worker_cores >= held.worker_cores
        and option.server_cores >= held.server_cores
    )


def _measured(options: Sequence[Allocation], job: ProbeView, seen: Observations) -> list[bool]:
    """Which options were measured already; the batch size is the job's and does not tell them apart."""
    known = {(c.workers, c.ps, c.worker_cores, c.ps_cores) for c in seen.configurations}
    return [_key(option.configuration(job.batch_size)) in known for option in options]


def _key(at: Configuration) -> tuple[int, int, float, float]:
    return (at.workers, at.ps, at.worker_cores, at.ps_cores)


def _up(axis: Sequence[float], value: float) -> float:
    """The largest step up that is no more than doubling; the next one where even that is more."""
    return _times(axis, value, _GROWTH)


def _times(axis: Sequence[float], value: float, factor: float) -> float:
    """The point of an axis nearest below a multiple of a value; above it at least the next one, below it the value itself."""
    if factor < 1:
        return max([v for v in axis if v <= value * factor] or [value])
    above = [v for v in axis if v > value]
    return max([v for v in above if v <= value * factor] or above[:1] or [value])


def _near(axis: Sequence[float], value: float) -> list[float]:
    """The value and its neighbours on an axis."""
    below = [v for v in axis if v < value]
    above = [v for v in axis if v > value]
    return sorted({value, *(below[-1:]), *(above[:1])})
