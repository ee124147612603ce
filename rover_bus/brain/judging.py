"""The verdict on a change under way: kept, or taken back by another plan, because it did not pay or its members never came.

Fed by a job after each of its windows; feeds the decider with records. What is measured enough is `decisions.lifecycle`'s to say;
which windows count, and for which changes nothing was promised, is said here. Pure.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import median
from typing import Any

from rover_bus.brain.decisions.lifecycle import ChangeVerdict, judge_change
from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.granting import has_room_to_return
from rover_bus.brain.proposing import roll_back
from rover_bus.brain.remedies import workers_to_replace
from rover_bus.brain.rules import RULES
from rover_bus.brain.state import WINDOWS_KEPT, BrainState, Change, KnownJob
from rover_bus.brain.wishes import PROBE_WINDOWS
from rover_bus.events.facts import PlanKept, PlanMeasured, PlanRolledBack
from rover_bus.events.log import Record

Steps = Generator[Record, None, None]
DISAGREE = 1.4  # times as fast in one window as in another; noise does not make that
NEVER_SETTLED_WINDOWS = 15.0  # a change that is not live after so long is taken back,
STARTS_LONGER = 5.0  # nor in so many times what members of this job took to arrive: of pods one in a hundred takes that long


def judge(name: str, known: KnownJob, state: BrainState) -> Steps:
    """Yield the verdict on the change under way, and the plan that takes it back; nothing while there is none to give."""
    change = known.change
    if change is None:
        return
    if not change.settled:
        if _never_came(known, change):
            yield from _take_back(name, known, state, Reason.NEVER_LIVE, 0.0)
        return
    if workers_to_replace(known) and not change.by_person:
        # All that is measured is how slow they are; while there is no verdict, none of them can be replaced.
        measured = median(change.windows) if change.windows else 0.0
        yield from _keep(name, known, Reason.STRAGGLER_REPLACE, measured)
        return
    if not change.windows:
        return  # it has settled, and no window was whole since
    probing = change.step in ("probe", "rollback", "asked")
    if probing and len(change.windows) < (3 if change.by_person else PROBE_WINDOWS):
        return
    verdict = _verdict(known, change, change.windows)
    if _disagree(change.windows) and (verdict is None or _may_turn(known, change, verdict)):
        return  # what slows one of them and not the next is not the size: the next ones tell
    if probing and verdict is not None and not verdict.keep:
        yield from _take_back(name, known, state, verdict.reason, verdict.after)
        return
    if probing:
        yield from _keep(name, known, "measured", median(change.windows))
    elif verdict is not None and len(change.windows) >= 3:
        if verdict.keep:
            yield from _keep(name, known, verdict.reason, verdict.after)
        else:
            yield from _take_back(name, known, state, verdict.reason, verdict.after)


def _disagree(windows: Sequence[float]) -> bool:
    """Whether so few windows differ so much that a middle one says nothing: half of them may be a server's bad minutes."""
    return len(windows) < WINDOWS_KEPT and max(windows) > DISAGREE * min(windows)


def _may_turn(known: KnownJob, change: Change, verdict: ChangeVerdict) -> bool:
    """Whether the slowest or the fastest window alone would be judged otherwise than all of them."""
    extremes = (min(change.windows), max(change.windows))
    alone = [_verdict(known, change, [each] * 3) for each in extremes]
    return any(each is None or each.keep != verdict.keep for each in alone)


def _verdict(known: KnownJob, change: Change, windows: Sequence[float]) -> ChangeVerdict | None:
    """Return what windows say of a change; None for what was to teach or to restore: that is kept whatever it brings."""
    base = change.base or change.windows[:1]
    windows = windows if len(windows) >= 3 else [*windows, windows[-1]]
    scaled_up = known.charge(change.after).cores > known.charge(change.before).cores
    if change.step not in ("probe", "rollback", "asked"):
        promised = _promised(change, base) if scaled_up else change.predicted
        return judge_change(base, windows, promised, scaled_up, known.spec.plan.least_gain)
    if not (_tries_cores(change) or _is_trial(change)):
        return None
    if not scaled_up:
        return judge_change(base, windows, change.predicted, False)
    # What it brings was not known, but what brings nothing is not kept.
    usual = median(base)
    hoped = min(_least(base), change.predicted) if change.predicted > usual else _least(base)
    return judge_change(base, windows, hoped, True)


def _promised(change: Change, base: Sequence[float]) -> float:
    """What growth is held to: the lower end of what was predicted, at least twice the dead-band more than before.

    Half of all predictions are above what comes; a wide one is no reason to take back what pays.
    """
    if not change.low_90:
        return change.predicted
    return min(change.predicted, max(change.low_90, _least(base)))


def _least(base: Sequence[float]) -> float:
    """Samples a second that growth is worth its members for: twice the dead-band more than before."""
    return median(base) * (1 + 2 * RULES.restraint.dead_band)


def _take_back(name: str, known: KnownJob, state: BrainState, constant: Reason, after: float) -> Steps:
    change = known.change
    assert change is not None
    if not has_room_to_return(name, change.before, state):
        yield from _keep(name, known, Reason.NO_CAPACITY, after)
        return
    cause = known.after("window")
    figures = figures_of(name, known, after)
    yield PlanMeasured(**figures, windows=len(change.windows))
    yield PlanRolledBack(**figures, by_plan=change.plan + 1, constant=constant)
    yield roll_back(name, known, state, change, constant, after).replace(cause=cause)


def _never_came(known: KnownJob, change: Change) -> bool:
    """Whether a change of ours is carried out and its members do not arrive. A rollout has deadlines of its own, in the master;
    what promised nothing (a start, a member replaced, room again) has nothing to go back to.
    """
    patience_s = max(NEVER_SETTLED_WINDOWS * known.window_s, STARTS_LONGER * known.start_s)
    ours = change.step in ("probe", "scale") and not change.by_person
    moves_servers = change.before.servers != change.after.servers
    return ours and change.applied and not moves_servers and known.clock_s - change.since_s > patience_s


def _tries_cores(change: Change) -> bool:
    """A probe that gave the same members other cores."""
    before, after = change.before, change.after
    same = (before.workers, before.servers) == (after.workers, after.servers)
    return change.step == "probe" and same and before != after


def _is_trial(change: Change) -> bool:
    """Growth that a model chose which rests on use of cores: no probe that was to teach."""
    taught = (Reason.PROBE, Reason.CORES_USED_UP)
    return change.step == "probe" and change.constant not in taught


def _keep(name: str, known: KnownJob, constant: str, after: float) -> Steps:
    assert known.change is not None
    figures = figures_of(name, known, after)
    yield PlanMeasured(**figures, windows=len(known.change.windows))
    yield PlanKept(**figures, constant=constant)


def figures_of(name: str, known: KnownJob, after: float) -> dict[str, Any]:
    """Return what is said of a change that was measured, kept or not."""
    change = known.change
    assert change is not None
    return {
        "job": name,
        "plan": change.plan,
        "before": round(change.usual, 3),
        "after": round(after, 3),
        "predicted": round(change.predicted, 3),
        "cause": known.after("window"),
    }
