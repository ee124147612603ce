"""How records of hosts, and what people say of the cluster, change what is known: the part of `evolution` that is of no job."""

from __future__ import annotations

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.learning_hosts import forget_host
from rover_bus.brain.log import FreezeObserved, FreezesTurned, HostGone, HostSeen
from rover_bus.brain.state import BrainState, Freeze
from rover_bus.events.host_facts import ClusterModeSet, FreezeLifted, QuotaSet
from rover_bus.events.identity import HostCapacity

MORE_ROOM = 1.1  # times what a host gave before: less than that comes and goes with pods of others


def note_word(state: BrainState, fact: ClusterModeSet | QuotaSet) -> None:
    if isinstance(fact, QuotaSet):
        state.said_quotas = {**state.said_quotas, fact.tenant: _budget(fact)}
    else:
        state.said_mode = fact.mode


def note_freeze(state: BrainState, record: FreezeObserved) -> None:
    said = record.fact
    if isinstance(said, FreezeLifted):
        _end_freeze(state, said.freeze)
        return
    state.freezes[said.freeze] = Freeze(
        begins_s=said.begins_s,
        ends_s=said.ends_s,
        repeats_s=said.repeats_s,
        tenant=said.tenant,
        reason=said.reason,
        by=said.by,
        cause=record.cause,
    )


def turn_freezes(state: BrainState, record: FreezesTurned) -> None:
    state.frozen = dict(record.in_force)
    for name in record.over:
        _end_freeze(state, name)


def _end_freeze(state: BrainState, name: str) -> None:
    state.freezes.pop(name, None)
    state.frozen.pop(name, None)


def see_host(state: BrainState, record: HostSeen) -> None:
    was, now = state.hosts.get(record.host), record.capacity
    if was is None or now.cores > MORE_ROOM * was.cores or now.memory_bytes > MORE_ROOM * was.memory_bytes:
        offer_again(state)
    state.hosts[record.host] = record.capacity
    state.sampled_s.pop(record.host, None)
    if record.sample_s:
        state.sampled_s[record.host] = record.sample_s
    state.displaced.pop(record.host, None)
    state.unheard = [other for other in state.unheard if other != record.host]
    state.shrinks = state.shrinks and bool(state.displaced)
    _note_cores_bind(state, record.capacity)


def offer_again(state: BrainState) -> None:
    """There is more room than before: starts that were withdrawn need not wait for their time."""
    for job in state.jobs.values():
        job.again_s = 0.0


def lose_host(state: BrainState, record: HostGone) -> None:
    capacity = state.hosts.pop(record.host, None) or state.displaced.pop(record.host, None)
    if record.displaced and capacity is not None:
        state.displaced[record.host] = capacity
    elif not record.displaced:
        state.sampled_s.pop(record.host, None)
        forget_host(state, record.host)
    if record.unheard:
        state.unheard = [*state.unheard, record.host]
    else:
        state.shrinks = True
    _note_cores_bind(state, None)


def _note_cores_bind(state: BrainState, host: HostCapacity | None) -> None:
    """Note whether every host holds members to their cores, after `host` came, went or changed: most often nothing has changed."""
    if host is not None and host.cores_bind == state.cores_bind:
        return
    binds = all(host.cores_bind for host in state.hosts.values())
    if binds != state.cores_bind:
        state.cores_bind = binds
        for job in state.jobs.values():
            job.cores_bind = binds


def _budget(quota: QuotaSet) -> Budget | None:
    if quota.cores < 0 and quota.memory_bytes < 0:
        return None
    unlimited = float("inf")
    return Budget(
        quota.cores if quota.cores >= 0 else unlimited,
        float(quota.memory_bytes) if quota.memory_bytes >= 0 else unlimited,
    )
