"""Windows in which people want no running job changed: when they hold, what they withhold, and from whom nothing is taken.

Fed by `cluster.freeze_set` and by ticks, which bring the host's clock; asked by the decider, by `choosing` and by `granting`. What
saves a job is done in a freeze too: memory that would run out, lost members and hosts, a change that is taken back; so is what a
person asks for, and jobs that wait begin in free room. docs/design/0076. Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.log import FreezesTurned
from rover_bus.brain.state import BrainState, Freeze, KnownJob
from rover_bus.brain.wishes import CapacityLeft
from rover_bus.events import causes
from rover_bus.events.log import Record


def turn(state: BrainState, wall_ms: int) -> Generator[Record, None, None]:
    """Yield that other freezes hold than before, by the host's clock. Without a clock nothing turns."""
    if not wall_ms or not (state.freezes or state.frozen):
        return
    now_s = wall_ms / 1000
    holds = {
        name: until for name, each in state.freezes.items() if (until := ends_at(each, now_s)) is not None
    }
    over = [name for name, each in state.freezes.items() if not each.repeats_s and now_s >= each.ends_s]
    if holds != state.frozen or over:
        turned = [name for name in state.freezes if (name in holds) != (name in state.frozen)]
        of = state.freezes[(turned or over or list(state.freezes))[0]].cause
        yield FreezesTurned(in_force=holds, over=over, cause=causes.timer("freeze", of))


def ends_at(freeze: Freeze, now_s: float) -> float | None:
    """Return when a freeze that holds at a moment ends, None where it does not hold. Both in seconds of Unix time."""
    begins_s, ends_s = coming(freeze, now_s)
    return ends_s if begins_s <= now_s < ends_s else None


def coming(freeze: Freeze, now_s: float) -> tuple[float, float]:
    """Return when a freeze begins and ends that holds at a moment, or next comes; of one that does not come again, when it did."""
    later_s = 0.0
    if freeze.repeats_s and now_s >= freeze.ends_s:
        later_s = ((now_s - freeze.ends_s) // freeze.repeats_s + 1) * freeze.repeats_s
    return freeze.begins_s + later_s, freeze.ends_s + later_s


def frozen(job: KnownJob, state: BrainState) -> CapacityLeft | None:
    """Say by which freeze a running job is left as it is; None where none holds, or where it waits to go on after a pause."""
    if not state.frozen or job.held is None or not job.held.workers:
        return None
    for name, until_s in state.frozen.items():
        freeze = state.freezes[name]
        if freeze.tenant in ("", job.spec.plan.tenant):
            until = datetime.fromtimestamp(until_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
            why = f": {freeze.reason}" if freeze.reason else ""
            return CapacityLeft(Reason.FROZEN, f"frozen by {name!r} until {until}{why}")
    return None
