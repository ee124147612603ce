"""What platforms say of members before they end: one is being taken away, or nothing can take it (docs/design/0054).

Fed by `noticing`. The first is remembered, so that the goodbye of that member has its true reason, and the budget of what the
cluster does; the second ends a rollout that waits for the member. A worker that nothing takes is the Brain's to answer, which
knows what its plan came from: until it does, the job trains with the others.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.host_facts import HostMemberStalled, HostMemberTaken
from rover_bus.events.log import LossAnnounced, Record
from rover_bus.master import lifecycle, rollout
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]


def announce_loss(state: State, fact: HostMemberTaken, cause: str) -> Consequences:
    """Remember why a member goes, once: it may have said goodbye a moment before that was known."""
    seats, member = state.seats, fact.member
    goes = seats.has(member) and not seats.admitted[member.name].taken
    if goes or seats.left.get(member.name) == member:
        yield LossAnnounced(member=fact.member, reason=fact.reason, cause=cause)


def give_up_stalled(state: State, fact: HostMemberStalled, cause: str) -> Consequences:
    """End the rollout that waits for a server which nothing takes."""
    member, under_way = fact.member, state.slots.rollout
    if under_way is None or under_way.first or member.role != "ps" or member.index not in under_way.joins:
        return
    if state.seats.wants(member) and not state.seats.has(member):
        reason = f"{rollout.SERVER_NEVER_STARTED}: {member}: {fact.reason}: {fact.why}"
        yield from rollout.stop(state, under_way, reason, cause)
        yield from lifecycle.consequences(state, cause)
