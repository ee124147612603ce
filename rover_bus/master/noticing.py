"""Decisions on the facts of others: plans, words of people, a process that ended (P17, P19, P22)."""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.events.checkpoint_facts import CheckpointRequested, HostPartFact, HostStorageSearched
from rover_bus.events.facts import (
    Fact,
    JobPauseRequested,
    JobResumeRequested,
    JobStopRequested,
    MembersUnheard,
    PlanApproved,
    PlanModeSet,
    PlanProposed,
    PlanRejected,
)
from rover_bus.events.host_facts import (
    HostAdjustRefused,
    HostExited,
    HostLeaving,
    HostLeft,
    HostMemberStalled,
    HostMemberTaken,
    HostProgramMended,
    HostProgramRefused,
    HostRegistered,
)
from rover_bus.events.identity import FAULTS_OF_THE_PROGRAM, Member
from rover_bus.events.log import HostFit, ModeFixed, Record, StopAsked
from rover_bus.events.requests import Reply
from rover_bus.master import announced, cutting, finding, hosts, lifecycle, proposals, refitting
from rover_bus.master.failing import charge, charge_early_end, is_known
from rover_bus.master.phases import Ended, Finishing
from rover_bus.master.planning import is_planned
from rover_bus.master.state import State

Steps = Generator[Record, None, Reply | None]
Consequences = Generator[Record, None, None]


def notice(state: State, fact: Fact, cause: str) -> Steps:
    """Decide on a fact of another component. What is already known changes nothing (P17)."""
    match fact:
        case PlanProposed():
            yield from proposals.adopt(state, fact, cause)
        case PlanApproved() | PlanRejected():
            yield from proposals.answer(state, fact, cause)
        case PlanModeSet(mode=mode) if state.plans.mode != mode and not isinstance(state.phase, Ended):
            yield ModeFixed(mode=mode, by=fact.by, cause=cause)
        case JobPauseRequested() | JobResumeRequested():
            yield from proposals.pause(state, fact, cause)
        case JobStopRequested(mode="finish") if state.ending.stop:
            pass  # it ends already, as was asked
        case JobStopRequested(mode=mode) if not isinstance(state.phase, Ended) and state.ending.stop != mode:
            yield StopAsked(mode=mode, reason=fact.reason, by=fact.by, cause=cause)
            if mode == "cancel":
                yield from lifecycle.end(state, "cancelled", "asked", fact.reason, cause)
            yield from lifecycle.consequences(state, cause)
        case CheckpointRequested(reason=reason) if not isinstance(state.phase, Ended):
            yield from cutting.request(state, reason, cause)
        case HostPartFact(job=job) if job == state.job.spec.name:
            yield from cutting.notice(state, fact, cause)
        case HostStorageSearched(job=job) if job == state.job.spec.name:
            yield from finding.answer(state, fact, cause)
        case HostLeft(host=host) if not isinstance(state.phase, Ended):
            yield from cutting.lose_host(state, host, "left", cause)
            yield from hosts.leave(state, host, cause)
            if host in state.seats.hosts.unfit:
                yield HostFit(host=host, cause=cause)
        case HostLeaving(host=host) if not isinstance(state.phase, Ended):
            yield from hosts.take_notice(state, host, cause)
        case MembersUnheard(host=host) if not isinstance(state.phase, Ended):
            yield from hosts.miss(state, host, cause)
        case HostRegistered():
            yield from _registered(state, fact, cause)
        case HostProgramRefused(job=job, uid=uid) if _is_of(state, job, uid):
            yield from hosts.find_unfit(state, fact, cause)
        case HostProgramMended(job=job, uid=uid, host=host) if (
            _is_of(state, job, uid) and host in state.seats.hosts.unfit
        ):
            yield from hosts.find_fit(state, host, cause)
        case HostAdjustRefused(job=job, uid=uid) if _is_of(state, job, uid):
            yield from refitting.refit(state, fact, cause)
        case HostMemberTaken(job=job, uid=uid) if _is_of(state, job, uid):
            yield from announced.announce_loss(state, fact, cause)
        case HostMemberStalled(job=job, uid=uid) if _is_of(state, job, uid):
            yield from announced.give_up_stalled(state, fact, cause)
        case HostExited(member=member) if fact.job == state.job.spec.name:
            yield from _exited(state, fact, member, cause)
    return None


def _is_of(state: State, job: str, uid: str) -> bool:
    """Whether a daemon speaks of this run of this job, and it has not ended."""
    return (state.job.spec.name, state.job.uid) == (job, uid) and not isinstance(state.phase, Ended)


def _registered(state: State, fact: HostRegistered, cause: str) -> Consequences:
    """A daemon is there. Another one than before tries the job's program again."""
    if fact.host in {*state.seats.hosts.away, *state.seats.hosts.leaving, *state.seats.hosts.unheard}:
        yield from hosts.come_back(state, fact.host, cause)
    unfit = state.seats.hosts.unfit.get(fact.host)
    if unfit is not None and unfit.daemon != fact.daemon and not isinstance(state.phase, Ended):
        yield from hosts.find_fit(state, fact.host, cause)


def _exited(state: State, fact: HostExited, member: Member, cause: str) -> Consequences:
    """A process ended: the proof of death of that incarnation (P19)."""
    if (
        fact.host in {*state.seats.hosts.away, *state.seats.hosts.unheard}
        and fact.host not in state.seats.hosts.leaving
    ):
        yield from hosts.come_back(state, fact.host, cause)
    admitted = member.name in state.seats.admitted and state.seats.admitted[member.name].member == member
    if not admitted and (not is_planned(state, member) or _is_lost_already(state, member, fact.last)):
        return  # of a former incarnation, of a master, or known
    if fact.exit.reason in FAULTS_OF_THE_PROGRAM and not is_known(state, member):
        yield from charge(state, member, cause, exit=fact.exit)
    elif fact.exit.reason == "completed":
        yield from charge_early_end(state, member, cause)
    yield from lifecycle.lose(state, member, fact.exit.reason, fact.exit.describe(), cause, last=fact.last)


def _is_lost_already(state: State, member: Member, last: int) -> bool:
    """Whether a wanted incarnation has ended, and this log knows it: a daemon reminds of what is wanted and over (P21).

    A lost worker waits for the next tick to name its successor; none is named for a server whose part of the result is written.
    """
    finished = (
        member.role == "ps" and isinstance(state.phase, Finishing) and member.index in state.phase.parts
    )
    waits = member.name in state.seats.gaps and last <= state.seats.incarnations[member.name]
    return finished or waits
