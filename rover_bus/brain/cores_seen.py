"""What a host gives, as the Brain takes it: where no member there has said yet whether cores bind, what members of the others say.

Fed by the decider with what hosts register, feeds its records of hosts. Nodes of a cluster are alike until one shows the contrary:
one that comes, or whose operator has begun again, does not take from all jobs the axis that members elsewhere have shown
(docs/design/0038).
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_bus.brain.log import HostSeen
from rover_bus.brain.state import BrainState
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity


def see_registered(fact: HostRegistered, state: BrainState, cause: str) -> Iterator[HostSeen]:
    """Yield what a registration changes: of its host, and of those on which no member has spoken, once its members do."""
    capacity = _believed(fact, state)
    if (state.hosts.get(fact.host), state.sampled_s.get(fact.host, 0.0)) == (capacity, fact.sample_s):
        return
    yield HostSeen(host=fact.host, capacity=capacity, sample_s=fact.sample_s, cause=cause)
    if capacity.cores_seen != "members":
        return
    bind = any(each.cores_bind and each.cores_seen == "members" for each in state.hosts.values())
    for host, each in list(state.hosts.items()):
        if each.cores_seen == "none" and each.cores_bind != bind:
            its = each.replace(cores_bind=bind)
            yield HostSeen(host=host, capacity=its, sample_s=state.sampled_s.get(host, 0.0), cause=cause)


def _believed(fact: HostRegistered, state: BrainState) -> HostCapacity:
    said = fact.capacity
    if said.cores_seen != "none":
        return said
    former = state.hosts.get(fact.host) or state.displaced.get(fact.host)
    if former is not None and former.cores_seen == "members":  # its operator still reads what they said
        return said.replace(cores_bind=former.cores_bind, cores_seen="members")
    bind = any(each.cores_bind and each.cores_seen != "host" for each in state.hosts.values())
    return said.replace(cores_bind=bind)
