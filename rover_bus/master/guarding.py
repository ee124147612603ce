"""The rules that a master runs by itself, each apart from the others: what becomes of one that raises.

Asked by the decider. A rule that raised in three incarnations of this release is switched off by a record, until the release
changes; the shell counts (events/poison.py). Exactness does not go on without its rules (P5 to P11, P19): where one of these is off
the job is paused, and a person's `rover resume` tries the rule again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from rover_bus.events import causes
from rover_bus.events.facts import JobPaused, RuleSwitchedOff, RuleSwitchedOn
from rover_bus.events.log import Record
from rover_bus.events.poison import apart
from rover_bus.master.phases import Starting, Training
from rover_bus.master.planning import remove_members
from rover_bus.master.state import AnyState, State

Steps = Generator[Record, None, None]

SILENCE, ROLLOUT, GAPS, CUTS, REPORT = "silence", "rollout", "gaps", "cuts", "report"
FIRST = "first servers"
HELD, SEARCH, TAKE_OVER, UNFIT, STEPS = "held requests", "search", "take-over", "unfit hosts", "steps"
RELEASE, FORMERS = "release", "formers"
# What exactness rests on, by the rules of the protocol.
EXACT = {SILENCE: "P19", ROLLOUT: "P5", CUTS: "P9", SEARCH: "P11", HELD: "P7", TAKE_OVER: "P8"}


def guard(state: State, rule: str, steps: Steps) -> Steps:
    """Run a rule apart from the others, unless it is switched off."""
    if rule in state.rules_off:
        steps.close()
        return
    yield from apart(rule, steps)


def switch_rules(state: AnyState, failing: Mapping[str, str], release: str) -> Steps:
    """Switch off what has failed, and on again what failed under another release. Asked when a master takes over."""
    for rule, off in list(state.rules_off.items()):
        if off.release != release:
            yield RuleSwitchedOn(rule=rule, release=release, cause=causes.term(state.term))
    for rule, why in failing.items():
        exact = rule in EXACT
        yield RuleSwitchedOff(rule=rule, release=release, why=why, exact=exact, cause=causes.term(state.term))
        if exact and isinstance(state, State):
            yield from _pause(
                state, f"{rule!r} ({EXACT[rule]}) failed in three incarnations of {release}: {why}"
            )


def try_again(state: State, cause: str, by: str) -> Steps:
    """A person lets the job go on: rules of exactness run again, and pause it again if they still fail."""
    for rule, off in list(state.rules_off.items()):
        if off.exact:
            yield RuleSwitchedOn(rule=rule, release=off.release, by=by, cause=cause)


def _pause(state: State, reason: str) -> Steps:
    """Let the workers part-commit and leave. Nothing else is decided here: what follows might be the rule that fails."""
    if state.paused or not isinstance(state.phase, Starting | Training) or state.ending.stop:
        return
    names = {name for name, desired in state.seats.wanted.items() if desired.member.role == "worker"}
    yield JobPaused(workers=len(names), reason=reason, by="master", cause=causes.term(state.term))
    yield remove_members(state, names, causes.term(state.term), f"paused: {reason}")
