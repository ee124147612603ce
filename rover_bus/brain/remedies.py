"""Stage 3, live: slow workers, hot servers, targets reached. Each becomes a record at once, not at the next cooldown.

Fed by a job's state after a window; feeds the decider with records and wishes. Order of remedies as in `algorithms.md §6`: a slow
worker's leases shrink by themselves, because they follow measured rates (`master/leasing.py`): said by a fact; it is replaced when
that lasts. Memory has a module of its own (`memory_relief`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from statistics import median

from rover_bus.brain.decisions.hot_servers import (
    HOT,
    WINDOWS,
    ServerLoad,
    decide_hot_servers,
    find_hot_server,
)
from rover_bus.brain.decisions.lifecycle import ChangeHistory, may_change
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.stopping import StopRule, auc_target, decide_stop
from rover_bus.brain.decisions.stragglers import decide_stragglers
from rover_bus.brain.models.convergence import fit_loss_curve
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.rules import RULES
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import KnownJob
from rover_bus.brain.wishes import Wish, declined, limits_of, predicted, size_after, taken_back
from rover_bus.events.facts import (
    JobForecast,
    JobStopRequested,
    SlotsMoveRequested,
    StragglerFound,
    StragglerRecovered,
)
from rover_bus.events.identity import Member
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import Record

FORECAST_EVERY = 5  # windows


# -- stragglers --------------------------------------------------------------------------------------------------------


def note_stragglers(name: str, job: KnownJob) -> Generator[Record, None, None]:
    """Yield the workers that became slow, those whose remedy changed, and those that are well again."""
    workers = {member.index: member for member in job.members if member.role == "worker"}
    found = decide_stragglers(job.paces, together=is_synchronous(job.spec))
    remedies = {remedy.worker: remedy for remedy in found if remedy.worker in workers}
    for index, remedy in remedies.items():
        if job.stragglers.get(index) != remedy.reason:
            pace = job.paces[index]
            yield StragglerFound(
                job=name,
                member=workers[index],
                share=round(pace.share, 4),
                lease_share=round(remedy.lease_share, 4),
                rate=round(pace.share * _expected(job, index), 3),
                usual=round(_expected(job, index), 3),
                constant=remedy.reason,
                cause=job.after("window"),
            )
    for index in [index for index in job.stragglers if index not in remedies]:
        last = job.paces.get(index)
        yield StragglerRecovered(
            job=name,
            member=workers.get(index, Member("worker", index, 0)),
            share=round(last.share, 4) if last else 0.0,
            cause=job.after("window"),
        )


def _expected(job: KnownJob, index: int) -> float:
    peers = [pace.past for other, pace in job.paces.items() if other != index and pace.past]
    return median(peers) if peers else job.paces[index].past


def workers_to_replace(job: KnownJob) -> list[Member]:
    """Workers whose slowness lasted, by incarnation."""
    slow = {index for index, remedy in job.stragglers.items() if remedy == Reason.STRAGGLER_REPLACE}
    return [member for member in job.members if member.role == "worker" and member.index in slow]


# -- hot servers -------------------------------------------------------------------------------------------------------


def note_hot_server(name: str, job: KnownJob) -> Generator[Record, None, None]:
    """Yield the one server that is hot while the others idle (S12): the master moves its hottest slots, no server is added."""
    if job.clock_s - job.moved_s < job.spec.plan.moved_rest_s:
        return
    servers = {member.name: member for member in job.members if member.role == "ps"}
    windows = _server_windows(job, servers)
    hot = find_hot_server(windows)
    if hot is not None:
        last = job.server_loads[-1]
        member = servers[f"ps-{hot}"]
        mean = sum(last.values()) / len(last)
        yield SlotsMoveRequested(
            job=name,
            source=member.name,
            hot=True,
            reason=f"hot: {last[member.name]:.2f} cores busy, {mean:.2f} on average",
            cause=job.after("window"),
        )


def _server_windows(job: KnownJob, servers: Mapping[str, Member]) -> list[list[ServerLoad]]:
    cores = (job.held.server_cores if job.held else 0.0) or 1.0  # a server's tables are one thread's
    return [
        [
            ServerLoad(server=servers[name].index, busy=busy / cores)
            for name, busy in loads.items()
            if name in servers
        ]
        for loads in job.server_loads
    ]


def _are_hot(job: KnownJob, windows: list[list[ServerLoad]]) -> bool:
    """Whether every window was heard, the last one is hot, and no slots were asked to move lately."""
    asked_to_move = job.clock_s - job.moved_s < job.spec.plan.moved_rest_s
    heard = bool(windows) and all(windows)
    return heard and not asked_to_move and max(load.busy for load in windows[-1]) >= HOT


def cool_servers(job: KnownJob, cores_left: Callable[[], float], models: StandingModels) -> Wish | None:
    """What servers need that are all hot, or stayed so after their hot slots were asked to move: cores, one more, fewer workers.

    In this order (`algorithms.md §6`). Judged like any change, and not tried again when it did not pay.
    """
    held, history = job.held, ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    servers = {member.name: member for member in job.members if member.role == "ps"}
    windows = _server_windows(job, servers)
    if held is None or not held.workers or job.paused or not _are_hot(job, windows):
        return None
    if may_change(history, job.clock_s, job.spec.plan.cooldown_s) or len(job.recent) < WINDOWS:
        return None
    spec = job.spec.servers
    most = spec.max_cores if spec.max_cores > spec.cores > 0 else 0.0
    limits = limits_of(job, cores_left())
    remedy = decide_hot_servers(windows, job.charge(held), limits, most)
    if remedy is None:
        return None
    size = size_after(held, remedy.allocation)
    if size == held or declined(job, size) or taken_back(job, size):
        return None
    busiest = max(load.busy for load in windows[-1])
    said = predicted(job, models.of(job), size)
    grows = remedy.allocation.cores > job.charge(held).cores
    # More servers are not kept for their own sake: twice the dead-band is hoped for, half of what is hoped must come.
    hoped = job.throughput * (1 + 2 * RULES.restraint.dead_band if grows else 1.0)
    if not grows and said[0] < RULES.restraint.keep_throughput * job.throughput:
        return None  # the servers are full, not overrun: fewer workers would only train less
    promised = max(said[0], hoped)
    return Wish(
        size=size,
        step="scale",
        constant=remedy.reason,
        detail=f"servers are busy {busiest:.0%} of their time",
        measured=job.throughput,
        predicted=promised,
        low_90=said[1],
        high_90=max(said[2], promised),  # what is hoped for may be more than the model believes
    )


# -- targets -----------------------------------------------------------------------------------------------------------


def foresee(name: str, job: KnownJob) -> Generator[Record, None, None]:
    """Yield whether a job's target is reached, or the forecast of when, now and then."""
    stop = job.spec.stop
    if job.stopping or not job.losses or not (stop.loss or stop.auc or stop.least_decrease_per_step):
        return
    target = auc_target(stop.auc) if stop.auc else stop.loss
    rule = StopRule(
        loss=target or float("nan"),
        least_decrease_per_step=stop.least_decrease_per_step or float("nan"),
    )
    steps = [at for at, _ in job.losses]
    values = [value for _, value in job.losses]
    due = job.windows % FORECAST_EVERY == 0
    curve = fit_loss_curve(steps, values) if due else NotEnough("not due")
    speed = job.throughput / job.spec.data.batch_size
    answer = decide_stop(rule, curve, values[-3:], speed)
    if not answer.stop and (not due or isinstance(curve, NotEnough)):
        return
    value, target = 1.0 - values[-1] if stop.auc else values[-1], stop.auc or target
    metric = "AUC" if stop.auc else "loss"
    if answer.stop:
        wanted = f", {target:.4g} was wanted" if target else ", and no further step would pay"
        yield JobStopRequested(
            job=name,
            mode="finish",  # a target is named to know what the model is worth
            reason=f"{metric} {value:.4g}{wanted}",
            cause=job.after("window"),
        )
        return
    eta, low, high = (
        round(seconds, 1) if seconds != float("inf") else -1.0
        for seconds in (answer.eta_s, answer.low_90_s, answer.high_90_s)
    )
    yield JobForecast(
        job=name,
        constant=answer.reason,
        eta_s=eta,
        low_90_s=low,
        high_90_s=high,
        value=value,
        target=target,
        metric=metric,
        cause=job.after("window"),
    )
