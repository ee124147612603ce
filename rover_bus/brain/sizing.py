"""The first size of a job. Pure. What the user fixed stays; the rest comes from similar jobs, or is small and then probed.

Fed by the state (hosts, past jobs), feeds the round. `algorithms.md §4`: no history is "a small start, then probes that double as
identification of the model": one worker, and a server to every four cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.plans import GIB, Allocation, PlanDecision
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.warm_start import (
    MOST_SIMILAR,
    PastJob,
    decide_start,
    usual_factors,
    usual_memory_share,
)
from rover_bus.brain.history import traits_of
from rover_bus.brain.state import BrainState, KnownJob, charge_of
from rover_bus.brain.totals import totals_of
from rover_bus.events.facts import Size
from rover_bus.events.job import JobSpec, RoleSpec
from rover_bus.events.subjects import split_job

NARROW = 0.85  # what a start with half the cores a member is worth: most users ask for too many cores and too few members
MORE_THAN_USED = 1.5  # by which a first memory limit passes what a run used: the next may have more data, and too little kills
LEAST_SERVER_BYTES = 4 * GIB  # a server with less memory is not started with a part of it
MOST_BYTES = 1 << 62  # that a log can write
BETWEEN_JOBS_S = 600.0  # jobs are dated by their order: a log has no clock of its own


def first_size(spec: JobSpec, state: BrainState) -> tuple[Size, PlanDecision, list[str]]:
    """Return the first size of a job, the decision behind what was left open, and what the user fixed, in words."""
    cores = totals_of(state).capacity.cores
    usual = usual_factors(state.past)
    small = Allocation(
        workers=round(spec.workers.start * usual.workers) or 1,
        servers=round(spec.servers.start * usual.servers) or max(1, round(cores / 4)),
    )
    now_s = len(state.past) * BETWEEN_JOBS_S
    tenant = split_job(spec.name)[0]
    decision = decide_start(traits_of(spec), state.past, now_s, small, tenant=tenant)
    start, known = decision.allocation, decision.reason == Reason.WARM_START
    if not known and (outgrown := _outgrown(spec, small)):
        decision = msgspec.structs.replace(decision, detail=f"{decision.detail}; {outgrown}")
    workers = spec.workers.count or max(min(spec.workers.max_count, start.workers), spec.workers.least)
    servers = spec.servers.count or max(min(spec.servers.max_count, start.servers), spec.servers.least)
    if spec.workers.count and spec.servers.count:
        decision = decision.__class__(
            allocation=start, reason=Reason.CONSTRAINED_BY_USER, detail="as the job asks"
        )
    size = Size(
        workers=workers,
        servers=servers,
        worker_cores=_cores(spec.workers, start.worker_cores if known else 0.0, usual.worker_cores, state),
        server_cores=_cores(spec.servers, start.server_cores if known else 0.0, usual.server_cores, state),
        worker_memory_bytes=spec.workers.memory_bytes,
        server_memory_bytes=_server_memory(spec, state, servers),
    )
    cut, said = _cut_to_capacity(size, spec, state)
    if said:
        decision = msgspec.structs.replace(decision, detail=f"{decision.detail}; {said}")
    return cut, decision, pins(spec)


def _cut_to_capacity(size: Size, spec: JobSpec, state: BrainState) -> tuple[Size, str]:
    """What a first size becomes that the cluster or a quota could never hold, and that in words: first by memory that is hardly
    ever used, then by members, at last by cores that the user left open.
    """
    budgets = _budgets(spec, state)
    cut = cut_to(size, spec, budgets)
    if _held_by(size, budgets):
        return size, ""
    less = with_usual_memory(size, spec, state)
    with_more = cut_to(less, spec, budgets)
    said = list[str]()
    if less != size and (with_more.workers > cut.workers or with_more.servers > cut.servers):
        cut = with_more
        said.append(less_memory(cut, spec))
    if (cut.workers, cut.servers) != (size.workers, size.servers):
        said.append(f"cut from {size.workers}/{size.servers} to what there is at all")
    narrow = cut
    while totals_of(state).cores_bind and not _held_by(narrow, budgets):
        former, narrow = narrow, _narrower(narrow, spec)
        if narrow == former:
            return cut, "; ".join(said)  # it is memory, or too much all the same
    if narrow != cut:
        said.append(f"with {narrow.worker_cores:.3g} cores a worker and {narrow.server_cores:.3g} a server")
    return narrow, "; ".join(said)


def size_to_begin_with(job: KnownJob, state: BrainState) -> tuple[Size, PlanDecision]:
    """Return the size that a job which waits asks for: what it held when it was suspended, else its first one."""
    if job.released is None:
        size, decision, _ = first_size(job.spec, state)
        return size, decision
    pinned = job.spec.workers.count and job.spec.servers.count
    reason = Reason.CONSTRAINED_BY_USER if pinned else Reason.ROOM_AGAIN
    return job.released, PlanDecision(
        allocation=job.charge(job.released), reason=reason, detail="it goes on where it was"
    )


def _outgrown(spec: JobSpec, small: Allocation) -> str:
    """What a first size adds to what its user asked for, in words."""
    asked = (("workers", spec.workers.start, small.workers), ("servers", spec.servers.start, small.servers))
    more = [f"{count} {noun} instead of {start}" for noun, start, count in asked if 0 < start < count]
    return f"{' and '.join(more)}: jobs here outgrow what is asked for" if more else ""


def _cores(role: RoleSpec, known: float, usual: float, state: BrainState) -> float:
    """The cores that a member begins with: what similar jobs ended with, else what the user asked for times what users of this
    cluster ask too little (`usual`); where the user allows it and hosts hold to it, no more than the largest host has.
    """
    totals = totals_of(state)
    if not role.max_cores > role.cores > 0 or not totals.cores_bind:
        return role.cores
    most = min(role.max_cores, totals.largest_host_cores or role.max_cores)
    return max(min(known or role.start_cores * usual, most), role.cores)


def _server_memory(spec: JobSpec, state: BrainState, servers: int) -> int:
    """The memory limit that a server begins with, where there is a limit: its share of what runs of its family needed."""
    needed_bytes = _family_needed(spec, state)
    if not spec.servers.memory_bytes or not needed_bytes:
        return spec.servers.memory_bytes
    return -(-needed_bytes // servers)


def with_usual_memory(size: Size, spec: JobSpec, state: BrainState) -> Size:
    """A first size whose servers have what servers of this cluster use of what their users ask for, and half as much again.

    Itself for a job whose family has run, whose limits stay, or that ends with a server that was given too little.
    """
    asked_bytes = asked_of_servers(spec) or spec.servers.memory_bytes * size.servers
    survives = spec.plan.relief and spec.on_server_lost != "fail"
    if not (size.servers and asked_bytes and survives) or _family_ran(spec, state):
        return size
    usual = -(-round(asked_bytes * MORE_THAN_USED * usual_memory_share(state.past)) // size.servers)
    return size.replace(server_memory_bytes=min(max(usual, LEAST_SERVER_BYTES), size.server_memory_bytes))


def asked_of_servers(spec: JobSpec) -> int:
    """Bytes that a user asked for the servers together; 0 where they have no limit, or their number was left open."""
    return min(spec.servers.memory_bytes * (spec.servers.count or spec.servers.start), MOST_BYTES)


def less_memory(size: Size, spec: JobSpec) -> str:
    """Say of a first size that its servers together have less memory than its user asked for."""
    asked_bytes = asked_of_servers(spec) or spec.servers.memory_bytes * size.servers
    now = size.servers * size.server_memory_bytes / GIB
    return (
        f"{now:.3g} GiB for its servers instead of {asked_bytes / GIB:.3g}, as jobs here used of what they"
        " had asked for: there is no room for more"
    )


def _family_ran(spec: JobSpec, state: BrainState) -> bool:
    """Whether a run of the family has ended, as it should or not: what such a run needed it says best itself."""
    own = traits_of(spec)
    of_own = (own.family, own.dataset)
    return any((past.traits.family, past.traits.dataset) == of_own for past in state.past)


def _family_needed(spec: JobSpec, state: BrainState) -> int:
    """Bytes that the servers of a family's last runs needed together; 0 where none has ended yet."""
    own = traits_of(spec)
    ended = [
        _needed(past, spec)
        for past in state.past
        if past.completed and (past.traits.family, past.traits.dataset) == (own.family, own.dataset)
    ]
    return max(ended[-MOST_SIMILAR:], default=0)


def _needed(past: PastJob, spec: JobSpec) -> int:
    """Bytes that the servers of a run needed together: what they used, where a job's limit follows its forecast if that proves too
    little; else what they were given, which was enough.
    """
    if past.tables_bytes and spec.plan.relief:
        return round(past.tables_bytes * MORE_THAN_USED)
    return past.final.servers * past.final.server_memory_bytes


def _budgets(spec: JobSpec, state: BrainState) -> list[Budget]:
    """What no size of a job may pass, however empty the cluster is."""
    quota = state.quotas.get(spec.plan.tenant)
    return [totals_of(state).capacity, *([quota] if quota is not None else [])] if state.hosts else []


def cut_to(size: Size, spec: JobSpec, budgets: Sequence[Budget]) -> Size:
    """Cut counts that the user left open until every budget holds the size: workers and servers by the same share, then servers.

    The least is what the job asks for at least, or what the user fixed; that may still be too much (`granting.too_large` says so).
    """
    least, fewest = spec.workers.least, max(spec.servers.least, 1)
    for workers in [size.workers] if spec.workers.count else range(size.workers, least - 1, -1):
        share = min(max(round(size.servers * workers / size.workers), fewest), size.servers)
        cut = size.replace(workers=workers, servers=size.servers if spec.servers.count else share)
        if _held_by(cut, budgets):
            return cut
    for servers in [] if spec.servers.count else range(cut.servers - 1, fewest - 1, -1):
        if _held_by(cut.replace(servers=servers), budgets):
            return cut.replace(servers=servers)
    return cut if spec.servers.count else cut.replace(servers=min(cut.servers, fewest))


def _held_by(size: Size, budgets: Sequence[Budget]) -> bool:
    charged = charge_of(size, {})
    return all(budget.holds(charged.cores, charged.memory_bytes) for budget in budgets)


def narrowed(size: Size, job: KnownJob) -> Size:
    """A start with half the cores a member, which more hosts have room for; as far as the user left cores open, and hosts hold
    members to them.
    """
    return _narrower(size, job.spec) if job.cores_bind else size


def _narrower(size: Size, spec: JobSpec) -> Size:
    return size.replace(
        worker_cores=_half(spec.workers, size.worker_cores),
        server_cores=_half(spec.servers, size.server_cores),
    )


def _half(role: RoleSpec, cores: float) -> float:
    return max(cores / 2, role.cores) if role.max_cores > role.cores > 0 else cores


def pins(spec: JobSpec) -> list[str]:
    """What a plan may not change, in words (S21)."""
    said = []
    for name, role in (("workers", spec.workers), ("servers", spec.servers)):
        if role.count:
            said.append(f"{name} are pinned to {role.count} by the user")
        if role.cores and role.max_cores <= role.cores:
            said.append(f"cores of {name} are fixed at {role.cores:g} by the user")
    return said
