"""Fence first: is this request stale? The first thing every handler asks (design §2.3, protocol P5, P7, P8).

Pure looks at the state; a fence that fails is a typed refusal that changes nothing.
"""

from __future__ import annotations

from rover_bus.events.requests import LeaseRequest, RefusedReply, Request
from rover_bus.master.phases import Ended
from rover_bus.master.state import AnyState, State


def refusal(state: AnyState, code: str, message: str, retry_s: float = 0.0) -> RefusedReply:
    """Return a typed refusal."""
    generation = state.generation if isinstance(state, State) else 0
    return RefusedReply(term=state.term, generation=generation, code=code, message=message, retry_s=retry_s)


def job_is_over(state: State, end: Ended) -> RefusedReply:
    """Return the refusal of everything that comes after the end."""
    return refusal(state, "job_ended", f"the job is over: {end.state} {end.reason}".rstrip())


def fence(state: State, request: Request) -> RefusedReply | None:
    """Return why an admitted member's request must be refused, None when it is in order."""
    member = request.member
    if isinstance(state.phase, Ended):
        return job_is_over(state, state.phase)
    if request.timeline != state.job.timeline:
        return refusal(
            state, "stale_timeline", "this request is from another timeline of the job: join again"
        )
    seated = state.seats.admitted.get(member.name)
    if seated is None or seated.member != member:
        known = state.seats.incarnations.get(member.name, 0)
        if known > member.incarnation:
            return refusal(
                state, "stale_incarnation", f"{member} was replaced by incarnation {known}: it must end"
            )
        return refusal(state, "not_admitted", f"{member} is not admitted (lost, or never joined): join again")
    if request.generation != state.generation:
        return refusal(
            state, "stale_generation", f"generation {request.generation} is over, {state.generation} is on"
        )
    if isinstance(request, LeaseRequest) and member.role == "worker" and state.ledger is not None:
        holder = state.ledger.holders.get(member.index)
        if holder is not None and request.request < holder.request:
            return refusal(
                state, "stale_request", f"request {request.request} came after request {holder.request}"
            )
    return None
