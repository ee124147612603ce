"""How records of members and hosts change the state: the part of `evolution` that concerns the seats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rover_bus.events import facts, log
from rover_bus.events.identity import FAULTS_OF_THE_PROGRAM, IN_ORDER, TAKEN, Member
from rover_bus.events.log import Record
from rover_bus.master.lockstep import STEP_BROKEN, Lockstep
from rover_bus.master.phases import Training
from rover_bus.master.state import Admitted, Seats, State, Unfit


def want(state: State, record: facts.MembersDesired) -> None:
    """The member set is this from now on. What a plan dropped is done with; what else is dropped may be needed again (P24)."""
    seats = state.seats
    seats.plan = record.plan
    seats.masters = record.masters or seats.masters
    if record.hosts:
        seats.hosts.named, seats.hosts.slow = record.hosts, record.slow_hosts
    past = {} if record.proposal else {**seats.done, **seats.wanted}
    before = {name: desired.member for name, desired in seats.wanted.items()}
    seats.wanted = {desired.member.name: desired for desired in record.members}
    _note_repairs(seats, before, repair=not record.proposal)
    known = {name: plan for name, plan in seats.moved_by.items() if name in seats.former}
    seats.former = {each.member.name: each for each in record.former}
    seats.moved_by = {name: known.get(name, record.proposal) for name in seats.former}
    seats.done = {name: desired for name, desired in past.items() if name not in seats.wanted}
    for desired in record.members:
        _allocate(seats, desired.member)


def _allocate(seats: Seats, member: Member) -> None:
    seats.incarnations[member.name] = max(seats.incarnations.get(member.name, 0), member.incarnation)


def _note_repairs(seats: Seats, before: dict[str, Member], *, repair: bool) -> None:
    now = {name: desired.member for name, desired in seats.wanted.items()}
    new = [name for name, member in now.items() if name in before and before[name] != member]
    seats.gaps = [name for name in seats.gaps if name in now and name not in new]
    waiting = [name for name in seats.repairing if name in now and name not in new]
    coming = [name for name in new if not seats.has(now[name])]  # a former that is wanted again is there
    seats.repairing = waiting + (coming if repair else [])


def _admit(state: State, record: facts.MemberAdmitted) -> None:
    seats, member = state.seats, record.member
    seats.repairing = [other for other in seats.repairing if other != member.name]
    _allocate(seats, member)
    seats.admitted[member.name] = Admitted(
        member,
        record.nonce,
        record.host,
        record.pid,
        record.addresses,
        seats.wants(member),
        record.start,
        record.stages_at,
        release=record.release,
        format=record.format,
    )
    if member.role == "worker" and state.ledger is not None:
        state.ledger.admit(member.index, member.incarnation)


def _remove(state: State, member: Member) -> None:
    if state.seats.has(member):
        del state.seats.admitted[member.name]
        if member.role == "worker" and state.ledger is not None:
            state.ledger.release(member.index)
    for task in state.ending.tasks.values():
        if task.member == member and not task.done:
            task.member = None


def _leave(state: State, record: facts.MemberLeft) -> None:
    """A program that leaves early, without a host that said so, would else be started for ever."""
    seats, member = state.seats, record.member
    known = seats.admitted.get(member.name)
    wanted = seats.wants(member) if member.name in seats.wanted else not (known is not None and known.planned)
    host_leaves = (
        known is not None and known.host in seats.hosts.leaving
    )  # it left because its host does (S29)
    training = isinstance(state.phase, Training) and not state.ending.stop
    taken = bool(record.taken)
    follows = _leave_step(
        state, member, outside=taken or None, how=f"left: {record.taken}" if taken else "left"
    )
    if member.role == "worker" and training and wanted and not host_leaves and not follows:
        if taken:
            state.charges.preemptions += 1
        else:
            state.charges.relaunches += 1
            seats.left[member.name] = member
    _remove(state, member)


def _leave_step(state: State, member: Member, *, outside: bool | None, how: str) -> bool:
    """A worker is gone from the group that it took steps with. Return whether that follows from a step that was broken before.

    `outside`: whether the loss is no fault of the program; None: unless the step was broken before.
    """
    ledger = state.ledger
    lockstep = ledger.lockstep if ledger is not None and member.role == "worker" else None
    if ledger is None or lockstep is None or not lockstep.has(member):
        return False
    broken, follows = bool(lockstep.broken), bool(lockstep.broken) and (lockstep.outside or not outside)
    holder = ledger.holders.get(member.index)
    is_holding = holder is not None and holder.incarnation == member.incarnation and bool(holder.leases)
    lockstep.lose(member, holds=is_holding, outside=not broken if outside is None else outside, how=how)
    return follows


def _lose(state: State, record: facts.MemberLost) -> None:
    seats, member = state.seats, record.member
    outside = record.reason not in (*FAULTS_OF_THE_PROGRAM, *IN_ORDER, STEP_BROKEN)
    follows = _leave_step(state, member, outside=outside, how=f"was lost: {record.reason}")
    _remove(state, member)
    if record.last:
        seats.incarnations[member.name] = max(seats.incarnations.get(member.name, 0), record.last)
    if member.role == "worker":
        if seats.wants(member):
            seats.gaps.append(member.name)
        state.counts.workers_lost += 1
        if follows:
            pass  # counted where the group is judged
        elif record.reason in (*FAULTS_OF_THE_PROGRAM, "completed"):  # it ended early
            state.charges.relaunches += 1
        else:
            state.charges.preemptions += 1
    elif member.role == "ps":
        state.counts.servers_lost += 1
        state.counts.servers_taken += record.reason in TAKEN


def _announce(state: State, record: log.LossAnnounced) -> None:
    """Why a member goes; where it said goodbye before that was known, the goodbye was no failure."""
    seats, member = state.seats, record.member
    if seats.has(member):
        known = seats.admitted[member.name]
        known.taken, known.taken_cause = record.reason, record.cause
    elif seats.left.get(member.name) == member:
        del seats.left[member.name]
        state.charges.relaunches -= 1
        state.charges.preemptions += 1


def _form_group(state: State, record: facts.GroupFormed) -> None:
    _lockstep(state).form(record.number, record.members)


def _break_group(state: State, record: facts.GroupBroken) -> None:
    """Failures that follow from another's are excused: no budget, no batch and no fingerprint counts them."""
    lockstep = _lockstep(state)
    for failure in lockstep.failures:
        if failure.member in record.charged:
            state.charges.add(failure)
            state.charges.relaunches += 1
        else:
            state.charges.note(failure.member)
    lockstep.end()


def _lockstep(state: State) -> Lockstep:
    if state.ledger is None or state.ledger.lockstep is None:
        raise ValueError("a group of a job that is not synchronous: this log does not belong to it")
    return state.ledger.lockstep


def _notice_host(state: State, record: log.HostNoticed) -> None:
    hosts = state.seats.hosts
    if record.unheard:
        hosts.unheard.append(record.host)
    else:
        hosts.leaving[record.host] = state.cuts.last


def _lose_host(state: State, record: facts.MembersDisplaced) -> None:
    if record.host not in state.seats.hosts.away:
        state.seats.hosts.away.append(record.host)


def _regain_host(state: State, record: log.HostReturned) -> None:
    hosts = state.seats.hosts
    hosts.unheard = [host for host in hosts.unheard if host != record.host]
    hosts.away = [host for host in hosts.away if host != record.host]
    hosts.leaving.pop(record.host, None)


def _find_unfit(state: State, record: log.HostUnfit) -> None:
    state.seats.hosts.unfit[record.host] = Unfit(record.daemon, record.problem)


def _find_fit(state: State, record: log.HostFit) -> None:
    state.seats.hosts.unfit.pop(record.host, None)


EVOLUTIONS: dict[type[Record], Callable[[State, Any], None]] = {
    facts.MemberAdmitted: _admit,
    facts.MemberLost: _lose,
    facts.MemberLeft: _leave,
    facts.GroupFormed: _form_group,
    facts.GroupBroken: _break_group,
    log.LossAnnounced: _announce,
    log.HostNoticed: _notice_host,
    facts.MembersDisplaced: _lose_host,
    log.HostReturned: _regain_host,
    log.HostUnfit: _find_unfit,
    log.HostFit: _find_fit,
}
