"""What a server may serve and apply: fences first, then once per (slot, epoch, batch) (protocol P2, P3, P5, P8).

Pure: `decide_*` answer a request from the state, `evolve` advances the state by an event. Fed by `core`, which owns the
tables; apart, because every exactness claim of the project rests on these hundred lines.

Slots with the same applied set form a group; a server begins with one group and gets a second only when slots arrive from
elsewhere with a set of their own (`moving`). So a push costs one look into a few intervals, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from rover_bus.events.requests import RoutingTable
from rover_bus.events.starts import ServerStart
from rover_bus.ps.intervals import NOTHING, Intervals
from rover_bus.ps.ranges import Ranges, common, mask_of, ranges_of
from rover_bus.ps.routing import version
from rover_bus.ps.store import BatchKey

BEHIND_S = 0.004  # a server is told of a new routing within this time, mostly
MOVING_S = 0.005  # a hand-over lasts a few of these


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """What every request bears: the generation of the job and the incarnation of the server that it was meant for."""

    timeline: int
    generation: int
    epoch: int  # of the routing table
    incarnation: int  # of the server


class SlotGroup(NamedTuple):
    """Slots that have applied the same batches. `slots`: [first, end) ranges."""

    slots: tuple[tuple[int, int], ...]
    applied: Mapping[int, Intervals]  # by data epoch; replaced, never changed


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A server's standing. `start`: what it was admitted with (P5); None: it is not admitted yet."""

    index: int
    incarnation: int
    start: ServerStart | None = None
    timeline: int = 0
    generation: int = 0
    routing: RoutingTable | None = None
    groups: tuple[SlotGroup, ...] = ()
    closed_before: int = 0  # every batch of an earlier data epoch is settled; their sets are forgotten
    frozen: Mapping[
        int, Ranges
    ] = {}  # by move: slots that are being handed over, so that no push may change them
    arrived: tuple[
        SlotGroup, ...
    ] = ()  # slots that are here whole and wait for the routing that gives them to us


# --- answers ----------------------------------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """Nothing changed. `code`: not_admitted | stale_timeline | stale_generation | stale_incarnation | stale_routing | behind |
    moving | cannot_move."""

    code: str
    message: str
    retry_s: float = 0.0  # above 0: the server is behind; the same request may pass after this time


class Apply(NamedTuple):
    """Apply the push to these groups' slots; all of them, mostly."""

    groups: tuple[int, ...]


class Repeat(NamedTuple):
    """Every slot holds this batch already: acknowledge, change nothing."""


# --- events -----------------------------------------------------------------------------------------------------------


class ServerAdmitted(NamedTuple):
    """The log admitted this incarnation in this generation, and says what it starts from."""

    timeline: int
    generation: int
    start: ServerStart


class Loaded(NamedTuple):
    """The state of a cut is in the tables: these slots hold these batches."""

    groups: tuple[SlotGroup, ...]
    closed_before: int


class Routed(NamedTuple):
    """A routing table that this server is to follow, and the slots that it owns by it."""

    table: RoutingTable
    slots: tuple[tuple[int, int], ...]


class Applied(NamedTuple):
    """A push is in the tables of these groups."""

    batch: BatchKey
    groups: tuple[int, ...]


class Settled(NamedTuple):
    """The master's committed (and dead-lettered) batches of an epoch: they need no separate memory any more (P3)."""

    epoch: int
    batches: tuple[tuple[int, int], ...]


class EpochsClosed(NamedTuple):
    """All data epochs before this one are closed, and no cut that is still usable lies in them (P11)."""

    before: int


class Frozen(NamedTuple):
    """A move takes the last of these slots: nothing may change them until the log has decided."""

    move: int
    slots: Ranges


class Thawed(NamedTuple):
    """A move is over, and these slots were not handed over after all; or they were, and have left."""

    move: int


class Arrived(NamedTuple):
    """Slots are here whole, with the applied sets and the closed epochs of their source (P3)."""

    groups: tuple[SlotGroup, ...]
    closed_before: int


class SlotsLeft(NamedTuple):
    """Slots that had arrived are dropped: the log decided otherwise."""

    slots: Ranges


Event = (
    ServerAdmitted
    | Loaded
    | Routed
    | Applied
    | Settled
    | EpochsClosed
    | Frozen
    | Thawed
    | Arrived
    | SlotsLeft
)


# --- decisions --------------------------------------------------------------------------------------------------------


def _keeps(start: ServerStart | None) -> bool:
    """Whether a server starts from what it holds already: a survivor of a partial recovery (P11)."""
    return start is not None and start.kind == "kept"


def decide_request(state: Admission, fence: Fence) -> Refusal | None:
    """Fence first: refuse what was not meant for this incarnation of the server in this generation of the job."""
    if state.start is None or state.routing is None:
        return Refusal("not_admitted", f"server {state.index} is not admitted yet: ask again", 0.05)
    if fence.timeline != state.timeline:
        return Refusal(
            "stale_timeline", f"timeline {fence.timeline} is not {state.timeline}: join the job again"
        )
    if fence.generation != state.generation:
        return _other(fence.generation, state.generation, "generation")
    if fence.incarnation != state.incarnation:
        text = f"this is incarnation {state.incarnation} of server {state.index}, not {fence.incarnation}"
        return Refusal("stale_incarnation", text)
    if fence.epoch != state.routing.epoch:
        return _other(fence.epoch, state.routing.epoch, "routing")
    return None


def decide_peer(state: Admission, fence: Fence) -> Refusal | None:
    """Fence of another server: it may be one routing ahead or behind, for it is about to change."""
    if state.routing is None:
        return decide_request(state, fence)
    return decide_request(state, msgspec.structs.replace(fence, epoch=state.routing.epoch))


def _other(theirs: int, ours: int, what: str) -> Refusal:
    if theirs > ours:
        return Refusal("behind", f"{what} {theirs} has not reached this server, which is at {ours}", BEHIND_S)
    return Refusal(f"stale_{what}", f"{what} {theirs} is over: this server is at {ours}")


def decide_push(state: Admission, fence: Fence, batch: BatchKey) -> Refusal | Apply | Repeat:
    """Apply a batch once per slot. Which worker pushes it, under which lease, does not matter (P2)."""
    refusal = decide_request(state, fence)
    if refusal:
        return refusal
    if batch.epoch < state.closed_before:
        return Repeat()
    if state.frozen:
        return Refusal("moving", "slots are being handed over to another server: ask again", MOVING_S)
    fresh = tuple(at for at, group in enumerate(state.groups) if not holds(group, batch))
    return Apply(fresh) if fresh or not state.groups else Repeat()


def holds(group: SlotGroup, batch: BatchKey) -> bool:
    """Whether the slots of a group have applied a batch."""
    return batch.number in group.applied.get(batch.epoch, NOTHING)


def decide_routing(state: Admission, table: RoutingTable) -> Refusal | None:
    """A newer table of our own timeline and generation is followed; an older one is stale (P8)."""
    if state.start is None:
        return Refusal("not_admitted", f"server {state.index} is not admitted yet", 0.05)
    if table.timeline != state.timeline:
        return Refusal("stale_timeline", f"timeline {table.timeline} is not {state.timeline}")
    if table.generation != state.generation:
        return _other(table.generation, state.generation, "generation")
    if state.routing is not None and version(table) < version(state.routing):
        return _other(table.epoch, state.routing.epoch, "routing")
    return _decide_slots(state, table)


def _decide_slots(state: Admission, table: RoutingTable) -> Refusal | None:
    """Only slots that were handed over change hands: a server never serves what it does not hold, nor drops what it alone has."""
    if state.routing is None:
        return _decide_kept(state, table)
    before, after = mask_of(slots_of(state.routing, state.index)), mask_of(slots_of(table, state.index))
    here = before.copy()
    for group in state.arrived:
        here |= mask_of(group.slots)
    given = np.zeros_like(before)
    for ranges in state.frozen.values():
        given |= mask_of(ranges)
    if np.any(after & ~here):
        return Refusal(
            "cannot_move", f"routing {version(table)} gives server {state.index} slots that are not here"
        )
    if np.any(before & ~after & ~given):
        return Refusal(
            "cannot_move",
            f"routing {version(table)} takes slots of server {state.index} that were not fetched",
        )
    return None


def _decide_kept(state: Admission, table: RoutingTable) -> Refusal | None:
    """The first routing of a generation: a server that kept its state, or loaded a cut, is given nothing that it has not (P11)."""
    wanted, here = mask_of(slots_of(table, state.index)), mask_of(())
    for group in (*state.groups, *state.arrived):
        here |= mask_of(group.slots)
    if (holds_slots(state) or _keeps(state.start)) and np.any(wanted & ~here):
        return Refusal(
            "cannot_move", f"routing {version(table)} gives server {state.index} slots that it has not kept"
        )
    return None


def holds_slots(state: Admission) -> bool:
    """Whether there is a state already, before the first routing of a generation."""
    return bool(state.groups or state.arrived)


def slots_of(table: RoutingTable, index: int) -> Ranges:
    """Return the slots of one server."""
    return tuple((first, end) for owner, first, end in table.owners if owner == index)


def evolve(state: Admission, event: Event) -> Admission:
    """Return the state after an event."""
    replace = msgspec.structs.replace
    match event:
        case ServerAdmitted():
            return _admit(state, event)
        case Loaded(groups, closed_before):
            return replace(state, groups=_merged(groups), closed_before=closed_before)
        case Routed(table, slots) if state.routing is None and not holds_slots(state):
            return replace(state, routing=table, groups=(SlotGroup(slots, {}),) if slots else ())
        case Routed(table, slots):
            groups = _merged(_only((*state.groups, *state.arrived), slots))
            others = _only(state.arrived, ranges_of(~mask_of(slots)))
            # the first of a generation says what became of all moves before it: what it does not give us is not ours
            arrived = others if state.routing is not None else ()
            return replace(state, routing=table, groups=groups, arrived=arrived)
        case Applied(batch, which):
            groups = _with_batch(state.groups, batch, which)
            return replace(state, groups=groups if len(groups) == len(which) else _merged(groups))
        case Frozen(move, slots):
            return replace(state, frozen={**state.frozen, move: slots})
        case Thawed(move):
            return replace(state, frozen={m: s for m, s in state.frozen.items() if m != move})
        case Arrived(arriving, before):
            closed = max(before, state.closed_before)
            return _without_closed(replace(state, arrived=(*state.arrived, *arriving)), closed)
        case SlotsLeft(slots):
            return replace(state, arrived=_only(state.arrived, ranges_of(~mask_of(slots))))
        case Settled(epoch, batches):
            settled = (_with_settled(group, epoch, batches) for group in state.groups)
            return replace(state, groups=_merged(settled))
        case EpochsClosed(before):
            return _without_closed(state, max(before, state.closed_before))


def _admit(state: Admission, admitted: ServerAdmitted) -> Admission:
    """Begin a generation, with what is held or with nothing (P5).

    A survivor keeps slots that have arrived whole: the log may have given them to it already (P11).
    """
    timeline, generation, start = admitted
    fresh = msgspec.structs.replace(
        state, timeline=timeline, generation=generation, start=start, routing=None, frozen={}
    )
    if _keeps(start) and timeline == state.timeline:
        return fresh
    return msgspec.structs.replace(fresh, groups=(), arrived=(), closed_before=0)


def _without_closed(state: Admission, before: int) -> Admission:
    """Return the state without the sets of closed epochs."""

    def kept(groups: Iterable[SlotGroup]) -> Iterable[SlotGroup]:
        return (SlotGroup(g.slots, {e: s for e, s in g.applied.items() if e >= before}) for g in groups)

    return msgspec.structs.replace(
        state, groups=_merged(kept(state.groups)), arrived=tuple(kept(state.arrived)), closed_before=before
    )


def _only(groups: Iterable[SlotGroup], slots: Ranges) -> tuple[SlotGroup, ...]:
    """Return the groups as far as they lie in these slots."""
    some = (SlotGroup(common(group.slots, slots), group.applied) for group in groups)
    return tuple(group for group in some if group.slots)


def groups_in(state: Admission, slots: Ranges) -> tuple[SlotGroup, ...]:
    """Return the applied sets of these slots: what goes with them (P3)."""
    return _only(state.groups, slots)


def has_arrived(state: Admission, slots: Ranges) -> bool:
    """Whether all of these slots are here whole, and wait for the routing that gives them to us."""
    arrived = mask_of(())
    for group in state.arrived:
        arrived |= mask_of(group.slots)
    return bool(arrived[mask_of(slots)].all())


def _with_batch(
    groups: tuple[SlotGroup, ...], batch: BatchKey, which: tuple[int, ...]
) -> tuple[SlotGroup, ...]:
    changed = list(groups)
    for at in which:
        slots, applied = groups[at]
        changed[at] = SlotGroup(
            slots, {**applied, batch.epoch: applied.get(batch.epoch, NOTHING).add(batch.number)}
        )
    return tuple(changed)


def _with_settled(group: SlotGroup, epoch: int, batches: tuple[tuple[int, int], ...]) -> SlotGroup:
    return SlotGroup(group.slots, {**group.applied, epoch: group.applied.get(epoch, NOTHING).union(batches)})


def _merged(groups: Iterable[SlotGroup]) -> tuple[SlotGroup, ...]:
    """Join groups whose applied sets have become equal: exceptions disappear as batches settle."""
    merged: list[SlotGroup] = []
    for group in groups:
        for at, other in enumerate(merged):
            if other.applied == group.applied:
                merged[at] = SlotGroup((*other.slots, *group.slots), other.applied)
                break
        else:
            merged.append(group)
    return tuple(merged)
