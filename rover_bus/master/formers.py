"""Workers that train on elsewhere until the incarnation that is wanted in their stead comes (docs/design/0091). Pure.

Asked by `planning` for each set of members: who stays, of those that a plan lets stay. When they leave, `relieving` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.master.state import State


def of_plan(state: State, members: Iterable[DesiredMember], stays: Collection[Member]) -> list[DesiredMember]:
    """Return the workers that a plan's members follow elsewhere and that train on until these come: those that the plan lets stay,
    and those that do so already.
    """
    seats, former = state.seats, list[DesiredMember]()
    for desired in members:
        name = desired.member.name
        known = seats.former[name] if seats.has_former(name) else seats.wanted.get(name)
        if known is None or known.member == desired.member or not seats.has(known.member):
            continue
        let = known.member in stays or seats.has_former(name)
        if let and known.host not in (desired.host, *seats.hosts.away):
            former.append(known)
    return former


def still_wanted(state: State, members: Iterable[DesiredMember]) -> list[DesiredMember]:
    """Return the formers that another change of the members leaves: of those that are wanted, on another host."""
    wanted = {desired.member.name: desired for desired in members}
    return [
        former
        for name, former in state.seats.former.items()
        if name in wanted and wanted[name].host != former.host
    ]


def taken_back(
    state: State, wanted: DesiredMember, resources: Resources, rolls_back: int
) -> DesiredMember | None:
    """Return the former of a wanted worker that never came, where a plan takes back the one that moved it, to what it had."""
    name = wanted.member.name
    if state.seats.has(wanted.member) or not state.seats.has_former(name):
        return None
    if state.seats.moved_by.get(name) != rolls_back:
        return None
    former = state.seats.former[name]
    return None if is_more(resources, former.resources) else former


def is_more(one: Resources, other: Resources) -> bool:
    """Whether resources are more than others in cores or in memory. 0: without a limit."""
    return any(
        (b > 0 and (a == 0 or a > b))
        for a, b in ((one.cores, other.cores), (one.memory_bytes, other.memory_bytes))
    )
