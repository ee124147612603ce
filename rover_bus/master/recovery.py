"""Decisions on a lost part of the model: which cut to go back to, which servers go back, from where (P5, P8, P11, P24). Generators.

Asked by `lifecycle` when a server is lost, by `admitting` for the named state of one that joins. Partial recovery is the rule: the
lost server goes back to a cut, the others keep what they hold and answer repeats. Only cuts that are no newer than the one
gone back to stay usable: a newer one calls batches committed that the restored server lacks (docs/design/0014).
"""

from __future__ import annotations

from collections.abc import Collection, Generator

import msgspec

from rover_bus.events.checkpoint_facts import ServerRestored
from rover_bus.events.checkpoints import RestoreOrder, RestoreReport
from rover_bus.events.facts import MemberLeft
from rover_bus.events.identity import Member
from rover_bus.events.log import Record, Rewound
from rover_bus.events.starts import ServerStart
from rover_bus.master.cut import SLOTS, Cut, rewound, slots_of
from rover_bus.master.planning import begin_again, owning_servers
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]


def choose_cut(state: State, servers: Collection[int] | None) -> Cut | None:
    """Return the newest cut whose parts have every slot of these servers (None: of all) in storage or on a living host."""
    if state.ledger is None or not state.slots.owners:
        return None
    slots = set(range(SLOTS)) if servers is None else slots_of(state.slots.owners, servers)
    for number in sorted(state.cuts.known, reverse=True):
        if not state.cuts.known[number].missing(slots, state.seats.hosts.away):
            return state.cuts.known[number]
    return None


def _who_goes(state: State, lost: Member | None) -> set[int]:
    """Return the servers without a state of their own: the lost one, those that are not there, those on their way to a cut."""
    planned = {p.member.index: p.member for p in state.seats.wanted.values() if p.member.role == "ps"}
    if lost is None:
        return (
            set(planned) or set(owning_servers(state)) or set(state.cuts.back.servers)
        )  # a pause released them
    present = {
        seated.member.index
        for seated in state.seats.servers()
        if planned.get(seated.member.index) == seated.member
    }
    owning = {index for index, _, _ in state.slots.owners}  # the others hold nothing that could go back
    return ((set(planned) - present) | {lost.index} | (set(state.cuts.back.servers) & set(planned))) & owning


def can_go_back(state: State, lost: Member | None) -> bool:
    """Whether some cut has every slot that is needed."""
    return choose_cut(state, None if lost is None else _who_goes(state, lost)) is not None


def go_back(state: State, lost: Member | None, detail: str, cause: str) -> Consequences:
    """Rewind to the newest usable cut. `lost`: the server whose state is gone; None: whatever they hold, all begin from the cut.

    Servers that were on their way back to a cut and have not said that they arrived go back again, in the same incarnation.
    """
    going = _who_goes(state, lost)
    on_their_way = set(state.cuts.back.servers) - ({lost.index} if lost is not None else going)
    cut = choose_cut(state, None if lost is None else going)
    if cut is None or state.ledger is None:
        raise ValueError("no cut has what is lost: `can_go_back` is to be asked first")
    if cut.found:  # it may be of a past that is none of the others'
        going = _who_goes(state, None)
    for number in sorted(state.cuts.known):
        if number > cut.number:
            yield state.cuts.known[number].failed(f"the job went back to cut {cut.number}", cause)
    ledger = rewound(cut, state.ledger, state.generation + 1)
    again = max(0, state.ledger.samples_done()[0] - cut.samples)
    going_back = (
        "all servers" if lost is None or cut.found else ", ".join(f"ps-{index}" for index in sorted(going))
    )
    yield Rewound(
        generation=state.generation + 1,
        ledger=msgspec.Raw(msgspec.msgpack.encode(ledger)),
        reason=f"{detail}: {going_back} back to cut {cut.number}",
        cut=cut.number,
        servers=sorted(going),
        samples_again=again,
        cause=cause,
    )
    gone = going - on_their_way
    members = [
        p.member for p in state.seats.wanted.values() if p.member.role == "ps" and p.member.index in gone
    ]
    yield begin_again(state, members, cause, f"{detail}: back to cut {cut.number}")
    for seated in state.seats.servers():
        if seated.member.index in gone:
            yield MemberLeft(
                member=seated.member, reason=f"replaced: it begins again from cut {cut.number}", cause=cause
            )


def go_back_to_found(state: State, cut: Cut, detail: str, cause: str) -> Consequences:
    """Rewind to a checkpoint that a search found on storage. All servers begin from it, as incarnations that were named before."""
    ledger = rewound(cut, state.ledger, state.generation + 1)
    done = state.ledger.samples_done()[0] if state.ledger is not None else 0
    yield Rewound(
        generation=state.generation + 1,
        ledger=msgspec.Raw(msgspec.msgpack.encode(ledger)),
        reason=f"{detail}: all servers back to cut {cut.number} of generation {cut.generation}, found on storage",
        cut=cut.number,
        servers=sorted(_who_goes(state, None)),
        samples_again=max(0, done - cut.samples),
        cause=cause,
    )


def start_of(state: State, member: Member) -> ServerStart:
    """Return what a server that joins now starts from (P5): while others serve it holds nothing until slots move to it."""
    if (cut := state.cuts.back.servers.get(member.index, 0)) != 0:
        return ServerStart("cut", cut=cut)
    start = state.job.spec.start_from
    if start is not None and state.slots.routing is None:
        return ServerStart("cut", cut=start.cut, job=start.job)
    return ServerStart(
        "empty" if state.slots.routing is None else "without_slots", generation=state.generation
    )


def order_for(state: State, member: Member) -> RestoreOrder | None:
    """Return what the named state of a server is made of; None when it starts empty or keeps what it has."""
    seated, spec = state.seats.admitted[member.name], state.job.spec
    if seated.start is None or seated.start.kind != "cut":
        return None
    if member.index in state.cuts.back.servers:
        return state.cuts.back.order
    start = spec.start_from
    if start is None:
        return None
    return RestoreOrder(
        uid=start.uid,
        timeline=start.timeline,
        generation=start.generation,
        cut=start.cut,
        path=start.path,
        foreign=True,
    )


def restore_order(state: State, cut: Cut) -> RestoreOrder:
    """Return where a cut of this job may be found."""
    return RestoreOrder(
        uid=state.job.uid,
        timeline=cut.timeline or state.job.timeline,
        generation=cut.generation,
        cut=cut.number,
        identity=cut.identity,
        parts=[] if cut.found else [cut.parts[index] for index in sorted(cut.parts)],
        path=cut.path,
    )


def report(state: State, member: Member, restored: RestoreReport | None, cause: str) -> Consequences:
    """A server arrived at its cut. One that could not is decided on by `lifecycle`, which knows what a loss means."""
    if restored is None or restored.problem or state.cuts.back.servers.get(member.index, 0) != restored.cut:
        return
    if restored.cut:
        cut = state.cuts.known.get(restored.cut)
        yield ServerRestored(
            member=member,
            cut=restored.cut,
            generation=cut.generation if cut is not None else state.generation,
            samples_again=state.cuts.back.samples_again,
            source=restored.source,
            seconds=restored.seconds,
            rows=restored.rows,
            refused=restored.refused,
            cause=cause,
        )
