"""Members that cannot start, by the word of their platform: what brought them is taken back, the job begins with the others, or its
start is withdrawn, where these are fewer than its least.

Fed by the decider with `host.member_stalled` (no node takes a worker, its image is missing), and at each look; feeds it with plans.
They are carried out in any mode of the job: what was let pass has not begun, and what was before it is what remains. A job whose
start is withdrawn holds no member and waits like one without a plan, save that it is offered a start only after a time that grows,
or once the cluster has more room (docs/design/0065). Pure.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.judging import figures_of
from rover_bus.brain.log import FactObserved
from rover_bus.brain.proposing import end_stalled
from rover_bus.brain.state import BrainState, KnownJob, counted
from rover_bus.events.facts import PlanMeasured, PlanRefused, PlanRolledBack, PlanWithheld, Size
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]

MOST_AGAIN_S = 900.0  # between a withdrawn start and the next one, unless the start's own patience is longer


def note_stalled(known: KnownJob, state: BrainState, fact: HostMemberStalled, cause: str) -> Steps:
    """Note a member that cannot start, and take back the change under way that brought it, the Brain's or a person's.

    A worker that follows a lost one has nothing to go back to: it waits. Of a start, and of one that goes on with less,
    `begin_with_less` decides, once all are known.
    """
    change = known.change
    if change is None or not change.applied or change.settled or fact.member not in known.members:
        return
    if fact.member in known.stalled:
        return  # its daemon says it again
    yield FactObserved(fact=fact, cause=cause)
    if fact.member.role != "worker" or not change.before.workers or change.before == change.after:
        return
    if change.step == "rollback" and change.after.workers < change.before.workers:
        return  # it made do with less already: more is no way back
    said = f"{fact.member} of plan {change.plan} cannot start: {fact.reason}: {fact.why}"
    yield from _end(fact.job, known, state, change.before, said, cause)


def begin_with_less(state: BrainState, wall_s: float) -> Steps:
    """Plans for jobs that begin: with the workers that could start, where these are its least and its servers are among them; else
    without any member, unless the job trains already. A paused one is left until it is resumed: its master refuses all plans.
    `wall_s`: Unix time, 0: no clock was asked.
    """
    for name, known in list(state.jobs.items()):
        change, stalled = known.change, known.stalled
        if not stalled or change is None or change.step not in ("start", "rollback") or known.paused:
            continue
        if not change.applied or change.settled or not change.after.workers:
            continue
        workers = sum(member.role == "worker" for member in stalled)
        left = change.after.workers - workers
        if workers < len(stalled) or left < _least(known):
            if not known.has_trained:
                yield from _withdraw(name, known, state, wall_s)
        elif not known.spec.workers.count:
            size = change.after.replace(workers=left)
            yield from _end(name, known, state, size, _cannot_start(known, change.plan), known.stalled_cause)


def _least(known: KnownJob) -> int:
    """The fewest workers that a start goes on with. One whose workers the user fixed trains with those that are there."""
    return 1 if known.spec.workers.count else max(known.spec.workers.least, 1)


def _withdraw(name: str, known: KnownJob, state: BrainState, wall_s: float) -> Steps:
    """Yield the plan that releases all members of a start, and what the job waits for from then on."""
    change = known.change
    assert change is not None
    said, cause, none = _cannot_start(known, change.plan), known.stalled_cause, Size(workers=0, servers=0)
    fewer = f"{said}: what could start is below the least of the job, so all of its members are released"
    wanted, again_in_s = change.after, _again_in_s(known)
    yield from _end(name, known, state, none, fewer, cause)
    yield PlanWithheld(
        job=name,
        constant=Reason.BELOW_LEAST,
        reason=f"{said}; a start is tried again after {again_in_s:g} s, or once the cluster has more room",
        wanted=wanted,
        again_s=wall_s + again_in_s if wall_s else 0.0,
        cause=cause,
    )


def say_not_withdrawn(known: KnownJob, refused: PlanRefused, cause: str) -> Steps:
    """Say what a start waits for that its master does not withdraw: it has begun, or the master is of a release that cannot."""
    change = known.change
    if (
        change is None
        or change.plan != refused.plan
        or not change.rolls_back
        or change.after.workers
        or change.after.servers
    ):
        return
    until = (
        "until the job is resumed"
        if refused.constant == "paused"
        else "and the job goes on once they can start"
    )
    yield PlanWithheld(
        job=refused.job,
        constant=Reason.BELOW_LEAST,
        reason=f"members of plan {change.rolls_back} cannot start ({known.stalled_by}); its master does not end the start, "
        f"{until}: {refused.reason or refused.constant.replace('_', ' ')}",
        wanted=change.before,
        cause=cause,
    )


def _again_in_s(known: KnownJob) -> float:
    """Seconds until a start is tried again: as long as it took to know that this one cannot be, twice that after the next one."""
    patience_s = known.spec.moves.start_patience_s
    return max(min(patience_s * 2.0 ** min(known.withdrawn, 32), MOST_AGAIN_S), patience_s)


def is_offered(known: KnownJob, wall_s: float) -> bool:
    """Whether a job that waits is offered a start now. One whose start was withdrawn keeps its masters: they end it themselves."""
    return not known.plan or (known.again_s <= wall_s and not known.paused and not known.stopping)


def _cannot_start(known: KnownJob, plan: int) -> str:
    """Say how many members of a plan cannot start, and what the cluster said of the last one."""
    workers = sum(member.role == "worker" for member in known.stalled)
    counts = (counted(workers, "worker"), counted(len(known.stalled) - workers, "server"))
    named = " and ".join(each for each in counts if not each.startswith("0 "))
    return f"{named} of plan {plan} cannot start, {known.stalled[-1]} for one: {known.stalled_by}"


def _end(name: str, known: KnownJob, state: BrainState, size: Size, said: str, cause: str) -> Steps:
    """Yield the verdict on the change under way, and the plan for what remains of it."""
    change = known.change
    assert change is not None
    figures = {**figures_of(name, known, 0.0), "cause": cause}
    plan = end_stalled(name, known, state, change, size, said)
    yield PlanMeasured(**figures, windows=len(change.windows))
    yield PlanRolledBack(**figures, by_plan=plan.plan, constant=Reason.NEVER_LIVE)
    yield plan.replace(cause=cause)
