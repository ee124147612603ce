"""What holds of a job's state after every record of its log. Called by the golden scripts, the simulation and the chaos ring.

Apart from the state, because a master does not run it: what a record may do is refused by `evolve`, and what it must not do is
looked for here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_bus.master.cut import SLOTS
from rover_bus.master.ledger import Ledger
from rover_bus.master.lockstep import Lockstep
from rover_bus.master.phases import Closed, Ended, Finishing, Starting, Training, Waiting, name_of
from rover_bus.master.state import AnyState, Plans, Seats, Slots, State, Unopened


def broken(state: AnyState) -> list[str]:
    """Return a line for each invariant that does not hold."""
    return list(_of_plans(state.plans) if isinstance(state, Unopened) else _of_job(state))


def _of_job(state: State) -> Iterator[str]:
    yield from _of_plans(state.plans)
    yield from _of_seats(state.seats)
    yield from _of_slots(state.slots)
    if state.ledger is not None:
        yield from _of_ledger(state.ledger)
        if state.ledger.lockstep is not None:
            yield from _of_lockstep(state.ledger.lockstep)
        yield from _of_holders(state.ledger, state.seats)
    routed = state.slots.routing is not None
    if routed and isinstance(state.phase, Waiting | Starting):  # while it searches, the old routing stands
        yield f"slots are routed while the job is {name_of(state.phase)}"
    if not routed and isinstance(state.phase, Training | Closed):
        yield f"no slots are routed while the job is {name_of(state.phase)}"
    if isinstance(state.phase, Ended) and (state.slots.rollout or state.slots.interrupted):
        yield "a rollout outlives the job"
    if isinstance(state.phase, Finishing) and state.phase.parts.keys() - state.seats.wanted_servers().keys():
        yield "a part was written by a server that is not wanted"
    if state.cuts.back.servers and state.cuts.back.order is None:
        yield "servers go back to a cut that is not named"
    if any(number != cut.number for number, cut in state.cuts.known.items()):
        yield "a cut stands under the number of another"


def _of_plans(plans: Plans) -> Iterator[str]:
    if max(plans.applied, plans.settling) > plans.seen:
        yield f"plan {max(plans.applied, plans.settling)} was carried out, but {plans.seen} is the last that was decided on"


def _of_seats(seats: Seats) -> Iterator[str]:
    for name, desired in seats.wanted.items():
        if name != desired.member.name:
            yield f"{desired.member} stands under {name}"
        if seats.incarnations.get(name, 0) < desired.member.incarnation:
            yield f"{desired.member} is wanted, but was not allocated"
    for name, known in seats.admitted.items():
        if seats.incarnations.get(name, 0) < known.member.incarnation:
            yield f"{known.member} is admitted, but was not allocated"
    if set(seats.gaps) - seats.wanted.keys():
        yield "a successor is to be named for a member that is not wanted"
    if seats.wanted.keys() & seats.done.keys():
        yield "a member is wanted and done with"
    if set(seats.repairing) - seats.wanted.keys():
        yield "a member is repaired that is not wanted"


def _of_slots(slots: Slots) -> Iterator[str]:
    if slots.routing is None:
        if slots.rollout is not None:
            yield "a rollout is on without a routing"
        return
    owned = sum(end - first for _, first, end in slots.routing.owners)
    if slots.routing.servers and owned != SLOTS:
        yield f"{owned} of {SLOTS} slots are owned"
    if {index for index, _, _ in slots.routing.owners} != {server.index for server in slots.routing.servers}:
        yield "the servers that are routed are not those that own slots"
    if slots.owners != slots.routing.owners:
        yield "slots were last routed otherwise than they are"


def _of_ledger(ledger: Ledger) -> Iterator[str]:
    held = [(token, lease) for holder in ledger.holders.values() for token, lease in holder.leases.items()]
    if len(held) != ledger.outstanding:
        yield f"{len(held)} leases are held, {ledger.outstanding} counted"
    repeats = ledger.lockstep.repeats if ledger.lockstep is not None else []
    once = [
        lease
        for token, lease in held
        if token not in repeats and (token not in ledger.twins or token < ledger.twins[token][0])
    ]
    placed = ledger.done.total + ledger.returned.total + sum(lease.end - lease.first for lease in once)
    if placed != ledger.frontier:
        yield f"{placed} batches are done, free again or leased; {ledger.frontier} were ever leased"
    if ledger.frontier > ledger.batches:
        yield f"{ledger.frontier} batches were leased of {ledger.batches}"


def _of_lockstep(lockstep: Lockstep) -> Iterator[str]:
    if sorted(lockstep.steps) != [member.index for member in lockstep.members]:
        yield "steps are counted of others than the members of the group"
    if max(lockstep.steps.values(), default=0) != lockstep.total:
        yield f"no member was granted the {lockstep.total} batches of its group"
    if sum(lockstep.steps.values()) != lockstep.granted:
        yield f"members were granted {sum(lockstep.steps.values())} batches, {lockstep.granted} counted"
    if lockstep.failures and not lockstep.broken:
        yield "a member failed, and its group takes further steps"


def _of_holders(ledger: Ledger, seats: Seats) -> Iterator[str]:
    admitted = {each.member.index: each.member.incarnation for each in seats.workers()}
    if admitted != {index: holder.incarnation for index, holder in ledger.holders.items()}:
        yield "the ledger's holders are not the admitted workers"
