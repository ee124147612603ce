"""What becomes of a member that cannot be given its new limits where it runs: another one takes its place, with these limits.

Asked by `noticing` with a daemon's fact. Changing limits in place is the cheapest relief, so that it is tried first; where the host
cannot, a worker drains and its next incarnation begins with the new limits, and a server's slots move to a new server that has
them. Training goes on in both cases.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from rover_bus.events.host_facts import HostAdjustRefused
from rover_bus.events.identity import Member
from rover_bus.events.log import Record
from rover_bus.master import rollout
from rover_bus.master.phases import Starting, Training
from rover_bus.master.planning import replace_members
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]


@dataclass(slots=True)
class OwedRefits:
    """Servers whose limits were refused while slots moved: another takes their place once that is over. Never logged.

    A successor does not hear such a refusal again: its server keeps the limits that it has until a plan names others.
    """

    by_server: dict[Member, tuple[HostAdjustRefused, str]] = field(default_factory=dict)

    def note(self, state: State, fact: HostAdjustRefused, cause: str) -> None:
        """Remember a refusal that cannot be followed now."""
        if fact.member.role == "ps" and state.slots.rollout is not None:
            self.by_server[fact.member] = fact, cause


def tick(state: State, owed: OwedRefits) -> Consequences:
    """Follow what was refused while slots moved, one server after another: each move is a rollout of its own."""
    while owed.by_server and state.slots.rollout is None and not _any_leaves(state):
        fact, cause = owed.by_server.pop(next(iter(owed.by_server)))
        yield from refit(state, fact, cause)


def refit(state: State, fact: HostAdjustRefused, cause: str) -> Consequences:
    """A refusal of limits, or of an incarnation, that nothing wants any more changes nothing (P17)."""
    desired, member = state.seats.wanted.get(fact.member.name), fact.member
    if desired is None or desired.member != member or desired.resources != fact.resources:
        return
    if not isinstance(state.phase, Starting | Training) or state.ending.stop:
        return
    reason = f"{member} cannot be given its limits on {fact.host}: {fact.why}"
    if member.role == "worker":
        yield replace_members(state, [member], cause, reason, left=True)
    elif state.seats.has(member) and not _leaves(state, member):
        yield from rollout.replace_server(state, desired, reason, cause)


def _any_leaves(state: State) -> bool:
    """Whether a server that gave its slots away is still there: another one would take its place, and it would count as lost."""
    wanted = state.seats.wanted
    return any(
        each.member.name not in wanted or wanted[each.member.name].member != each.member
        for each in state.seats.servers()
    )


def _leaves(state: State, member: Member) -> bool:
    """Whether a server's slots are on their way to others already."""
    return state.slots.rollout is not None and member.index in state.slots.rollout.drops
