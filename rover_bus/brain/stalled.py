"""Members that cannot start, by the word of their platform: what brought them is taken back, or the job begins with the others.

Fed by the decider with `host.member_stalled` (no node takes a worker, its image is missing), and at each look; feeds it with plans.
They are carried out in any mode of the job: what was let pass has not begun, and what was before it is what remains. Pure.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.judging import figures_of
from rover_bus.brain.log import FactObserved
from rover_bus.brain.proposing import end_stalled
from rover_bus.brain.state import BrainState, KnownJob, counted
from rover_bus.events.facts import PlanMeasured, PlanRolledBack, Size
from rover_bus.events.host_facts import HostMemberStalled
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]


def note_stalled(known: KnownJob, state: BrainState, fact: HostMemberStalled, cause: str) -> Steps:
    """Note a member that cannot start, and take back the change under way that brought it, the Brain's or a person's.

    A worker that follows a lost one has nothing to go back to: it waits. Of a start `begin_with_less` decides, once all are known.
    """
    change = known.change
    if change is None or not change.applied or change.settled or fact.member not in known.members:
        return
    yield FactObserved(fact=fact, cause=cause)
    if fact.member.role != "worker" or not change.before.workers or change.before == change.after:
        return
    said = f"{fact.member} of plan {change.plan} cannot start: {fact.reason}: {fact.why}"
    yield from _end(fact.job, known, state, change.before, said, cause)


def begin_with_less(state: BrainState) -> Steps:
    """Plans for jobs that begin: with the workers that could start, where these are its least and its servers are among them."""
    for name, known in list(state.jobs.items()):
        change, stalled = known.change, known.stalled
        if not stalled or change is None or change.step not in ("start", "rollback"):
            continue
        if not change.applied or change.settled or known.spec.workers.count:
            continue
        left = change.after.workers - len(stalled)
        if any(member.role != "worker" for member in stalled) or left < max(known.spec.workers.least, 1):
            continue
        said = f"{counted(len(stalled), 'worker')} of plan {change.plan} cannot start, {stalled[0]} for one: {known.stalled_by}"
        size = change.after.replace(workers=left)
        yield from _end(name, known, state, size, said, known.stalled_cause)


def _end(name: str, known: KnownJob, state: BrainState, size: Size, said: str, cause: str) -> Steps:
    """Yield the verdict on the change under way, and the plan for what remains of it."""
    change = known.change
    assert change is not None
    figures = {**figures_of(name, known, 0.0), "cause": cause}
    plan = end_stalled(name, known, state, change, size, said)
    yield PlanMeasured(**figures, windows=len(change.windows))
    yield PlanRolledBack(**figures, by_plan=plan.plan, constant=Reason.NEVER_LIVE)
    yield plan.replace(cause=cause)
