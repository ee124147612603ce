"""Decisions on joining and on the data set (P5, S6). Generators of records; see decider.py."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from rover_bus.events import causes
from rover_bus.events.data_facts import DatasetRefused, DatasetRegistered, EpochOpened
from rover_bus.events.facts import MemberAdmitted
from rover_bus.events.identity import Member
from rover_bus.events.job import Dataset, is_synchronous
from rover_bus.events.log import Record
from rover_bus.events.requests import JoinReply, JoinRequest, RegisterReply, RegisterRequest, Reply
from rover_bus.master import lifecycle, recovery
from rover_bus.master.fences import job_is_over, refusal
from rover_bus.master.phases import Ended, Searching
from rover_bus.master.relieving import ASK_AGAIN_S, Successors
from rover_bus.master.state import State

Steps = Generator[Record, None, Reply | None]


def join(state: State, request: JoinRequest, successors: Successors, now: float) -> Steps:
    """Admit a process as its member. Idempotent by nonce; an incarnation that the log did not plan is refused (P5), and one whose
    former still trains, or ends in order, waits for it.
    """
    if isinstance(state.phase, Ended):
        return job_is_over(state, state.phase)
    if request.member.role == "master" or (request.member.role == "ps" and not request.member.incarnation):
        return refusal(state, "wrong_role", "only workers may join without being planned")
    known = next((seated for seated in state.seats.admitted.values() if seated.nonce == request.nonce), None)
    if known is not None:
        return _welcome(state, known.member)
    member = _seat(state, request.member)
    planned = state.seats.wanted.get(member.name)
    if request.member.incarnation:
        last = state.seats.incarnations.get(member.name, 0)
        if member.incarnation < last or (planned is None and member.incarnation == last):
            return refusal(state, "stale_incarnation", f"{member} was replaced or is not wanted: it must end")
        if planned is None or planned.member != member:
            return refusal(state, "not_planned", f"{member} is not planned yet", retry_s=0.2)
    if isinstance(state.phase, Searching) and member.role == "ps":
        return refusal(state, "searching", "storage is searched for a checkpoint: wait", retry_s=0.2)
    former = state.seats.admitted.get(member.name)
    if former is not None and former.member == member:
        return refusal(state, "stale_incarnation", f"another process is {member} already: it must end")
    if successors.must_wait(state, member, now):
        words = f"{member} comes in when {former.member if former else 'its former'} has ended in order"
        return refusal(state, "former_trains", words, ASK_AGAIN_S)
    cause = causes.request(member, "join")
    if former is not None:
        yield from lifecycle.lose(state, former.member, "replaced", "a newer incarnation joined", cause)
    yield MemberAdmitted(
        member=member,
        nonce=request.nonce,
        host=request.host,
        pid=request.pid,
        addresses=request.addresses,
        stages_at=request.stages_at,
        release=request.release,
        format=max(request.format, 1),
        cores_held=request.cores_held,
        start=recovery.start_of(state, member) if member.role == "ps" else None,
        cause=cause,
    )
    yield from lifecycle.consequences(state, cause)
    return _welcome(state, member)


def _seat(state: State, wanted: Member) -> Member:
    """Return the member that a process asks to be; an external one gets a free name and a new incarnation."""
    if wanted.incarnation:
        return wanted
    index = wanted.index
    if index < 0:
        index = 0
        while (
            f"{wanted.role}-{index}" in state.seats.admitted or f"{wanted.role}-{index}" in state.seats.wanted
        ):
            index += 1
    name = f"{wanted.role}-{index}"
    return Member(wanted.role, index, state.seats.incarnations.get(name, 0) + 1)


def _welcome(state: State, member: Member) -> JoinReply:
    return JoinReply(
        term=state.term,
        generation=state.generation,
        member=member,
        uid=state.job.uid,
        timeline=state.job.timeline,
        heartbeat_s=state.job.spec.leases.heartbeat_s,
        start=state.seats.admitted[member.name].start,
        dataset=state.ledger.dataset if state.ledger is not None else None,
        routing=state.slots.routing,
        seed=state.job.spec.data.seed,
        spec=msgspec.to_builtins(state.job.spec),
        restore=recovery.order_for(state, member) if member.role == "ps" else None,
    )


def register(state: State, request: RegisterRequest) -> Steps:
    """Fix the data set, or refuse a different one with the difference (S6)."""
    cause = causes.request(request.member, "register")
    known = state.ledger.dataset if state.ledger is not None else None
    if known is None:
        if request.dataset.records == 0 and not request.dataset.streaming:
            return refusal(state, "bad_dataset", "the data set has no records")
        if request.dataset.streaming and request.dataset.epochs != 1:
            return refusal(state, "bad_dataset", "a stream is read once: set epochs = 1")
        if request.dataset.streaming and is_synchronous(state.job.spec):
            return refusal(
                state, "bad_dataset", "workers of a stream take no steps together: train asynchronously"
            )
        yield DatasetRegistered(dataset=request.dataset, member=request.member, cause=cause)
        yield EpochOpened(epoch=0, generation=state.generation, cause=cause)
    elif (difference := differ(known, request.dataset)) != "":
        yield DatasetRefused(member=request.member, difference=difference, cause=cause)
        return refusal(state, "differs", f"another worker registered other data: {difference}")
    return RegisterReply(term=state.term, generation=state.generation, dataset=known or request.dataset)


def differ(known: Dataset, other: Dataset) -> str:
    """Return in words where two registrations differ, "" when they do not."""
    fields = msgspec.structs.fields(Dataset)
    return ", ".join(
        f"{field.name} is {getattr(known, field.name)!r}, not {getattr(other, field.name)!r}"
        for field in fields
        if field.name != "features" and getattr(known, field.name) != getattr(other, field.name)
    )
