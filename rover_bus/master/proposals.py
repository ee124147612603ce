"""What becomes of a plan in the master: stale, refused, observed, waiting for a person, or carried out. Generators of records.

Fed by noticing.py with the Brain's and people's facts; feeds planning.py. The Brain has checked what it knows (quota, cooldown,
pins); here is checked what only the job's own log knows: whether the snapshot is still true, and whether the job can be changed
at all (protocol P22). Apart from planning.py, which turns a plan that passed into members.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal

from rover_bus.events.facts import (
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobResumeRequested,
    PlanApproved,
    PlanChecked,
    PlanProposed,
    PlanRefused,
    PlanRejected,
)
from rover_bus.events.job import PlanMode
from rover_bus.events.log import PlanDeferred, Record
from rover_bus.master import finding, lifecycle, rollout, withdrawing
from rover_bus.master.guarding import try_again
from rover_bus.master.phases import Closed, Ended, Finishing, Searching, Starting, Training, name_of
from rover_bus.master.planning import (
    applied,
    owning_servers,
    plan_members,
    present_servers,
    remove_members,
    resume_members,
    waits_for_room,
)
from rover_bus.master.state import Plans, State

Steps = Generator[Record, None, None]
Obstacle = tuple[str, str]  # a constant, and the same for people
MOST_AHEAD = 1_000_000  # of plan numbers; a Brain counts by one
STRICTNESS: tuple[PlanMode, ...] = ("auto", "approve", "observe")
OUTCOMES: dict[PlanMode, Literal["passed", "waits", "observed"]] = {
    "auto": "passed",
    "approve": "waits",
    "observe": "observed",
}


def is_new(plans: Plans, proposal: PlanProposed) -> bool:
    """Whether a plan was not decided on yet (P17, P22).

    Nor is one far ahead of all others: every later plan would be stale beside it, or bear a number that fits no message.
    """
    return plans.seen < proposal.plan <= plans.seen + MOST_AHEAD


def adopt(state: State, proposal: PlanProposed, cause: str) -> Steps:
    """Decide what becomes of a proposed plan. A number that was decided on already changes nothing (P17, P22)."""
    if not is_new(state.plans, proposal):
        return
    obstacle = check(state, proposal)
    if obstacle is not None:
        yield PlanRefused(plan=proposal.plan, constant=obstacle[0], reason=obstacle[1], cause=cause)
        return
    if state.plans.waiting is not None:
        old = state.plans.waiting.plan
        yield PlanRefused(
            plan=old,
            constant="superseded",
            reason=f"no person answered; plan {proposal.plan} is newer",
            cause=cause,
        )
    mode = mode_for(state, proposal)
    outcome = OUTCOMES[mode]
    if outcome == "waits":
        yield PlanDeferred(proposal=proposal, cause=cause)
    yield PlanChecked(
        plan=proposal.plan, outcome=outcome, mode=mode, brain_term=proposal.brain_term, cause=cause
    )
    if outcome == "passed":
        yield from _apply(state, proposal, cause)


def adopt_early(state: State, cause: str) -> Steps:
    """The job is known now: carry out the plan that came before it."""
    if state.plans.waiting is not None:
        yield from _apply(state, state.plans.waiting, cause)


def answer(state: State, fact: PlanApproved | PlanRejected, cause: str) -> Steps:
    """A person's word on the plan that waits; the world may have changed meanwhile, so it is checked once more."""
    proposal = state.plans.waiting
    if proposal is None or proposal.plan != fact.plan:
        return
    by = fact.by or "a person"
    obstacle = check(state, proposal)
    if isinstance(fact, PlanRejected):
        obstacle = "rejected", f"{by} said no{f': {fact.reason}' if fact.reason else ''}"
    if obstacle is not None:
        yield PlanRefused(plan=fact.plan, constant=obstacle[0], reason=obstacle[1], cause=cause)
        return
    yield from _apply(state, proposal, cause, by)


def _apply(state: State, proposal: PlanProposed, cause: str, approved_by: str = "") -> Steps:
    before, owning = present_servers(state), owning_servers(state)
    if owning and not state.seats.wanted and proposal.servers:
        proposal = proposal.replace(servers=len(owning))  # the parts of its checkpoint are theirs
    withdraws = _ends_what_never_came(state, proposal) and withdrawing.is_asked(proposal)
    if withdraws:
        yield from withdrawing.unroute(state, lifecycle.empty_ledger(state), cause)
    yield plan_members(state, proposal, cause)
    yield applied(state, proposal, cause, approved_by)
    if withdraws:
        yield from withdrawing.release(state.seats.servers(), cause)
    else:
        yield from rollout.follow_plan(state, before, proposal, cause)
    yield from lifecycle.consequences(state, cause)


def mode_for(state: State, proposal: PlanProposed) -> PlanMode:
    """Return the stricter of what the plan and the job say. A first plan, a person's own, and the end of a plan whose members
    do not come are carried out.
    """
    if not state.seats.wanted or not proposal.brain_term or proposal.step == "asked":
        return "auto"
    if _ends_what_never_came(state, proposal):
        return "auto"
    own = state.plans.mode or state.job.spec.plan.mode
    return max(own, proposal.mode, key=STRICTNESS.index)


def _ends_what_never_came(state: State, proposal: PlanProposed) -> bool:
    """Whether a plan takes back the one that is carried out, before its members are all there: what was let pass then is what was
    before it."""
    return proposal.rolls_back > 0 and proposal.rolls_back == state.plans.settling


def check(state: State, proposal: PlanProposed) -> Obstacle | None:
    """Return what stands against a plan: a constant and words; None when it may be carried out."""
    if isinstance(state.phase, Closed | Finishing | Ended) or state.ending.stop:
        return "job_is_ending", f"the job is {state.ending.stop or name_of(state.phase)}"
    if state.paused:
        return "paused", "the job is paused: resume it first"
    if not state.seats.wanted:
        return None
    if isinstance(state.phase, Searching):
        return "searching", "the job looks for a checkpoint to go back to"
    if proposal.brain_term and proposal.brain_term < state.plans.brain_term:
        return "stale_brain_term", f"Brain term {proposal.brain_term} is over, {state.plans.brain_term} is on"
    if proposal.members_plan and proposal.members_plan != state.seats.plan:
        return (
            "membership_changed",
            f"computed from member set {proposal.members_plan}; it is {state.seats.plan} now",
        )
    return _check_counts(state, proposal)


def _check_counts(state: State, proposal: PlanProposed) -> Obstacle | None:
    spec = state.job.spec
    if withdrawing.is_asked(proposal) and _ends_what_never_came(state, proposal):
        begun = withdrawing.obstacle(state)
        return ("has_begun", f"its start is not withdrawn: {begun}") if begun else None
    if refused := rollout.refuse_plan(state, proposal):
        return "servers_fixed", refused
    makes_room = proposal.step == "room"  # a higher job's doing: it may take workers, never servers
    if proposal.workers < 1 and not makes_room:
        return "limit_exceeded", "a running job needs one worker at least"
    pin = spec.workers.count
    if proposal.step == "asked" and proposal.brain_term:
        return None  # the Brain has looked at limits, quota and capacity (brain/asked.py); a person may change what a person fixed
    if _ends_what_never_came(state, proposal):
        return None
    if proposal.brain_term and pin and proposal.workers != pin and not makes_room:
        return (
            "constrained_by_user",
            f"workers are pinned to {pin} by the user; the plan asks for {proposal.workers}",
        )
    for role, noun, count in (
        (spec.workers, "workers", proposal.workers),
        (spec.servers, "servers", proposal.servers),
    ):
        if role.min_count and 0 < count < role.least:
            return "limit_exceeded", f"{count} {noun} are fewer than the job's least of {role.least}"
    if proposal.workers > spec.workers.max_count:
        return (
            "limit_exceeded",
            f"{proposal.workers} workers exceed the job's limit of {spec.workers.max_count}",
        )
    return None


def pause(state: State, fact: JobPauseRequested | JobResumeRequested, cause: str) -> Steps:
    """A person takes the workers away, or lets the job go on where it was. Servers stay, or leave by `releasing`."""
    if (
        isinstance(fact, JobResumeRequested)
        and isinstance(state.phase, Searching)
        and state.phase.asking
        and not state.ending.stop
    ):
        yield from finding.resume(state, state.phase, fact, cause)
        yield from lifecycle.consequences(state, cause)
        return
    if isinstance(fact, JobResumeRequested) and (fact.from_nothing or fact.checkpoint):
        return  # no person is asked: what it would throw away is in use
    # What was paused in its last batch has its result still to make.
    resumes = state.paused and isinstance(fact, JobResumeRequested) and isinstance(state.phase, Closed)
    if not (resumes or isinstance(state.phase, Starting | Training)) or state.ending.stop:
        return
    release = isinstance(fact, JobPauseRequested) and fact.release
    if isinstance(fact, JobPauseRequested):
        if state.paused and not (release and not state.release):
            return
        names = {name for name, desired in state.seats.wanted.items() if desired.member.role == "worker"}
        away = len(names) or sum(each.member.role == "worker" for each in state.seats.done.values())
        yield JobPaused(workers=away, reason=fact.reason, by=fact.by, release=release, cause=cause)
        if not names:
            return
        yield remove_members(state, names, cause, f"paused{f': {fact.reason}' if fact.reason else ''}")
    elif not state.paused:
        return
    else:
        yield from try_again(state, cause, fact.by or "a person")
        if waits_for_room(state):
            yield JobResumed(by=fact.by, cause=cause)
            return
        record = resume_members(state, cause, "resumed")
        yield JobResumed(workers=record.count("worker"), by=fact.by, cause=cause)
        yield record
    yield from lifecycle.consequences(state, cause)
