"""What one job asks for by itself: a wish with its reason and prediction, or why it is left as it is, or that it may be changed.

Fed by a job's state, feeds the round (`choosing`), where those that may be changed compete. The order: pins and pauses, one change
at a time, probes until the model can tell sizes apart, cooldown, unrest; then its size is open. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rover_bus.brain.decisions.lifecycle import ChangeHistory, may_change
from rover_bus.brain.decisions.plans import Allocation, PlanSpace
from rover_bus.brain.decisions.probes import ProbeView, decide_probe, relieved_anchor
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scaling import JobView, Limits
from rover_bus.brain.models.core_use import HELD_BACK
from rover_bus.brain.models.samples import Configurations, NotEnough
from rover_bus.brain.models.throughput import Prediction
from rover_bus.brain.predicting import OverruledModel, form_of, observations_of, place_of
from rover_bus.brain.spaces import affordable, busy_cores, space_of, steps_of, usable
from rover_bus.brain.standing_models import PROBED_SIZES, StandingModels
from rover_bus.brain.state import UNREST, KnownJob, TriedSize
from rover_bus.events.facts import LosingPlan, Size
from rover_bus.events.plan_facts import PlanStep

ANY_SIZE: Callable[[Size], bool] = lambda _: True  # noqa: E731
PROBE_WINDOWS = 2  # a probe is measured so long
MOST_PROBES = 8
WORTH_WINDOWS = 15  # a job that ends sooner is not changed any more
CORES_IDLE = 0.4  # share of a worker's cores below which it gives half of them back


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wants to be. Throughput in samples a second."""

    size: Size
    step: PlanStep
    constant: Reason
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
    others: list[Size] = []  # the next best, for where hosts have no room for this one


class CapacityLeft(msgspec.Struct, frozen=True):
    """Nothing is wished for: a constant and words."""

    constant: Reason
    detail: str = ""


def before_choice(
    job: KnownJob, cores_left: float, models: StandingModels, fits: Callable[[Size], bool] = ANY_SIZE
) -> Wish | CapacityLeft | None:
    """Say what a job asks for by itself, or why it is left; None when its size is open.

    `cores_left`: its own and what is free; `fits`: whether hosts have room for a size.
    """
    held, spec = job.held, job.spec
    if held is None or job.paused or not spec:
        return CapacityLeft(Reason.PAUSED if job.paused else Reason.CHANGE_IN_FLIGHT)
    if job.change is not None and not may_supersede(job):
        return CapacityLeft(Reason.CHANGE_IN_FLIGHT)
    if (answer := _room_again(job, cores_left)) is not None:
        return answer
    space = space_of(job, models.varied_servers(job))
    if len(space) == 1 and spec.workers.count:
        return CapacityLeft(
            Reason.CONSTRAINED_BY_USER, f"workers are pinned to {spec.workers.count} by the user"
        )
    if len(job.recent) < PROBE_WINDOWS:
        return CapacityLeft(
            Reason.NOT_ENOUGH_SAMPLES, f"{len(job.recent)} of {PROBE_WINDOWS} windows at this size"
        )
    if job.remaining_s < WORTH_WINDOWS * job.window_s:
        return CapacityLeft(Reason.KEEP, "it ends before a change would pay")
    if models.wants_samples(job, _is_held_back(job, cores_left, space)):
        probe = next_to_measure(job, cores_left, models, fits)
        if probe is not None:
            return probe
    history = ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    if not _finds_its_size(job, models) and (waits := may_change(history, job.clock_s, spec.plan.cooldown_s)):
        return CapacityLeft(waits)
    if isinstance(models.of(job), NotEnough) and (less := _idle_cores(job)) is not None:
        return less  # where a model knows what fewer cores would cost, the round weighs that
    if job.unrest > UNREST:
        return CapacityLeft(
            Reason.UNCERTAIN, f"its windows differ by {job.unrest:.0%}: something else is changing"
        )
    return None


def _room_again(job: KnownJob, cores_left: float) -> Wish | CapacityLeft | None:
    """What a job asks for that made room for others: all that it had, once there is room.

    A paused one asks for it always; one whose user fixed its workers, for as many as there is room for.
    """
    held = job.held
    assert held is not None
    rest = job.rest or (held if held.workers else held.replace(workers=1))
    if rest.workers <= held.workers:
        return None
    each = max(
        job.charge(held).worker_cores, 1e-9
    )  # without a limit what they used counts, and that may be nothing
    fits = held.workers + int(max(cores_left - job.charge(held).cores, 0.0) / each + 1e-9)
    if held.workers and fits < rest.workers:
        if not job.spec.workers.count:
            return None  # the round gives it what there is
        if fits <= held.workers:
            missing = (
                f"{held.workers} of {rest.workers} workers: the others made room, and it is not free again"
            )
            return CapacityLeft(Reason.NO_CAPACITY, missing)
        rest = rest.replace(workers=fits)
    if declined(job, rest):
        return CapacityLeft(Reason.DECLINED, "this plan was observed or rejected a while ago")
    whole = "it goes on where it was" if rest == (job.rest or rest) else "it goes on with what is free"
    return Wish(size=rest, step="room", constant=Reason.ROOM_AGAIN, detail=whole)


def may_supersede(job: KnownJob) -> bool:
    """Whether the change under way waits for a person and is not what would be asked for now: its members changed, or it is old.

    An operator at night shall find one plan that is true, not the first of a row that are not.
    """
    change = job.change
    if change is None or not change.waits:
        return False
    return (
        change.members_plan != job.members_plan or job.clock_s - change.since_s >= job.spec.plan.renew_after_s
    )


# -- probes ------------------------------------------------------------------------------------------------------------


def _is_held_back(job: KnownJob, cores_left: float, space: PlanSpace) -> bool:
    """Whether members use all the cores that they have, and may have more."""
    if not _measured(job):
        return False
    view = probe_view(job, cores_left)
    return relieved_anchor(view, space) != view.anchor


def _chosen(job: KnownJob) -> list[TriedSize]:
    """The sizes that plans asked for, of those that were measured."""
    return [row for row in job.tried if not row.passing]


def _measured(job: KnownJob) -> list[TriedSize]:
    return [row for row in job.tried if row.mean > 0 and row.size.workers]


def next_to_measure(
    job: KnownJob, cores_left: float, models: StandingModels, fits: Callable[[Size], bool]
) -> Wish | None:
    """The next size to measure: more cores for members that use all of theirs; else, while too little is known, what teaches most.

    One step at most doubles what is held (S17).
    """
    held, known = job.held, _measured(job)
    assert held is not None
    if not known or job.probes >= MOST_PROBES:
        return None
    view, space = probe_view(job, cores_left), space_of(job, models.varied_servers(job))
    relief = relieved_anchor(view, space) != view.anchor
    size = _most_telling(job, view, space, known, fits)
    if size is None:
        return None
    said = predicted(job, models.of(job), size)
    cores = size.replace(workers=held.workers, servers=held.servers) != held and relief
    of = f"of {PROBED_SIZES} " if len(known) < PROBED_SIZES else ""
    detail = f"{len(known)} {of}sizes are measured: the model must tell them apart"
    return Wish(
        size=size,
        step="probe",
        constant=Reason.CORES_USED_UP if cores else Reason.PROBE,
        detail=_cores_full(job, size) if cores else detail,
        measured=job.throughput,
        predicted=said[0],
        low_90=said[1],
        high_90=said[2],
    )


def _most_telling(
    job: KnownJob, view: ProbeView, space: PlanSpace, known: list[TriedSize], fits: Callable[[Size], bool]
) -> Size | None:
    """The size to measure next, of those that were not refused: with other servers, or where these will not come, without."""
    held, spec, spare = job.held, job.spec, view.free_cores
    assert held is not None
    worker_cores = affordable(spec.workers, space.worker_cores, held.worker_cores, held.workers, spare)
    server_cores = affordable(spec.servers, space.server_cores, held.server_cores, held.servers, spare)
    for servers in dict.fromkeys((space.servers, (held.servers,))):
        near = PlanSpace(
            tuple(w for w in space.workers if w <= 2 * held.workers) or (held.workers,),
            tuple(p for p in servers if p <= 2 * held.servers) or (held.servers,),
            worker_cores,
            server_cores,
        )
        decision = decide_probe(
            view,
            near,
            form_of(job.spec),
            observations_of(job, known),
            lambda allocation: fits(size_after(held, allocation)),
        )
        size = held if decision is None else size_after(held, decision.allocation)
        if size.shape != held.shape and not declined(job, size) and not _in_vain(job, size):
            return size
    return None


def probe_view(job: KnownJob, cores_left: float) -> ProbeView:
    """The job as probes see it: around its first size that was chosen, or what it holds."""
    held, chosen = job.held, _chosen(job)
    assert held is not None
    first = chosen[0].size if chosen else held
    charged = job.charge(held)
    used = job.cores_used
    return ProbeView(
        held=charged,
        anchor=charged.replace(workers=max(first.workers, 1), servers=first.servers),
        batch_size=float(job.spec.data.batch_size),
        free_cores=cores_left - charged.cores,
        workers_held_back=0 < held.worker_cores * HELD_BACK <= used.get("worker", 0.0),
        servers_held_back=0 < held.server_cores * HELD_BACK <= used.get("ps", 0.0),
        limits=limits_of(job, cores_left),
    )


def _cores_full(job: KnownJob, size: Size) -> str:
    held, used = job.held, job.cores_used
    assert held is not None
    if size.worker_cores != held.worker_cores:
        now, then, busy, noun = held.worker_cores, size.worker_cores, used.get("worker", 0.0), "worker"
    else:
        now, then, busy, noun = held.server_cores, size.server_cores, used.get("ps", 0.0), "server"
    return f"a {noun} keeps {busy:.2f} of {now:g} cores busy: {then:g} each, without a restart"


def _finds_its_size(job: KnownJob, models: StandingModels) -> bool:
    """Whether a job is still on its way to its first good size: growth that teaches needs no cooldown, nor what probes were for."""
    on_its_way = (job.cold and len(job.tried) == PROBED_SIZES) or models.is_young(job)
    return on_its_way and not job.ceilings and job.rollbacks == 0


def predicted(job: KnownJob, model: OverruledModel | NotEnough, size: Size) -> tuple[float, float, float]:
    """Prediction of a size with its interval; before there is a model, perfect scaling until tried (`algorithms.md §7`)."""
    if isinstance(model, NotEnough):
        assert job.held is not None
        held = job.held
        speed = job.throughput * size.workers / max(held.workers, 1)
        if size.workers == held.workers and held.worker_cores and size.worker_cores:
            speed *= size.worker_cores / held.worker_cores
        return speed, speed / 2, speed
    return predicted_all(job, model, [size])[0]


def predicted_all(
    job: KnownJob, model: OverruledModel, sizes: list[Size]
) -> list[tuple[float, float, float]]:
    """The same of several sizes at once, which takes hardly longer than of one."""
    said = model.predict(Configurations.from_list([place_of(job, size) for size in sizes]))
    return [in_figures(said, row) for row in range(len(sizes))]


def promise(job: KnownJob, model: OverruledModel | NotEnough, wish: Wish, size: Size) -> Wish:
    """The wish for another size than it was, with what that one is predicted to bring."""
    middle, low, high = predicted(job, model, size)
    return msgspec.structs.replace(wish, size=size, predicted=middle, low_90=low, high_90=high)


def in_figures(said: Prediction, row: int = 0) -> tuple[float, float, float]:
    """Samples a second and their 90 % interval, as a plan says them."""
    columns = (said.throughput, said.low_90, said.high_90)
    middle, low, high = (round(float(column[row]), 3) for column in columns)
    return middle, low, high


def _idle_cores(job: KnownJob) -> Wish | None:
    """Half the cores for workers that do not use them; judged by what it costs, like any change.

    "Scale from used + extra + safety with a dead-band, one strategy at a time" (Primus; `algorithms.md §7`).
    """
    held, spec = job.held, job.spec.workers
    assert held is not None
    now, used = held.worker_cores, job.cores_used.get("worker", 0.0)
    size = held.replace(worker_cores=max(now / 2, spec.cores))
    if (
        not job.cores_bind
        or not spec.max_cores > spec.cores > 0
        or used >= CORES_IDLE * now
        or (job.cores_peak and size.worker_cores < busy_cores(job, "worker", now))
        or size == held
        or declined(job, size)
    ):
        return None
    if taken_back(job, size):
        return None
    return Wish(
        size=size,
        step="scale",
        constant=Reason.LESS_COST,
        detail=f"a worker keeps {used:.2f} of {now:g} cores busy: {size.worker_cores:g} each, without a restart",
        measured=job.throughput,
        predicted=job.throughput,
        low_90=job.throughput,
        high_90=job.throughput,
    )


def cramped(job: KnownJob, cores_left: float, quota: float) -> CapacityLeft | None:
    """Say that nothing is tried for want of room: for more cores of members that use up theirs, or for one worker more.

    None: there is room. `quota`: the part of `cores_left` that its tenant may use, whichever is less binds.
    """
    held, spec, used = job.held, job.spec, job.cores_used
    assert held is not None
    charged = job.charge(held)
    spare = cores_left - charged.cores
    reason = Reason.QUOTA_EXCEEDED if quota <= cores_left else Reason.NO_CAPACITY
    free = f"{max(spare, 0):.2g} are {'left of the quota' if quota <= cores_left else 'free'}"
    for role, noun, busy, now, count in (
        (spec.workers, "worker", used.get("worker", 0.0), held.worker_cores, held.workers),
        (spec.servers, "server", used.get("ps", 0.0), held.server_cores, held.servers),
    ):
        above = [cores for cores in usable(steps_of(job, role, now), now, busy) if cores > now]
        if now and above and count * (above[0] - now) > spare:
            more = f"{above[0]:g} each take {count * (above[0] - now):g} cores more"
            return CapacityLeft(
                reason, f"a {noun} keeps {busy:.2f} of {now:g} cores busy; {more}, and {free}"
            )
    grows = not spec.workers.count and held.workers < spec.workers.max_count
    if grows and charged.worker_cores > spare:
        return CapacityLeft(reason, f"one worker more takes {charged.worker_cores:.2g} cores, and {free}")
    return None


# -- what is open ------------------------------------------------------------------------------------------------------


def view_of(job: KnownJob) -> JobView:
    """The job as scaling sees it."""
    assert job.held is not None
    return JobView(
        held=job.charge(job.held),
        batch_size=float(job.spec.data.batch_size),
        remaining_samples=samples_left(job),
        measured_throughput=job.throughput,
    )


def samples_left(job: KnownJob) -> float:
    """Samples that a job has to train yet; infinite while that is unknown, which weighs as usual (`scoring.job_weight`)."""
    return float(max(job.total - job.committed, 0)) if job.total else float("inf")


def limits_of(job: KnownJob, cores: float) -> Limits:
    """What a plan of this job may not pass. `cores`: of all its members together."""
    assert job.held is not None
    return Limits(
        workers=job.spec.workers.count,
        servers=job.spec.servers.count,
        least_workers=job.spec.workers.least,
        max_workers=job.spec.workers.max_count,
        max_servers=max(job.spec.servers.max_count, job.held.servers),
        cores=max(cores, job.charge(job.held).cores),
        measured_workers=None if job.spec.has_servers else _measured_workers(job),
    )


def _measured_workers(job: KnownJob) -> tuple[int, int] | None:
    """The least and the most workers that were measured of a ring: each step on the way would stop it once more."""
    counts = [row.size.workers for row in _measured(job)]
    return (min(counts), max(counts)) if counts else None


def size_after(held: Size, allocation: Allocation) -> Size:
    """A size with the counts and cores of an allocation; where there is no limit there stays none.

    Fewer servers share the same tables: the limit of each grows with its share.
    """
    memory = held.server_memory_bytes
    if memory and 0 < allocation.servers < held.servers:
        memory = -(-memory * held.servers // allocation.servers)
    return held.replace(
        workers=allocation.workers,
        servers=allocation.servers,
        worker_cores=allocation.worker_cores if held.worker_cores else 0.0,
        server_cores=allocation.server_cores if held.server_cores else 0.0,
        server_memory_bytes=memory,
    )


def declined(job: KnownJob, size: Size) -> bool:
    """Whether this size was observed, rejected or refused a while ago."""
    return any(
        size.shape == other.shape and job.clock_s - at_s < job.spec.plan.declined_rest_s
        for other, at_s in job.declined
    )


def _in_vain(job: KnownJob, size: Size) -> bool:
    """Whether this size was tried and did not pay, or as many members with as many cores at least did not."""
    return any(
        (tried.workers, tried.servers) == (size.workers, size.servers)
        and tried.worker_cores >= size.worker_cores
        and tried.server_cores >= size.server_cores
        for tried in (each.size for each in job.ceilings)
    )


def taken_back(job: KnownJob, size: Size) -> bool:
    """Whether this size was tried and did not pay."""
    return any(size.shape == each.size.shape for each in job.ceilings)
