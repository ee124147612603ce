"""Slow hosts: said once, avoided by plans while others have room, left by workers and servers when that pays more than it costs.

Fed by what windows showed (`learning_hosts`), feeds facts and plans. The master carries a plan out: it takes a slow host only where
no other is left (`PlanProposed.slow_hosts`). Pure; docs/design/0039.
"""

from __future__ import annotations

from collections.abc import Generator
from math import log

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.decisions.scoring import throughput_gain
from rover_bus.brain.learning_hosts import SLOW, WELL, host_share
from rover_bus.brain.models.hosts import slowest
from rover_bus.brain.proposing import propose
from rover_bus.brain.rooms import free_of, room_for, usual_hosts
from rover_bus.brain.rules import RULES
from rover_bus.brain.state import BrainState, KnownJob, counted
from rover_bus.brain.wishes import PROBE_WINDOWS, Wish
from rover_bus.events import causes
from rover_bus.events.facts import Size, SlotsMoveRequested
from rover_bus.events.host_facts import HostRecovered, HostSlow
from rover_bus.events.identity import Member
from rover_bus.events.job import is_synchronous
from rover_bus.events.log import Record

LOOKED_AT = 8  # slow hosts where the job does not run
MOST_NAMED = 8  # members that a fact names
CROWDED = 0.9  # of its cores, taken by members without a limit: then these slow one another
LASTING_WINDOWS = 3.0  # a host that stays slow for so long is left
RESTS = 2.0  # cooldowns between two times that a job leaves a host

_LOG_SLOW = log(SLOW)

Steps = Generator[Record, None, None]


def note_slow_hosts(name: str, job: KnownJob, state: BrainState) -> Steps:
    """Yield the hosts that became slow, of those where the job runs, and those that are well again.

    A single host is compared with none. Of slow hosts elsewhere a few are looked at, in turn: what was seen there only fades.
    """
    if len(state.hosts) < 2 and not state.slow_hosts:
        return
    slow, turn = list(state.slow_hosts), job.windows * LOOKED_AT
    in_turn = {slow[(turn + at) % len(slow)] for at in range(min(LOOKED_AT, len(slow)))}
    for host in sorted({*_shown_slow(name, job, state), *in_turn} & state.hosts.keys()):
        share, known = host_share(state, host), host in state.slow_hosts
        cause = causes.timer("window", causes.host(host))
        if known and share > WELL:
            yield HostRecovered(host=host, share=round(share, 3), cause=cause)
        elif not known and share < SLOW and not _is_crowded(host, state):
            members = slowest(state.host_evidence[host], SLOW)[:MOST_NAMED]
            yield HostSlow(host=host, share=round(share, 3), members=members, cause=cause)


def _shown_slow(name: str, job: KnownJob, state: BrainState) -> set[str]:
    """The hosts of which this job's own members show that they may be slow, and those of its hosts that are known to be."""
    shown = {host for host in {*job.where.values()} if host in state.slow_hosts}
    for member in job.members:
        if member.role != "worker":  # nothing else shows how fast its host is
            continue
        named = member.name
        evidence = state.host_evidence.get(job.where.get(named, ""))
        residual = evidence.get(f"{name}/{named}.{member.incarnation}") if evidence else None
        if residual is not None and residual.mean < _LOG_SLOW:
            shown.add(job.where[named])
    return shown


def _is_crowded(host: str, state: BrainState) -> bool:
    """Whether members use up a host and no limit keeps workers apart: what slows them there is one another."""
    capacity, free = state.hosts[host], free_of(host, state).cores
    shared = not capacity.cores_bind or any(
        job.held is not None and not job.held.worker_cores and host in job.load for job in state.jobs.values()
    )
    return free < 0 or (shared and free < (1 - CROWDED) * capacity.cores)


def leave_slow_hosts(name: str, job: KnownJob, state: BrainState) -> Steps:
    """Yield what takes workers of a job off slow hosts, else its servers, when that pays and the others have room."""
    if job.held is None or job.paused or job.change is not None or not state.slow_hosts:
        return
    if job.clock_s - job.left_s < RESTS * job.spec.plan.cooldown_s or len(job.recent) < PROBE_WINDOWS:
        return
    workers = _workers_to_move(job, job.held, state)
    after = job.throughput * _gain_of_workers(job, workers, state)
    if workers and _pays(job, after):
        yield _plan(name, job, job.held, workers, after, state)
        return
    for host in sorted({job.where[member.name] for member in _on_slow_hosts(job, "ps", state)}):
        if _servers_may_move(job, job.held, host, state):
            yield SlotsMoveRequested(
                job=name,
                host=host,
                reason=f"servers leave {_words(host, state)}",
                cause=causes.timer("window", causes.host(host)),
            )
            return


def _plan(
    name: str, job: KnownJob, held: Size, workers: list[Member], after: float, state: BrainState
) -> Record:
    hosts = sorted({job.where[member.name] for member in workers})
    left = ", ".join(_words(host, state) for host in hosts)
    wish = Wish(
        size=held,
        step="replace",
        constant=Reason.HOST_SLOW,
        detail=f"{counted(len(workers), 'worker')} of it leave{'s' * (len(workers) == 1)} {left}",
        measured=job.throughput,
        predicted=round(after, 3),
        low_90=round(job.throughput, 3),
        high_90=round(after, 3),
    )
    plan = propose(name, job, state, wish, replaces=workers)
    return plan.replace(cause=causes.timer("window", causes.host(hosts[0])))


def _words(host: str, state: BrainState) -> str:
    return f"host {host}, which has {host_share(state, host):.0%} of the usual speed"


def _on_slow_hosts(job: KnownJob, role: str, state: BrainState) -> list[Member]:
    """Its members on hosts that stayed slow: half of all slow spells end within a few windows."""
    stayed_s = LASTING_WINDOWS * job.window_s
    slow = {host for host, since_s in state.slow_hosts.items() if state.clock_s - since_s >= stayed_s}
    return [m for m in job.members if m.role == role and job.where.get(m.name) in slow]


def _workers_to_move(job: KnownJob, held: Size, state: BrainState) -> list[Member]:
    """The workers of slow hosts, the slowest first, as many as the others have room for."""
    slow = sorted(_on_slow_hosts(job, "worker", state), key=lambda m: (_share(job, m, state), m.index))
    if not slow:
        return []
    each, least = job.charge(held), _share(job, slow[0], state)
    # A worker without a limit will use more elsewhere than it could on a slow host.
    cores = each.worker_cores if held.worker_cores else each.worker_cores / max(least, 0.1)
    return slow[: room_for(cores, each.worker_memory_bytes, _free(state))]


def _free(state: BrainState) -> list[Budget]:
    return [free_of(host, state) for host in usual_hosts(state)]


def _share(job: KnownJob, member: Member, state: BrainState) -> float:
    """A member's speed as a share of what it would be elsewhere, by its host."""
    host = job.where.get(member.name, "")
    return host_share(state, host) if host in state.slow_hosts else 1.0


def _gain_of_workers(job: KnownJob, leaving: list[Member], state: BrainState) -> float:
    """By how much the job is faster when these workers run elsewhere: of their time only their own share is. Workers that take each
    step together are as fast as the slowest.
    """
    own = job.own_share
    now = {m: own * _share(job, m, state) + 1 - own for m in job.members if m.role == "worker"}
    after = {m: 1.0 if m in leaving else rate for m, rate in now.items()}
    whole = min if is_synchronous(job.spec) else sum
    return whole(after.values()) / max(whole(now.values()), 1e-9) if now else 1.0


def _servers_may_move(job: KnownJob, held: Size, host: str, state: BrainState) -> bool:
    """Whether a job's servers can leave a host, and its workers would wait enough less: they wait for the slowest server."""
    if job.clock_s - job.moved_s < job.spec.plan.moved_rest_s:
        return False
    there = sum(job.where.get(m.name) == host for m in job.members if m.role == "ps")
    each, own = job.charge(held), job.own_share
    if there > room_for(each.server_cores, each.server_memory_bytes, _free(state)):
        return False
    return _pays(job, job.throughput / (own + (1 - own) * host_share(state, host)))


def _pays(job: KnownJob, after: float) -> bool:
    """Whether a move gains more than a dead-band beyond its cost: the time until members of this job take part."""
    cost_s = max(job.start_s, job.change_s)
    gain = float(throughput_gain(after, job.throughput, job.remaining_s, cost_s))
    return gain > RULES.restraint.dead_band * job.throughput
