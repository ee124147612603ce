"""Decisions before the job is known: its submission opens it; plans and words that come earlier are kept for it (P17, P21)."""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.facts import Fact, JobOpened, JobStopRequested, JobSubmitted, PlanModeSet, PlanProposed
from rover_bus.events.inputs import Input, Observed, Requested
from rover_bus.events.log import ModeFixed, PlanDeferred, Record, StopAsked
from rover_bus.events.requests import AnyRequest, JoinRequest, Reply
from rover_bus.master import lifecycle, proposals
from rover_bus.master.fences import refusal
from rover_bus.master.state import State, Unopened

Steps = Generator[Record, None, Reply | None]
Consequences = Generator[Record, None, None]


def decide(state: Unopened, input: Input) -> Steps:
    """Open the job, keep what is said of it before, refuse its members. Nothing else matters yet."""
    if isinstance(input, Requested):
        return _refuse(state, input.request)
    if isinstance(input, Observed):
        yield from _notice(state, input.fact, input.id)
    return None


def _refuse(state: Unopened, request: AnyRequest) -> Reply:
    if isinstance(request, JoinRequest):
        return refusal(state, "not_ready", "the master does not know the job yet", retry_s=0.2)
    return refusal(state, "stale_timeline", "this request is from another timeline of the job: join again")


def _notice(state: Unopened, fact: Fact, cause: str) -> Consequences:
    match fact:
        case JobSubmitted(spec=spec, uid=uid):
            yield JobOpened(spec=spec, uid=uid, timeline=_first_timeline(uid), cause=cause)
        case PlanProposed() if proposals.is_new(state.plans, fact):
            yield PlanDeferred(proposal=fact, cause=cause)
        case PlanModeSet(mode=mode) if state.plans.mode != mode:
            yield ModeFixed(mode=mode, by=fact.by, cause=cause)
        case JobStopRequested(mode=mode) if state.ending.stop != mode:
            yield StopAsked(mode=mode, reason=fact.reason, by=fact.by, cause=cause)
        case _:
            pass  # it concerns members, hosts and checkpoints, of which there are none


def begin(state: State, cause: str) -> Consequences:
    """The job is known now: do what was said before."""
    if state.ending.stop == "cancel":
        yield from lifecycle.end(state, "cancelled", "asked", state.ending.reason, cause)
        return
    yield from proposals.adopt_early(state, cause)


def _first_timeline(uid: str) -> int:
    """The first timeline of a job is drawn from its random uid; a restore from a backup draws a new one (P21)."""
    return int(uid[:12], 16)
