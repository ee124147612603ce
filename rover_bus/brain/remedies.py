"""Stage 3, live: slow workers, memory that runs out, targets reached. Each becomes a record at once, not at the next cooldown.

Fed by a job's state after a window; feeds the decider with records and wishes. Order of remedies as in `algorithms.md §6`: a slow
worker's leases shrink by themselves, because they follow measured rates (`master/sizing.py`): said by a fact; it is replaced when
that lasts. Memory: a larger limit where the host has room, one incident id until the danger is over (S10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rover_bus.brain.decisions.hot_servers import (
    WINDOWS,
    ServerLoad,
    decide_hot_servers,
    find_hot_server,
)
from rover_bus.brain.decisions.lifecycle import ChangeHistory, may_change
from rover_bus.brain.decisions.memory_limits import Means, MemoryState, Relief, decide_relief, needed_limit
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.stopping import StopRule, auc_target, decide_stop
from rover_bus.brain.decisions.stragglers import decide_stragglers
from rover_bus.brain.log import Foreseen, HotServerFound, IncidentNoted, StragglerNoted
from rover_bus.brain.models.convergence import fit_loss_curve
from rover_bus.brain.models.memory import Growth, fit_growth
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.predicting import fit_job
from rover_bus.brain.rules import RULES
from rover_bus.brain.state import KnownJob, State
from rover_bus.brain.wishes import Wish, declined, limits_of, predicted, size_after
from rover_bus.events.identity import Member
from rover_bus.events.log import Record

REACTION_S = 10.0  # a larger limit is live within a second or two; windows are up to 5 s
HOST_SHARE = 0.9  # of a host's memory that members may be promised
MOVED_REST_S = 30.0  # after slots were asked to move: they must be there before their absence can be judged
OUT_OF_DANGER = 1.15  # the limit is above all that is left to train by this: not an incident that comes back
FORECAST_EVERY = 5  # windows


# -- stragglers --------------------------------------------------------------------------------------------------------


def note_stragglers(name: str, job: KnownJob) -> Iterator[StragglerNoted]:
    """Yield who became slow, whose remedy changed, and who is well again."""
    lives = {member.index: member for member in job.members if member.role == "worker"}
    remedies = {r.worker: r for r in decide_stragglers(job.paces) if r.worker in lives}
    for index, remedy in remedies.items():
        if job.stragglers.get(index) != remedy.reason:
            pace = job.paces[index]
            yield StragglerNoted(
                job=name,
                member=lives[index],
                found=True,
                share=round(pace.share, 4),
                lease_share=round(remedy.lease_share, 4),
                rate=round(pace.share * _expected(job, index), 3),
                usual=round(_expected(job, index), 3),
                constant=remedy.reason,
                cause="window",
            )
    for index in [index for index in job.stragglers if index not in remedies]:
        last = job.paces.get(index)
        yield StragglerNoted(
            job=name,
            member=lives.get(index, Member("worker", index, 0)),
            found=False,
            share=round(last.share, 4) if last else 0.0,
            cause="window",
        )


def _expected(job: KnownJob, index: int) -> float:
    peers = sorted(pace.past for other, pace in job.paces.items() if other != index and pace.past)
    return peers[len(peers) // 2] if peers else job.paces[index].past


def lives_to_replace(job: KnownJob) -> list[Member]:
    """Lives of workers whose slowness lasted."""
    slow = {index for index, remedy in job.stragglers.items() if remedy == Reason.STRAGGLER_REPLACE}
    return [member for member in job.members if member.role == "worker" and member.index in slow]


# -- hot servers -------------------------------------------------------------------------------------------------------


def note_hot_server(name: str, job: KnownJob) -> Iterator[HotServerFound]:
    """Yield the one server that is hot while the others idle (S12): the master moves its hottest slots, nobody is scaled up."""
    if job.clock_s - job.moved_s < MOVED_REST_S:
        return
    lives = {member.place: member for member in job.members if member.role == "ps"}
    windows = _server_windows(job, lives)
    hot = find_hot_server(windows)
    if hot is not None:
        last = job.server_loads[-1]
        member = lives[f"ps-{hot}"]
        mean = sum(last.values()) / len(last)
        yield HotServerFound(
            job=name, member=member, busy=last[member.place], mean=round(mean, 4), cause="window"
        )


def _server_windows(job: KnownJob, lives: Mapping[str, Member]) -> list[list[ServerLoad]]:
    cores = (job.held.server_cores if job.held else 0.0) or 1.0  # a server's tables are one thread's
    return [
        [
            ServerLoad(
                server=lives[place].index,
                busy=busy / cores,
                slot_loads=dict(job.server_slots.get(place, ())),
            )
            for place, busy in loads.items()
            if place in lives
        ]
        for loads in job.server_loads
    ]


def cool_servers(job: KnownJob, cores_left: float) -> Wish | None:
    """What servers need that are all hot, or stayed so after their hot slots were asked to move: cores, one more, fewer workers.

    In this order (`algorithms.md §6`). Judged like any change, and not tried again when it did not pay.
    """
    held, history = job.held, ChangeHistory(settled_at_s=job.settled_s, rollbacks=job.rollbacks)
    lives = {member.place: member for member in job.members if member.role == "ps"}
    windows = _server_windows(job, lives)
    asked_to_move = job.clock_s - job.moved_s < MOVED_REST_S
    if held is None or not held.workers or job.paused or asked_to_move or not all(windows):
        return None
    if may_change(history, job.clock_s, job.spec.plan.cooldown_s) or len(job.recent) < WINDOWS:
        return None
    spec = job.spec.servers
    most = spec.max_cores if spec.max_cores > spec.cores > 0 else 0.0
    limits = limits_of(job, cores_left)
    remedy = decide_hot_servers(windows, {}, job.charge(held), limits, most)
    if remedy is None or remedy.allocation is None or find_hot_server(windows) is not None:
        return None
    size = size_after(held, remedy.allocation)
    if size == held or declined(job, size) or any(size == other for other, _, _ in job.ceilings):
        return None
    busiest = max(load.busy for load in windows[-1])
    said = predicted(job, fit_job(job), size)
    grows = remedy.allocation.cores > job.charge(held).cores
    # More servers are not kept for their own sake: twice the dead-band is hoped for, half of what is hoped must come.
    hoped = job.throughput * (1 + 2 * RULES.restraint.dead_band if grows else 1.0)
    if not grows and said[0] < RULES.restraint.keep_throughput * job.throughput:
        return None  # the servers are full, not overrun: fewer workers would only train less
    return Wish(
        size=size,
        step="scale",
        constant=remedy.reason,
        detail=f"servers are busy {busiest:.0%} of their time",
        measured=job.throughput,
        predicted=max(said[0], hoped),
        low_90=said[1],
        high_90=said[2],
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def reliefs_of(name: str, job: KnownJob, state: State) -> list[tuple[Member, Relief, Growth]]:
    """Return what must be done about the memory of each server, most urgent first."""
    if not job.spec.plan.relief or job.held is None or not job.held.server_memory_bytes:
        return []
    limit = job.held.server_memory_bytes
    growths = dict(_growths(job))
    if not growths:
        return []
    states = {
        member.index: MemoryState(
            growth=growth,
            limit_bytes=limit,
            samples_per_s=job.throughput or _speed(job),
            remaining_samples=_remaining(job),
            reaction_s=REACTION_S,
            incident=job.incidents.get(member.place, ""),
        )
        for member, growth in growths.items()
    }
    members = {member.index: member for member in growths}
    means = Means(largest_server_bytes=_largest(state), free_bytes=_free(state, job))
    made = f"oom-{name}-{job.incidents_made + 1}"
    return [(members[r.server], r, growths[members[r.server]]) for r in decide_relief(states, means, made)]


def note_ends(name: str, job: KnownJob, state: State) -> Iterator[IncidentNoted]:
    """Yield the incidents that are over: the limit outlives all that is left to train, or the member is gone."""
    if not job.incidents:
        return
    growths = {member.place: (member, growth) for member, growth in _growths(job)}
    for place, incident in list(job.incidents.items()):
        member, growth = growths.get(place, (None, None))
        if member is None or growth is None or job.held is None:
            continue
        limit = job.held.server_memory_bytes
        danger = MemoryState(
            growth=growth,
            limit_bytes=limit,
            samples_per_s=max(job.throughput, 1e-9),
            remaining_samples=_remaining(job),
        )
        needed = needed_limit(danger, _remaining(job) / max(job.throughput, 1e-9))
        if OUT_OF_DANGER * needed <= limit or not _remaining(job):
            yield IncidentNoted(
                job=name,
                member=member,
                incident=incident,
                opened=False,
                used_bytes=int(growth.used_bytes),
                limit_bytes=limit,
                cause="window",
            )


def _growths(job: KnownJob) -> Iterator[tuple[Member, Growth]]:
    for member in job.members:
        if member.role != "ps":
            continue
        points = job.memory.get(member.place, [])
        if not points or min(used for _, used in points) <= 0:
            continue
        growth = fit_growth([n for n, _ in points], [used for _, used in points])
        if not isinstance(growth, NotEnough):
            yield member, growth


def _remaining(job: KnownJob) -> float:
    return float(max(job.total - job.committed, 0)) if job.total else 1e12


def _speed(job: KnownJob) -> float:
    return job.samples / job.clock_s if job.clock_s > 0 else 0.0


def _largest(state: State) -> float:
    return HOST_SHARE * max((host.memory_bytes for host in state.hosts.values()), default=0)


def _free(state: State, job: KnownJob) -> float:
    """Memory that nobody was promised. A server without a limit is charged with what it uses."""
    promised = 0.0
    for other in state.jobs.values():
        if other.held is not None:
            promised += other.held.workers * other.held.worker_memory_bytes
            promised += other.held.servers * other.held.server_memory_bytes
    return max(HOST_SHARE * sum(host.memory_bytes for host in state.hosts.values()) - promised, 0.0)


# -- targets -----------------------------------------------------------------------------------------------------------


def foresee(name: str, job: KnownJob) -> Iterator[Record]:
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
    eta, low, high = (
        round(value, 1) if value != float("inf") else -1.0
        for value in (answer.eta_s, answer.low_90_s, answer.high_90_s)
    )
    yield Foreseen(
        job=name,
        stop=answer.stop,
        constant=answer.reason,
        eta_s=eta,
        low_90_s=low,
        high_90_s=high,
        value=1.0 - values[-1] if stop.auc else values[-1],
        target=stop.auc or target,
        metric="AUC" if stop.auc else "loss",
        cause="window",
    )
