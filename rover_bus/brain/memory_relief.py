"""Stage 3, live: memory that runs out. A larger limit where the host has room, one incident id until the danger is over (S10).

Fed by a job's state after a window; feeds the decider with reliefs and with the ends of incidents. Until there is a forecast the
use itself must do: kills of young servers leave nothing to forecast from.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from rover_bus.brain.decisions.memory_limits import (
    Means,
    MemoryState,
    Relief,
    decide_relief,
    limit_before_forecast,
    needed_limit,
)
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.models.memory import Growth, fit_growth
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.brain.wishes import CapacityLeft, Wish
from rover_bus.events import causes
from rover_bus.events.facts import IncidentClosed, IncidentOpened
from rover_bus.events.identity import Member

HOST_SHARE = 0.9  # of a host's memory that members may be promised
OUT_OF_DANGER = 1.15  # the limit is above all that is left to train by this: not an incident that comes back
GROWS = 1.01  # from one sample to the next: a server that fills its limit and stays as it is needs no relief
FITS_KEPT = 4096
POINTS_TO_TRIM = 8  # of each server, before a limit follows the forecast down
WORTH_TRIMMING = 0.85  # of the limit: what is needed must be below this share
CROWDED = 0.7  # of the memory that may be promised: above this, what is not needed is taken back
KILLED_FACTOR = 2.0  # by which the limit of a role grows of which a member was killed for its memory,
WORTH_RAISING = 1.1  # if it can be raised by so much
MOST_RAISED = 4.0  # times what its user said, that a worker gets at most
MIB = 1 << 20
FORESEEN_S = 3600.0  # that a forecast for people looks ahead
FORESEEN_STEPS = 12

Points = tuple[tuple[float, int], ...]


class Need(msgspec.Struct, frozen=True):
    """What must be done about one server's memory, which uses so much now, with what its next cuts will stage."""

    member: Member
    relief: Relief
    used_bytes: int


def needs_of(name: str, job: KnownJob, state: BrainState) -> list[Need]:
    """Return what must be done about the memory of each server, most urgent first."""
    if not job.spec.plan.relief or job.held is None or not job.held.server_memory_bytes:
        return []
    made = f"oom-{name}-{job.incidents_made + 1}"
    means = Means(largest_server_bytes=_largest(state), free_bytes=_free(state))
    forecast = _foreseen(job, means, made)
    return forecast or _unforeseen(job, means, made)


def _foreseen(job: KnownJob, means: Means, made: str) -> list[Need]:
    assert job.held is not None
    growths = dict(_growths(job))
    states = {
        member.index: MemoryState(
            growth=growth,
            limit_bytes=job.held.server_memory_bytes,
            samples_per_s=job.throughput or _speed(job),
            remaining_samples=_remaining(job),
            reaction_s=job.spec.plan.memory_reaction_s,
            incident=job.incidents.get(member.name, ""),
        )
        for member, growth in growths.items()
    }
    members = {member.index: member for member in growths}
    return [
        Need(members[relief.server], relief, int(growths[members[relief.server]].used_bytes))
        for relief in decide_relief(states, means, made)
    ]


def _unforeseen(job: KnownJob, means: Means, made: str) -> list[Need]:
    """Servers that grow and use most of their limit before there are points enough for a forecast; the fullest first."""
    assert job.held is not None
    limit, free, needs = job.held.server_memory_bytes, means.free_bytes, list[Need]()
    young = [(points[-1][1], member, points) for member, points in _points(job) if _fitted(points) is None]
    for used, member, points in sorted(young, key=lambda each: (-each[0], each[1].index)):
        wanted = int(limit_before_forecast(used, limit))
        grows = len(points) > 1 and used > GROWS * points[-2][1]
        if not grows or wanted <= limit or wanted > means.largest_server_bytes or wanted - limit > free:
            continue
        free -= wanted - limit
        relief = Relief(
            server=member.index,
            incident=job.incidents.get(member.name) or f"{made}-{member.index}",
            reason=Reason.OOM_LARGER_SERVER,
            limit_bytes=wanted,
            seconds_left=float("inf"),
        )
        needs.append(Need(member, relief, used))
    return needs


def after_a_kill(job: KnownJob, member: Member, state: BrainState) -> Wish | CapacityLeft | None:
    """Return the wish for a larger limit of a role of which a member was killed at its limit, or why that cannot be; None where
    there is no limit to raise.

    What is killed as soon as it starts says nothing of what it needs: twice the limit is tried, as long as that takes, at most so
    much as a host has and is free. A worker has no tables that grow: it gets at most `MOST_RAISED` times what its user said.
    """
    held, serves = job.held, member.role == "ps"
    if held is None or not job.spec.plan.relief or (job.change is not None and job.change.step == "relief"):
        return None
    limit = held.server_memory_bytes if serves else held.worker_memory_bytes
    count = held.servers if serves else held.workers
    wanted = int(min(limit * KILLED_FACTOR, _largest(state), limit + _free(state) / max(count, 1)))
    if not serves:
        wanted = min(wanted, int(job.spec.workers.memory_bytes * MOST_RAISED))
    killed = f"{member} was killed at its limit of {limit / MIB:,.0f} MiB"
    if not limit:
        return None
    if wanted < limit * WORTH_RAISING:
        at_most = not serves and limit * WORTH_RAISING > job.spec.workers.memory_bytes * MOST_RAISED
        most = (
            f"a worker gets {MOST_RAISED:g} times what its job file says at most"
            if at_most
            else "no more is free"
        )
        return CapacityLeft(Reason.OOM_NO_ROOM, f"{killed}, and {most}")
    size = held.replace(server_memory_bytes=wanted) if serves else held.replace(worker_memory_bytes=wanted)
    return Wish(
        size=size,
        step="relief",
        constant=Reason.OOM_LARGER_SERVER if serves else Reason.OOM_LARGER_WORKER,
        detail=killed,
        at_risk=True,
        measured=job.throughput,
    )


def spare_memory(job: KnownJob, state: BrainState) -> Wish | None:
    """Return the wish for lower limits of servers that need far less to the end, where memory is what jobs may come to lack.

    Users ask for too much as often as for too little; but a limit that no job misses does no harm, and one that is too low kills.
    """
    held, limit = job.held, job.held.server_memory_bytes if job.held is not None else 0
    if (
        held is None
        or not limit
        or not job.spec.plan.relief
        or job.paused
        or job.incidents
        or not _crowded(state)
    ):
        return None
    needed = _needed_to_end(job, held.servers, limit)
    if not needed or needed >= WORTH_TRIMMING * limit:
        return None
    used = max(points[-1][1] for _, points in _points(job))
    said = f"servers use {used / MIB:,.0f} MiB and need {needed / MIB:,.0f} to the end, their limit is {limit / MIB:,.0f}"
    size = held.replace(server_memory_bytes=needed)
    return Wish(size=size, step="trim", constant=Reason.LESS_MEMORY, detail=said, measured=job.throughput)


def _needed_to_end(job: KnownJob, servers: int, limit: int) -> int:
    """The limit that the largest server needs to live to the end of the job; 0 while that cannot be told of each of them."""
    points = [points for _, points in _points(job)]
    speed = job.throughput
    if (
        not job.total
        or speed <= 0
        or len(points) < servers
        or any(len(each) < POINTS_TO_TRIM for each in points)
    ):
        return 0
    growths = [_fitted(each) for each in points]
    needs = [
        needed_limit(
            MemoryState(
                growth=growth, limit_bytes=limit, samples_per_s=speed, remaining_samples=_remaining(job)
            ),
            _remaining(job) / speed,
        )
        for growth in growths
        if growth is not None
    ]
    return int(max(needs) * OUT_OF_DANGER) if len(needs) == len(points) else 0


def used_by_servers(job: KnownJob) -> int:
    """Bytes that the servers of a job use together, each as much as the largest; 0 while that is not known of each of them."""
    used = [points[-1][1] for _, points in _points(job)]
    return max(used) * len(used) if used and job.held is not None and len(used) == job.held.servers else 0


def _crowded(state: BrainState) -> bool:
    there = HOST_SHARE * totals_of(state).given.memory_bytes
    return _free(state) < (1 - CROWDED) * there


def note_ends(name: str, job: KnownJob) -> Iterator[IncidentClosed]:
    """Yield the incidents that are over: the limit outlives all that is left to train, or the member is gone."""
    if not job.incidents:
        return
    growths = {member.name: (member, growth) for member, growth in _growths(job)}
    for known, incident in list(job.incidents.items()):
        member, growth = growths.get(known, (None, None))
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
            yield IncidentClosed(
                job=name,
                member=member,
                incident=incident,
                used_bytes=int(growth.used_bytes),
                limit_bytes=limit,
                cause=causes.timer("window", str(member)),
            )


def _growths(job: KnownJob) -> Iterator[tuple[Member, Growth]]:
    for member, points in _points(job):
        growth = _fitted(points)
        if growth is not None:
            yield member, growth


def _points(job: KnownJob) -> Iterator[tuple[Member, Points]]:
    for member in job.members:
        points = tuple(job.memory.get(member.name, ())) if member.role == "ps" else ()
        if points and min(used for _, used in points) > 0:
            yield member, points


@lru_cache(maxsize=FITS_KEPT)
def _fitted(points: Points) -> Growth | None:
    """The growth behind the points. Kept: it is asked for twice a window, and most windows bring no new point."""
    growth = fit_growth([n for n, _ in points], [used for _, used in points])
    return None if isinstance(growth, NotEnough) else growth


def _remaining(job: KnownJob) -> float:
    return float(max(job.total - job.committed, 0)) if job.total else 1e12


def _speed(job: KnownJob) -> float:
    return job.samples / job.clock_s if job.clock_s > 0 else 0.0


def _largest(state: BrainState) -> float:
    return HOST_SHARE * totals_of(state).largest_host_bytes


def _free(state: BrainState) -> float:
    """Return the memory that no job was promised. A server without a limit counts as none."""
    totals = totals_of(state)
    return max(HOST_SHARE * totals.given.memory_bytes - totals.now.memory_bytes, 0.0)


def incident_of(name: str, need: Need, plan: int) -> IncidentOpened:
    """Return the fact of a danger. `plan`: the one that relieves it, 0 where none can."""
    relief, left_s = need.relief, need.relief.seconds_left
    return IncidentOpened(
        job=name,
        member=need.member,
        incident=relief.incident,
        constant=relief.reason,
        used_bytes=need.used_bytes,
        limit_bytes=relief.limit_bytes,
        seconds_left=round(left_s, 1) if left_s != float("inf") else -1.0,
        plan=plan,
        cause=causes.timer("window", str(need.member)),
    )


def danger_of(relief: Relief, used_bytes: int, limit_bytes: int) -> str:
    """Return the danger in words, as the plan that relieves it gives them."""
    if used_bytes > limit_bytes:
        return f"{used_bytes / MIB:,.0f} MiB are needed once its next cuts are staged, and {limit_bytes / MIB:,.0f} are its limit"
    if relief.seconds_left == float("inf"):
        return f"{used_bytes / limit_bytes:.0%} of its memory is used, and it is too early for a forecast"
    return f"memory would meet its limit in {max(relief.seconds_left, 0):.0f} s"


class ForeseenMemory(NamedTuple):
    """One server's memory to come: seconds from now, and then the bytes that it is expected to use, and its 95 % upper bound."""

    member: Member
    ahead_s: list[float]
    expected_bytes: list[float]
    upper_bytes: list[float]


def foresee_memory(job: KnownJob) -> Iterator[ForeseenMemory]:
    """Yield the memory of each server up to the end of the job, at its present speed, but no further than `FORESEEN_S`."""
    speed = job.throughput or _speed(job)
    if speed <= 0:
        return
    horizon_s = min(_remaining(job) / speed, FORESEEN_S)
    ahead_s = [horizon_s * step / FORESEEN_STEPS for step in range(FORESEEN_STEPS + 1)]
    for member, growth in _growths(job):
        said = [growth.forecast(growth.samples + speed * each) for each in ahead_s]
        expected = [each.expected_bytes for each in said]
        yield ForeseenMemory(member, ahead_s, expected, [each.upper_bytes for each in said])
