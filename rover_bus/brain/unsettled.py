"""A change downwards of which nothing can be told is taken back: what was given up for a measurement must not be lost for good.

Fed by a job whose windows differ too much to tell sizes apart, or never come whole; feeds a roll-back. Upwards is left alone: such
a change takes nothing from the job, and the round takes it back once it can tell. Pure.
"""

from __future__ import annotations

from collections.abc import Generator

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import has_room_to_return
from rover_bus.brain.proposing import change_words, roll_back
from rover_bus.brain.state import UNREST, WINDOWS_KEPT, BrainState, Change, KnownJob
from rover_bus.events.facts import PlanRolledBack
from rover_bus.events.log import Record

NEVER_WHOLE_WINDOWS = 15.0  # a change that went live and has no verdict after so long has none to come

Steps = Generator[Record, None, None]


def take_back_unsettled(name: str, job: KnownJob, state: BrainState) -> Steps:
    """Yield the way back from a probe downwards that was kept and is followed by unrest only, or from one without a verdict."""
    change = _never_told(job) if job.change is not None else _unrest_since(job)
    if change is None or not has_room_to_return(name, change.before, state):
        return
    cause = job.after("window")
    yield PlanRolledBack(
        job=name,
        plan=change.plan,
        by_plan=job.plan + 1,
        constant=Reason.UNSETTLED,
        before=round(change.usual, 3),
        after=round(job.throughput, 3),
        predicted=round(change.predicted, 3),
        cause=cause,
    )
    windows = f"windows differ by {job.unrest:.0%}" if len(job.recent) > 1 else "no window was whole since"
    words = change_words(job.held or change.after, change.before)
    reason = f"{words}: what plan {change.plan} brought cannot be told, {windows}"
    back = roll_back(name, job, state, change, Reason.UNSETTLED, job.throughput)
    yield back.replace(reason=reason, cause=cause)


def _unrest_since(job: KnownJob) -> Change | None:
    unsettled = len(job.recent) == WINDOWS_KEPT and job.unrest > UNREST
    return job.probe if unsettled and not job.paused else None


def _never_told(job: KnownJob) -> Change | None:
    change = job.change
    if change is None or change.by_person or change.step not in ("probe", "scale") or not change.settled:
        return None
    waited_s = job.clock_s - job.settled_s
    overdue = waited_s > NEVER_WHOLE_WINDOWS * job.window_s
    return change if overdue and job.is_less(change) else None
